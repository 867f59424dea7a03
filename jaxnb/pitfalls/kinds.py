"""The kinds of pitfalls. Each has a page, ``docs/pitfalls/KIND.md``, which is installed too."""

from __future__ import annotations

from pathlib import Path

from jaxnb.options import one_of

_PLACES = (Path(__file__).parent / "pages", Path(__file__).parents[2] / "docs" / "pitfalls")
"""Where the pages are: in what is installed, and in a checkout."""

PITFALL_KINDS = (
    "jit-of-pmap",
    "device-put",
    "fetch",
    "constant",
    "replicated",
    "recompiled",
    "device-order",
    "explicit-axes",
    "settings",
    "unchecked",  # jaxnb could not look for another kind
)


def page(name: str) -> str:
    """Returns the text of a page; without a name, of the one that lists them.

    Raises:
        UsageError: There is none of that name.
    """
    files = {each.stem: each for place in reversed(_PLACES) for each in place.glob("*.md")}
    known = tuple(sorted(files.keys() - {"index"}))
    if not name:
        listed = (f"- `%spmd_help {each}`" for each in known)
        return "\n".join(["What JAX does without a word, a page each:", "", *listed])
    return files[one_of("page", name, known, "Nothing was shown.")].read_text()
