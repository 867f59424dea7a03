"""Where a running cell's output goes; magics show it, a session keeps it for the result."""

from __future__ import annotations

import sys
from abc import abstractmethod
from typing import Protocol

from jaxnb.cells.card_waits import INTERRUPT, waits_text
from jaxnb.cells.merge_output import MergedLine
from jaxnb.model.cells import RichOutput
from jaxnb.model.group import Waits


class OutputSink(Protocol):
    """Where a running cell's output goes, as it comes.

    Attributes:
        shows_cards: Whoever shows this shows the cell's card too, which tells of pitfalls.
        interrupt_by: How the user interrupts the cell.
    """

    shows_cards: bool
    interrupt_by: str

    def begin(self, processes: tuple[int, ...]) -> None:
        """Takes which processes run the cell, before any output."""

    def tick(self) -> None:
        """Does what is due; called a few times a second while the cell runs."""

    def lines(self, lines: list[MergedLine]) -> None:
        """Takes lines that are final."""

    def live(self, lines: list[MergedLine]) -> None:
        """Takes the lines that are being rewritten now, all of them; they are not final."""

    def notice(self, text: str) -> None:
        """Takes a sentence of jaxnb's own about the running cell."""

    def waits(self, waits: Waits) -> None:
        """Takes where processes wait, again and again; then that they wait no more."""

    def display(self, process_index: int, output: RichOutput) -> None:
        """Takes a rich output of a process."""

    def clear(self, process_index: int, wait: bool) -> None:
        """Takes a process's wish to clear its output so far; with ``wait``, at its next."""


class NoSink:
    """Drops everything: the result holds it all the same. A base for sinks that take a part."""

    shows_cards = False
    interrupt_by = INTERRUPT

    def begin(self, processes: tuple[int, ...]) -> None:
        """Does nothing."""

    def tick(self) -> None:
        """Does nothing."""

    def lines(self, lines: list[MergedLine]) -> None:
        """Does nothing."""

    def live(self, lines: list[MergedLine]) -> None:
        """Does nothing."""

    def notice(self, text: str) -> None:
        """Does nothing."""

    def waits(self, waits: Waits) -> None:
        """Does nothing."""

    def display(self, process_index: int, output: RichOutput) -> None:
        """Does nothing."""

    def clear(self, process_index: int, wait: bool) -> None:
        """Does nothing."""


STILL_SECONDS = 10.0
"""Where processes are that wait for nobody is said after so long at one line."""


class SaysWaits:
    """Says once where processes wait, for who shows nothing in place.

    Attributes:
        interrupt_by: How the user interrupts the cell.
    """

    interrupt_by = INTERRUPT
    _told: frozenset[object] = frozenset()

    @abstractmethod
    def notice(self, text: str) -> None:
        """Shows a sentence of jaxnb's own."""

    def waits(self, waits: Waits) -> None:
        """Says where processes are, each state once: a loop has its straggler again and again."""
        seconds = max((each.seconds for each in waits.places), default=0.0)
        if waits.has_ended or (waits.is_neutral and not waits.waiting and seconds < STILL_SECONDS):
            return
        where = frozenset((each.processes, each.place, each.waits) for each in waits.places)
        state = where, waits.reason, waits.silent
        if state not in self._told:
            self._told |= {state}
            self.notice(waits_text(waits, self.interrupt_by))


class StderrNotices(SaysWaits, NoSink):
    """Shows jaxnb's own sentences on standard error, and nothing else."""

    def notice(self, text: str) -> None:
        """Shows a sentence."""
        sys.stderr.write(f"jaxnb: {text}\n")
        sys.stderr.flush()


class ScriptNotices(StderrNotices):
    """The same, for who has called :meth:`Session.run` and given nothing to show output with.

    A cell that will not end says so here too. What is to be warned of when it has ended is a
    Python warning instead.
    """
