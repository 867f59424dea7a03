"""A card: the same content as HTML and as plain text, and how its HTML is rendered."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True, slots=True)
class Card:
    """What a cell or a magic shows.

    Attributes:
        html: For front ends that take HTML; safe, as it comes from an escaping template.
        text: The same for terminals, at most about 80 columns where its content allows.
    """

    html: str
    text: str

    def __str__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, **_kwargs: Any) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": self.text}


NOTHING = Card("", "")
"""A card that shows nothing."""


@cache
def _environment() -> Environment:
    # Imported late: only a session that displays HTML pays for Jinja2.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from jaxnb import labels

    environment = Environment(
        loader=PackageLoader("jaxnb.display"),
        autoescape=True,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {
        "bytes": labels.format_bytes,
        "coded": coded,
        "count": labels.format_count,
        "processes": labels.processes_label,
        "ranks": labels.ranks_label,
        "seconds": labels.format_seconds,
    }
    return environment


def render(template_name: str, **context: Any) -> str:
    """Returns the HTML of a template of ``display/templates``; every value is escaped.

    Args:
        template_name: Its file name without ``.html.j2``.
        **context: What the template is given.
    """
    return _environment().get_template(f"{template_name}.html.j2").render(context)


def coded(sentence: str) -> str:
    """Returns a sentence as HTML, escaped, with what stands between backticks as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub("(?<!`)`([^`\\n]+)`(?!`)", r"<code>\1</code>", str(escape(sentence))))


def trusted(html: str) -> str:
    """Marks HTML that the user's own object made of itself: templates pass it through.

    Only for what IPython would hand to the front end in the same way (``_repr_html_``, SVG).
    """
    from markupsafe import Markup

    return Markup(html)


def stacked(cards: Iterable[Card]) -> Card:
    """Returns one card with the content of several, from top to bottom."""
    known = [card for card in cards if card.html or card.text]
    return Card(
        "".join(card.html for card in known),
        "\n".join(card.text for card in known if card.text),
    )
