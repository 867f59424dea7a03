"""Pure: a computation that has failed on some processes only, and what others wait in since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jaxnb.labels import capitalized, processes_label
from jaxnb.lockstep.messages import Processes


class Key(NamedTuple):
    """A dispatch, on all processes that it spans.

    Attributes:
        run: A number for the run of the cell.
        processes: Those that it spans.
        number: Which one over these it is in that run.
    """

    run: int
    processes: Processes
    number: int

    def flat(self) -> tuple[int, ...]:
        """Returns it as integers only, which have the same hash in every process."""
        return self.run, self.number, *self.processes


class Begun(NamedTuple):
    """A dispatch that all had agreed on.

    Attributes:
        key: Which one it is.
        name: The computation's name: ``"jit(step)"``.
        cell: The cell's number.
        line: The cell's line; None outside of its code.
    """

    key: Key
    name: str
    cell: int
    line: int | None

    def __str__(self) -> str:
        line = "" if self.line is None else f" at line {self.line}"
        return f"`{self.name}`{line} of cell [{self.cell}]"


class Ends(NamedTuple):
    """How the last dispatches of a process have ended.

    Attributes:
        failed: Those that raised, or whose results are an error.
        pending: Those that are being made, or whose results are not there yet.
    """

    failed: tuple[Begun, ...] = ()
    pending: tuple[Begun, ...] = ()


class Half(NamedTuple):
    """A dispatch that has failed on some processes only, and what others wait in since.

    Attributes:
        what: The dispatch.
        failed: Where it has failed.
        pending: Where it is pending, or a later one is that these others have ended.
        waits_in: What is pending there.
    """

    what: Begun
    failed: Sequence[int]
    pending: Sequence[int]
    waits_in: Begun

    def __str__(self) -> str:
        failed, pending = processes_label(self.failed), processes_label(self.pending)
        wait = "waits" if len(self.pending) == 1 else "wait"
        if self.waits_in.key == self.what.key:
            return (
                f"{capitalized(failed)} failed in {self.what}, which {pending} had begun, too, "
                f"and {wait} in: there it never ends"
            )
        return (
            f"{capitalized(failed)} failed in {self.what}, and {pending} did not: collectives have "
            f"met the wrong ones since, so that what was computed from there on may be wrong. "
            f"{capitalized(pending)} {wait} in {self.waits_in} for ever"
        )


def half_made(ends: Mapping[int, Ends]) -> Half | None:
    """Returns a dispatch that has failed on some processes only, so that others wait for ever.

    In that, or in a later one, in which those have met what was meant for another. If it failed
    after the processes had met in it, all others end soon, and so do later ones.

    Args:
        ends: How the last dispatches of each process have ended.
    """
    failed: dict[Begun, list[int]] = {}
    for index, its in sorted(ends.items()):
        for begun in its.failed:
            failed.setdefault(begun, []).append(index)
    for what, those in sorted(failed.items(), key=lambda each: _order(each[0])):
        unended = {each.key for each in ends[those[0]].pending}
        stuck: dict[Begun, list[int]] = {}
        for index in sorted(ends.keys() - set(those)):
            for begun in ends[index].pending:
                is_later = begun.key.processes == what.key.processes
                is_later &= _order(begun) >= _order(what)
                if is_later and begun.key not in unended:
                    stuck.setdefault(begun, []).append(index)
                    break
        if stuck:
            waits_in = min(stuck, key=_order)
            return Half(what, those, stuck[waits_in], waits_in)
    return None


def _order(begun: Begun) -> tuple[int, int]:
    return begun.cell, begun.key.number
