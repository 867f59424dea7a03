"""HTML that escapes whatever is put into it; the only module where markup is made."""

from __future__ import annotations

import html
import re
from functools import lru_cache

_CODE = re.compile("(?<!`)`([^`\n]+)`(?!`)")
_VOID = frozenset({"br", "img"})
_SPECIAL = re.compile("[&<>\"']")


class Html(str):
    """HTML: what :func:`tag` has made, or what the user's own object says of itself."""

    __slots__ = ()


def tag(name: str, *children: str, **attributes: str | None) -> Html:
    """Returns an element; every text in it is escaped.

    Args:
        name: Its name.
        *children: What is in it. Only what is :class:`Html` already is taken as it is.
        **attributes: Its attributes, those that are None left out.
    """
    said = ""
    for key, value in attributes.items():
        if value is not None:
            said += _style(value) if key == "style" else _attribute(key, value)
    end = "" if name in _VOID else f"{together(*children)}</{name}>"
    return Html(f"<{name}{said}>{end}")


def together(*children: str) -> Html:
    """Returns texts and elements one after the other; the texts are escaped."""
    return Html("".join([c if type(c) is Html else _escape(c, False) for c in children]))


def _escape(text: str, quote: bool) -> str:
    # Most texts have nothing to escape, and panels are made several times a second.
    return html.escape(text, quote) if _SPECIAL.search(text) else text


def _attribute(name: str, value: str) -> str:
    return f' {name.rstrip("_")}="{_escape(value, True)}"' if value else f" {name}"


@lru_cache(512)
def _style(value: str) -> str:
    return _attribute("style", value)


def coded(sentence: str) -> Html:
    """Returns a sentence with what stands between backticks as code."""
    parts = _CODE.split(sentence)
    return together(*(tag("code", part) if i % 2 else part for i, part in enumerate(parts)))


def trusted(html: str) -> Html:
    """Marks HTML that the user's own object made of itself: it is passed through.

    Only for what IPython would hand to the front end in the same way (``_repr_html_``, SVG).
    """
    return Html(html)
