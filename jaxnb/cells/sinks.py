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


class SaysWaits:
    """Says once where processes wait, for who shows nothing in place.

    Attributes:
        interrupt_by: How the user interrupts the cell.
    """

    interrupt_by = INTERRUPT
    _alarm = False  # whether it is being said now that all wait
    _told: frozenset[object] = frozenset()

    @abstractmethod
    def notice(self, text: str) -> None:
        """Shows a sentence of jaxnb's own."""

    def waits(self, waits: Waits) -> None:
        """Says where all processes wait, until they have gone on."""
        if waits.dispatches is not None:
            return
        if waits.is_neutral:  # a straggler in each step of a loop is told of once
            at_work = {(each.processes, each.place) for each in waits.at_work}
            who = frozenset(at_work), frozenset((w.processes, w.place) for w in waits.waits)
            is_new, self._alarm = who not in self._told, False
            self._told |= {who}
        else:
            is_new = not self._alarm
            self._alarm = not waits.has_ended
        if is_new and not waits.has_ended:
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
