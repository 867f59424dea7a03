"""What is found out of a cell that has ended: where its processes parted, what is not equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jaxnb.arrays import unequal
from jaxnb.cells.collected import Collected
from jaxnb.cells.outcome import caught_text, stopped_text
from jaxnb.cells.running import RunningCell
from jaxnb.cells.sinks import OutputSink, ScriptNotices
from jaxnb.launch.deaths import dead_processes
from jaxnb.lockstep import divergence
from jaxnb.lockstep.provenance import differing_arguments, differing_names, made_in
from jaxnb.model.dispatches import (
    Difference,
    Dispatch,
    Divergence,
    ProgramDifference,
    Recording,
    Side,
    UnequalInput,
)
from jaxnb.model.scripts import the_cell
from jaxnb.pitfalls import nans
from jaxnb.session.group import Life
from jaxnb.session.reach import Reach
from jaxnb.session.results import Findings
from jaxnb.session.unequal_inputs import unequal_inputs, value_apart


class Examiner:
    """Asks the processes of a cell, around their main threads, for what explains it.

    Args:
        life: The group.
        reach: Reaches its processes.
    """

    def __init__(self, life: Life, reach: Reach) -> None:
        self._life, self._reach = life, reach
        self._told: set[tuple[Any, ...]] = set()

    def examine(
        self,
        running: RunningCell,
        collected: Collected,
        sink: OutputSink,
        *,
        was_cut: bool,
        was_interrupted: bool,
        is_apart: bool,
    ) -> Findings:
        """Returns what is found, and tells it beside the cell's output, but for unequal names.

        Args:
            running: The cell.
            collected: What its processes have sent.
            sink: Where its output goes: a script is warned instead, and a card shows programs.
            was_cut: Whether it was interrupted, or a process has died.
            was_interrupted: Whether it was interrupted, for whatever reason.
            is_apart: Whether a computation has failed on some processes only.
        """
        is_script = isinstance(sink, ScriptNotices)
        is_recorded = self._reach.is_recorded(collected.request)
        stopped = self._stopped(collected)
        if stopped is not None and stopped.program is not None and not sink.shows_cards:
            running.notice(_programs_text(stopped.program))  # a card has it, folded
        parted = None
        if is_recorded and not (was_cut or collected.errors):
            parted = self._swapped(collected)
        if parted is not None and not is_script:
            running.notice(divergence.describe(parted))
        if caught := caught_text(collected.replies):
            running.notice(caught)
        found: tuple[UnequalInput, ...] = ()
        suspect = ""
        if is_recorded and running.abandoned is None:
            if found := self._unequal(collected):
                for role in dict.fromkeys(each.array.role for each in found):
                    those = [each for each in found if each.array.role == role]
                    running.notice(unequal.describe(those, collected.request.cell))
            suspect = value_apart(collected.replies)
        is_alike = not (was_cut or collected.errors or stopped or parted)
        names = () if is_alike or not is_recorded else self._unequal_names(running, collected)
        seen = [each.nan for each in collected.replies.values() if each.nan is not None]
        first_nan = nans.first_of(collected.request.cell, seen)
        if first_nan is not None and not is_script:
            running.notice(str(first_nan))
        if was_interrupted and not (names or is_apart) and is_recorded:
            last = self._last_of_all(collected)
            if last is not None:
                running.notice(stopped_text(last))
        return Findings(stopped, parted, found, suspect, names, first_nan)

    def _recordings(self, processes: Sequence[int]) -> dict[int, Recording]:
        return self._reach.told(processes, "recording")

    def _stopped(self, collected: Collected) -> Divergence | None:
        """Returns why a cell's processes did not agree, if they did not.

        How programs of one name and of equal shapes differ is shown: else the message says it.
        """
        errors = collected.errors
        stopped = [i for i, error in errors.items() if error.type_name == "DivergenceError"]
        if not stopped:
            return None
        recordings = self._recordings(stopped)
        at = {i: each.refused for i, each in recordings.items() if each.refused is not None}
        if not at:
            return None
        notes = {i: e.ending for i, e in errors.items() if i not in stopped}
        missing = set(range(self._life.num_processes)) - collected.replies.keys()
        notes |= dict.fromkeys(missing, f"was not asked to run {the_cell()}")
        found = divergence.refused(collected.request.cell, at, notes)
        if found.kind == "inputs":
            made = next(iter(at.values()))
            who = made.processes
            given = self._reach.told(who, "arguments", processes=who, number=made.number)
            found = replace(found, differences=differing_arguments(given))
        if found.kind == "computation" and len({each.name for each in at.values()}) == 1:
            found = replace(found, program=self._difference(found.sides))
        return found

    def _difference(self, sides: Sequence[Side]) -> ProgramDifference | None:
        """Asks processes for the programs that they were to dispatch in place of one another."""
        asked = divergence.programs_to_compare(sides)
        lines = {
            who: self._reach.told(who[:1], "program", fingerprint=asked[who]).get(who[0], [])
            for who in asked
        }
        return divergence.difference(lines)

    def _swapped(self, collected: Collected) -> Divergence | None:
        """Returns where the same places of a cell began to dispatch in another order.

        What they dispatched was the same, so nothing has stopped them.
        """
        for processes in divergence.swapped(collected.trails):
            recordings = self._recordings(processes)
            found = divergence.first_swapped(collected.request.cell, processes, recordings)
            if found is not None:
                return found
        return None

    def _unequal(self, collected: Collected) -> tuple[UnequalInput, ...]:
        """Returns the replicas that a cell was to compute with, or has made, and are not equal."""
        gone = dead_processes(self._life.deaths) | collected.silent
        replies = {i: reply for i, reply in collected.replies.items() if i not in gone}
        # What comes out of a program may be told a cell later; of the others each cell tells.
        found = [
            each
            for each in unequal_inputs(replies, self._life.sentinels)
            if each.array.role != "result" or each.array.key not in self._told
        ]
        self._told.update(each.array.key for each in found)
        return tuple(found)

    def _unequal_names(self, running: RunningCell, collected: Collected) -> tuple[Difference, ...]:
        """Returns the names that hold parts of different arrays since this cell.

        A cell that has ended alike on all processes leaves none. Who has died, or has not come
        back, is not asked: that would wait for one that is stopped.
        """
        deaths = self._life.deaths
        if running.abandoned is not None or any(d.role != "engine" for d in deaths):
            return ()
        unknown = dead_processes(deaths) | collected.silent
        known = [i for i in collected.replies if i not in unknown]
        return self.names_since(collected.request.cell, known)

    def names_since(
        self, cell: int, processes: Sequence[int] | None = None
    ) -> tuple[Difference, ...]:
        """Returns the names that hold parts of different arrays, and were bound in a cell.

        Args:
            cell: The cell's number.
            processes: Who is asked; all by default.
        """
        asked = range(self._life.num_processes) if processes is None else processes
        return made_in(cell, differing_names(self._reach.told(asked, "bound")))

    def _last_of_all(self, collected: Collected) -> Dispatch | None:
        """Returns the dispatch after which all processes of an interrupted cell have stopped."""
        errors = [collected.errors.get(i) for i in collected.replies]
        if {error and error.type_name for error in errors} != {"KeyboardInterrupt"}:
            return None
        who = tuple(sorted(collected.replies))
        trails = collected.trails
        counts = {i: [t.count for t in trails[i] if t.processes == who] for i in who}
        if not counts[who[0]] or any(each != counts[who[0]] for each in counts.values()):
            return None
        known = [d for each in self._recordings(who[:1]).values() for d in each.dispatches]
        place = who, counts[who[0]][0]
        return next((d for d in known if (d.processes, d.number) == place), None)


def _programs_text(difference: ProgramDifference) -> str:
    said = "The processes were about to dispatch programs that are not the same."
    return f"{said} {difference.summary}\n{divergence.text_of(difference)}"
