"""Pure: what comes from the processes of one cell, taken apart and put into one form."""

from __future__ import annotations

from collections.abc import Mapping

from jaxnb.arrays.blocks import lying
from jaxnb.cells.merge_output import StreamMerger
from jaxnb.labels import Outputs, one_line
from jaxnb.lockstep.divergence import NOTHING_RAN
from jaxnb.model.cells import (
    NO_ANSWER,
    CellReply,
    ProcessError,
    RequestFailed,
    StreamChunk,
    ValueInfo,
)
from jaxnb.wire.messages import Event

PIECE_CHARS = 1 << 18
"""Longer text is taken in pieces, so that a step can end between them."""

MOST_RAISED_CHARS = 160
"""Of a longer error the beginning is told while others are still in the cell."""

MOST_STOPPED_CHARS = 600
"""Of why processes were stopped: who was to do what."""

FOLLOW = (NO_ANSWER, "KeyboardInterrupt", "DivergenceError")
"""What a process raises because of another one, or of an interrupt."""


def place_of(value: ValueInfo | None) -> object:
    """Returns which array a value is, if it is one: processes may hold several, each of a mesh."""
    array = value.array if value is not None else None
    return None if array is None else lying(array)


def ending_of(reply: CellReply) -> str:
    """Returns how a cell ended on a process: ``"raised ValueError at line 3"``; empty if well."""
    return "" if reply.error is None else reply.error.ending


def raised(errors: Mapping[int, ProcessError]) -> dict[str, list[int]]:
    """Returns what processes have raised, as clauses, and which ones; the causes alone, if any."""
    causes = {i: error for i, error in errors.items() if error.type_name not in FOLLOW}
    who: dict[str, list[int]] = {}
    for index, error in sorted((causes or errors).items()):
        who.setdefault(_said(error), []).append(index)
    return who


def _said(error: ProcessError) -> str:
    if error.type_name == "DivergenceError":  # one for all that take part, wherever each was
        why = error.message.partition(NOTHING_RAN)[0].rstrip()
        return f"raised DivergenceError: {one_line(why.rstrip('.'), MOST_STOPPED_CHARS)}"
    at = "" if error.line is None else f" at line {error.line}"
    first = one_line(error.message.partition("\n")[0], MOST_RAISED_CHARS)
    return f"raised {error.type_name}{at}{f': {first}' if first else ''}"


def pieces(event: Event) -> list[Event]:
    """Returns an event as several, if it has text that takes long to merge."""
    match event:
        case StreamChunk(index, name, text) if len(text) > PIECE_CHARS:
            starts = range(0, len(text), PIECE_CHARS)
            return [StreamChunk(index, name, text[i : i + PIECE_CHARS]) for i in starts]
    return [event]


def mergers(processes: tuple[int, ...], outputs: Outputs) -> dict[int, StreamMerger]:
    """Returns who merges what, by process index."""
    if outputs == "merged":
        return dict.fromkeys(processes, StreamMerger(processes))
    shown = processes if outputs == "all" else processes[:1]
    return {index: StreamMerger([index]) for index in shown}


def as_reply(index: int, answer: object, seconds: float) -> CellReply:
    """Returns what a process answered as a reply: what it raised for the request is its error."""
    match answer:
        case CellReply():
            return answer
        case RequestFailed(error=error):
            return CellReply(index, None, error, seconds, 0.0, 0)
        case BaseException():
            said = str(answer)  # others are interrupted for it, so it comes first
            error = ProcessError(type(answer).__name__, said, said, said, at=0.0)
            return CellReply(index, None, error, seconds, 0.0, 0)
    raise TypeError(f"unexpected answer {answer!r}")
