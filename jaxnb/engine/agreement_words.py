"""Strict mode: what processes tell each other before a dispatch, and how it is written."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from functools import cached_property

from jaxnb.model import Dispatch

END = b"\n"
"""What ends a message; JSON has none within."""

WORD, LEFT, REFUSED = "word", "left", "refused"
TAKEN_BACK, GIVEN_UP = "taken back", "given up"
"""What is said: what is about to be dispatched; that this process has left the cell; that it was
interrupted, and is about to dispatch something else. That what was said is not made now; that it is
not, nor anything more in this cell, as the processes do not agree."""


@dataclass(frozen=True)
class Attempt:
    """An attempt to agree on a dispatch.

    Attempts are numbered by the processes that they are about. One on which all agree has ended for
    all of these; what was interrupted may be made again, with the same number.

    Attributes:
        run: The cell.
        number: Which attempt over its processes this is, from 1.
        dispatch: What is to be dispatched.
    """

    run: str
    number: int
    dispatch: Dispatch

    @classmethod
    def of_word(cls, word: bytes) -> Attempt:
        """Returns what another process is about to do."""
        run, _, processes, number, *what = json.loads(word)
        of_cell, name, fingerprint, shapes, line, inputs, replicas = what
        dispatch = Dispatch(
            number=of_cell,
            name=name,
            fingerprint=fingerprint,
            shapes=shapes,
            processes=tuple(processes),
            line=line,
            seconds=0.0,
            inputs=inputs,
            replicas=tuple((tuple(holders), value) for holders, value in replicas),
        )
        return cls(run, number, dispatch)

    @cached_property
    def word(self) -> bytes:
        """What is said to the others: the same on all, if they do the same at the same line."""
        made = self.dispatch
        what = [made.number, made.name, made.fingerprint, made.shapes, made.line, made.inputs]
        return encoded(self.run, WORD, made.processes, self.number, *what, made.replicas)

    @property
    def processes(self) -> tuple[int, ...]:
        """The processes that it is about."""
        return self.dispatch.processes

    @property
    def taken_back(self) -> bytes:
        """What says that it is not made now; it may be made again."""
        return encoded(self.run, TAKEN_BACK, "", self.processes, self.number)

    def given_up(self, why: str) -> bytes:
        """Returns what says that it is not made, nor anything more in this cell."""
        return encoded(self.run, GIVEN_UP, why, self.processes, self.number)

    def is_equal(self, its: Attempt) -> bool:
        """Whether another process is about to do the same; it may do so at another line.

        As many dispatches must have come before: what one process has made alone, as an interrupt
        kept the others from it, would be paired with the next one of these.
        """
        return self._identity() == its._identity()

    def _identity(self) -> tuple[object, ...]:
        made = self.dispatch
        return (made.processes, self.number, made.number, made.fingerprint, made.inputs)

    def is_before(self, its: Attempt) -> bool:
        """Whether another process has gone on to a later attempt over the same processes."""
        return its.processes == self.processes and its.number > self.number


def encoded(*items: object) -> bytes:
    """Returns a message."""
    return json.dumps(items).encode() + END


def beginning(*items: object) -> bytes:
    """Returns what all messages begin with that begin with these items."""
    return json.dumps(items).encode().removesuffix(b"]")


def checksum(word: bytes) -> int:
    """Returns what tells one word from another."""
    return zlib.crc32(word)
