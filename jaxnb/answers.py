"""Pure: what comes from the processes of one cell, taken apart and put into one form."""

from __future__ import annotations

from jaxnb.arrays import lying
from jaxnb.display.merge import StreamMerger
from jaxnb.labels import Outputs
from jaxnb.model import CellReply, ProcessError, RequestFailed, StreamChunk, ValueInfo
from jaxnb.transport.client import Event

PIECE_CHARS = 1 << 18
"""Longer text is taken in pieces, so that a step can end between them."""

NO_ANSWER = "NoAnswer"
"""What stands for the error of a process that was given up while it was in the cell."""

NOT_ENDED = "did not end the cell"
"""What is said of such a process."""


def place_of(value: ValueInfo | None) -> object:
    """Returns which array a value is, if it is one: processes may hold several, each of a mesh."""
    array = value.array if value is not None else None
    return None if array is None else lying(array)


def ending_of(reply: CellReply) -> str:
    """Returns how a cell ended on a process: ``"raised ValueError at line 3"``; empty if well."""
    if reply.error is None:
        return ""
    return NOT_ENDED if reply.error.type_name == NO_ANSWER else reply.error.ending


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
            error = ProcessError(type(answer).__name__, str(answer), str(answer), str(answer))
            return CellReply(index, None, error, seconds, 0.0, 0)
    raise TypeError(f"unexpected answer {answer!r}")
