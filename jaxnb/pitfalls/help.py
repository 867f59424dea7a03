"""What ``%spmd_help`` shows: pages of the documentation that are installed with jaxnb."""

from __future__ import annotations

import re
from pathlib import Path

from jaxnb.errors import UsageError
from jaxnb.options import one_of

_INSTALLED = Path(__file__).parent / "pages"
_DOCS = Path(__file__).parents[2] / "docs"
_ENTRY = re.compile(r"^((?:\S.*\n)+)((?:  .*\n)+)", re.MULTILINE)
_MOST_NEAR = 6
_ROLE = re.compile(r"\{\w+\}`([^`<]+?)(?: <[^`]*>)?`")


def page(name: str) -> str:
    """Returns, as Markdown, a page or a word of the glossary; without a name, the list of them.

    Raises:
        UsageError: There is none of that name.
    """
    is_installed = _INSTALLED.is_dir()
    pages = _INSTALLED if is_installed else _DOCS / "pitfalls"
    words = _words((pages if is_installed else _DOCS) / "glossary.md")
    files = {each.stem: each for each in sorted(pages.glob("*.md"))}
    files = {stem: each for stem, each in files.items() if stem not in ("index", "glossary")}
    if not name:
        titles = {
            each: path.read_text().partition("\n")[0].strip("# ") for each, path in files.items()
        }
        listed = [f"- `%spmd_help {each}`: {title}" for each, title in titles.items()]
        head = "What JAX does without a word, a page each:"
        return "\n".join(
            [head, "", *listed, "", f"Words (`%spmd_help glossary`): {', '.join(words)}."]
        )
    if name == "glossary":
        return "\n\n".join(dict.fromkeys(words.values()))
    by_case = {word.casefold(): word for word in words}
    known = (*files, "glossary", *words)
    topics = {**{each: path.read_text() for each, path in files.items()}, **words}
    asked = by_case.get(name.casefold(), name)
    near = [each for each, text in topics.items() if name.casefold() in text.casefold()]
    if asked not in known and near:
        there = ", ".join(f"`%spmd_help {each}`" for each in near[:_MOST_NEAR])
        raise UsageError(f"No page is named {name!r}. It is mentioned in {there}.")
    return topics[one_of("page or word", asked, known, "Nothing was shown.")]


def _words(glossary: Path) -> dict[str, str]:
    """Returns the entries by their words: ``"explicit axes"``."""
    entries = glossary.read_text().partition(":::{glossary}\n")[2]
    entries = entries.replace("{doc}`pitfalls/", "`%spmd_help ")
    plain = _ROLE.sub(r"page *\1*", entries)
    return {
        word.strip("`"): f"**{', '.join(names.splitlines())}**: {' '.join(text.split())}"
        for names, text in _ENTRY.findall(plain)
        for word in names.splitlines()
    }
