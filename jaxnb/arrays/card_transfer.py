"""Cards of what moves between the notebook and the processes, and of what has come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jaxnb.arrays.card_array import array_blocks, array_facts, array_type, preview_text
from jaxnb.arrays.card_moved import Moved, moved, narrowed
from jaxnb.display.blocks import Cell, Column, Either, Facts, Note, Pre, Progress, Row, Table
from jaxnb.display.by_process import by_process_block
from jaxnb.display.card import Card, card_of
from jaxnb.display.rich import grouped, is_rich
from jaxnb.display.text import WIDTH, joined, wrapped
from jaxnb.labels import (
    format_bytes,
    format_seconds,
    one_line,
    plural,
    processes_label,
)

if TYPE_CHECKING:
    from jaxnb.arrays.gathered import GatheredArray

__all__ = [
    "Moved",
    "gathered_card",
    "moved",
    "moved_card",
    "narrowed",
    "per_process_card",
    "transfer_card",
]

MIN_RATE_BYTES = 16 << 20
"""The rate of less than this tells about round trips."""

_BAR_WIDTH = 20
_VERBS = {"was pulled": "pulling", "were pulled": "pulling", "was pushed": "pushing"}


def transfer_card(label: str, done_bytes: int, total_bytes: int, seconds: float) -> Card:
    """How far a transfer is; shown again and again in the same place.

    Args:
        label: What is done, in the words of :data:`jaxnb.arrays.moving.Meter`.
        done_bytes: How much has been moved.
        total_bytes: How much there is to move.
        seconds: Since when.
    """
    fraction = min(1.0, done_bytes / total_bytes) if total_bytes else 1.0
    facts = [f"{format_bytes(done_bytes)} of {format_bytes(total_bytes)}"]
    if done_bytes and seconds > 0:
        facts.append(f"{format_bytes(done_bytes / seconds)}/s")
        facts.append(f"{_left(seconds * (1 - fraction) / fraction)} left")
    doing = one_line(_doing(label), 60)
    filled = round(fraction * _BAR_WIDTH)
    bar = "█" * filled + "░" * (_BAR_WIDTH - filled)
    tail = f" {bar} {' · '.join(facts)}"
    text = one_line(doing, max(12, WIDTH - 1 - len(tail))) + tail
    return card_of(Either([Progress(doing, round(100 * fraction), facts)], text))


def _doing(label: str) -> str:
    """Returns ``"pulling `x`"`` for ``"`x` was pulled"``."""
    for done, doing in _VERBS.items():
        if label.endswith(done):
            return f"{doing} {label.removesuffix(done).strip()}"
    return label


def _left(seconds: float) -> str:
    # Whole seconds: tenths would flicker.
    whole = max(1, round(seconds))
    return f"{whole} s" if whole < 60 else format_seconds(whole)


def moved_card(
    rows: Sequence[Moved],
    where: str,
    moved_bytes: int,
    seconds: float,
    moving_seconds: float | None = None,
) -> Card:
    """What was pulled or pushed, how much, and how fast.

    Args:
        rows: The values.
        where: ``"pulled"``, ``"pushed to 4 processes"``.
        moved_bytes: How much travelled beside the messages; with replicas more than the size.
        seconds: How long all took.
        moving_seconds: How long it took to move the bytes; ``seconds`` by default.
    """
    tail = [format_seconds(seconds)]
    moving_seconds = seconds if moving_seconds is None else moving_seconds
    if moved_bytes >= MIN_RATE_BYTES and moving_seconds > 0:
        tail.append(f"{format_bytes(moved_bytes / moving_seconds)}/s")
    sizes = [row.size_bytes for row in rows if row.size_bytes is not None]
    total = [format_bytes(sum(sizes))] if sizes else []
    if len(rows) == 1:
        row = rows[0]
        facts = [row.type, *filter(None, [row.spec]), *total, where, *tail]
        return card_of(Facts(facts, f"{row.name}:"), *(_moved_note(note) for note in row.notes))
    columns = [Column(least=12), Column(least=16), Column(least=12), Column(align=">")]
    cells: list[Row] = [[Cell(row.name, "bold"), row.type, row.spec, _size(row)] for row in rows]
    return card_of(
        Facts([*total, where, *tail], plural(len(rows), "value")),
        Table(columns, cells),
        *(_moved_note(f"{', '.join(who)}: {note}") for note, who in _by_note(rows).items()),
    )


def _moved_note(note: str) -> Note:
    return Note(note, "dim", before="  ")


def _by_note(rows: Sequence[Moved]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in rows:
        for note in row.notes:
            found.setdefault(note, []).append(row.name)
    return found


def _size(row: Moved) -> str:
    return "" if row.size_bytes is None else format_bytes(row.size_bytes)


def gathered_card(array: GatheredArray, since: str = "") -> Card:
    """An array of the processes as the notebook holds it: its picture, and its values.

    Args:
        array: The array; nothing of it is fetched.
        since: When it was pulled, if others may have changed its name since.
    """
    info, region = array.info, array.wanted().region
    name = array.wanted().key.name
    values = _values(array)
    notes = []
    if array.is_gone:
        notes.append("its data are gone with the processes that had them")
    elif not array.is_here and not info.deleted:
        until = f", and while it is there: {since}" if since else ""
        notes.append(f"data stay on the processes until used{until}")
        asked = array.wanted().key.processes
        if unasked := {shard.process_index for shard in info.shards} - set(asked):
            notes.append(
                f"only {processes_label(asked)} asked: parts of {processes_label(unasked)} cannot "
                "be read"
            )
    if since and array.is_here:
        notes.append(since)
    # Values that are here say more than the corners.
    is_whole = region.is_whole
    html = array_blocks(replace(info, corner=()) if values or not is_whole else info)
    part = "" if is_whole else f"{name}{region}, shape {region.result_shape}, of"
    html = [Note(part), *html, Pre(values), *(Note(note, "dim") for note in notes)]
    heading = joined([f"{part} {array_type(info)}".strip(), *array_facts(info)])
    shown = values or (preview_text(info) if is_whole and not info.deleted else "")
    text = "\n".join(filter(None, [heading, shown, *(wrapped(f"— {n}") for n in notes)]))
    return card_of(Either(html, text))


def _values(array: GatheredArray) -> str:
    """What NumPy prints, of data that are here; long arrays are cut by NumPy."""
    if not array.is_here:
        return ""
    import numpy as np  # late: the cards of a start need not wait for it

    return np.array2string(np.asarray(array), separator=", ", max_line_width=WIDTH)


def per_process_card(bundles: Iterable[tuple[int, Mapping[str, Any]]]) -> Card:
    """Values that differ by process, as a table by process; rich ones a click away.

    Args:
        bundles: Process index and the MIME bundle of its value.
    """
    entries = [(process, bundle, b"") for process, bundle in bundles]
    rich = any(is_rich(bundle) for _, bundle, _ in entries)
    return card_of(by_process_block(grouped(entries), rich=rich))
