"""The kinds of pitfalls. Each has a page, ``docs/pitfalls/KIND.md``, which is installed too."""

from __future__ import annotations

from pathlib import Path

from jaxnb.options import one_of

_INSTALLED = Path(__file__).parent / "pages"
_CHECKOUT = Path(__file__).parents[2] / "docs" / "pitfalls"

PITFALL_KINDS = (
    "jit-of-pmap",
    "device-put",
    "fetch",
    "constant",
    "replicated",
    "recompiled",
    "device-order",
    "explicit-axes",
    "eager-shard-map",
    "unbound-axis",
    "unequal-data",
    "other-devices",
    "settings",
    "unchecked",  # jaxnb could not look for another kind
)


def page(name: str) -> str:
    """Returns the text of a page; without a name, of the one that lists them.

    Raises:
        UsageError: There is none of that name.
    """
    place = _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT
    files = {each.stem: each for each in place.glob("*.md")}
    known = tuple(sorted(files.keys() - {"index"}))
    if not name:
        listed = (f"- `%spmd_help {each}`" for each in known)
        return "\n".join(["What JAX does without a word, a page each:", "", *listed])
    return files[one_of("page", name, known, "Nothing was shown.")].read_text()
