"""Where all processes of a running cell wait: a panel that is shown anew while they do."""

from __future__ import annotations

from jaxnb.display.card import Card, render
from jaxnb.labels import format_seconds, processes_label
from jaxnb.model import Wait, Waits

ADVICE = "Interrupt frees them, and variables are kept."
BACKGROUND_ADVICE = "`%spmd_interrupt` frees them, and variables are kept."


def waits_card(waits: Waits, advice: str = ADVICE) -> Card:
    """Who waits where, for how long, what they dispatched last, and where recordings part.

    Args:
        waits: All that.
        advice: What the user can do.
    """
    html = render(
        "waits",
        heading="All processes waited" if waits.has_ended else "All processes wait",
        seconds=_whole(waits.seconds),
        waits=waits.waits,
        parted=waits.parted,
        advice="" if waits.has_ended else advice,
    )
    return Card(html, waits_text(waits, advice))


def waits_text(waits: Waits, advice: str = ADVICE) -> str:
    """The same as sentences."""
    have = "waited" if waits.has_ended else "have waited"
    places = "; ".join(map(_place_text, waits.waits))
    text = (
        f"all processes {have} for {_whole(waits.seconds)} and used no processor: {places}. "
        f"{waits.parted}"
    )
    return text if waits.has_ended else f"{text} {advice}"


def _place_text(wait: Wait) -> str:
    place = "outside the cell's lines" if wait.place is None else wait.place.text
    return f"{processes_label(wait.processes)} {place}"


def _whole(seconds: float) -> str:
    """Returns a duration in whole seconds: it is shown again every second."""
    return f"{seconds:.0f} s" if seconds < 60 else format_seconds(seconds)
