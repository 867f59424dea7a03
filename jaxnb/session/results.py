"""The result of a cell, with all that was found out about it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from jaxnb.arrays import unequal
from jaxnb.arrays.blocks import placing
from jaxnb.arrays.lost import Gather
from jaxnb.arrays.pulling import CellKey, Puller
from jaxnb.cells.outcome import caught_text, stopped_text
from jaxnb.cells.result import CellResult, ProcessResult, place_of
from jaxnb.cells.running import Collected, RunningCell
from jaxnb.debugging import steps
from jaxnb.launch.deaths import dead_processes
from jaxnb.lockstep import divergence
from jaxnb.lockstep.provenance import apart_text, differing_arguments, differing_names, made_in
from jaxnb.model.arrays import PackRequest
from jaxnb.model.cells import CellReply, ValueInfo
from jaxnb.model.dispatches import (
    Argument,
    Cause,
    Difference,
    Dispatch,
    Divergence,
    Recording,
    UnequalInput,
)
from jaxnb.model.insight import Pitfall
from jaxnb.model.scripts import the_cell
from jaxnb.pitfalls import findings
from jaxnb.pitfalls.findings import FirstNan
from jaxnb.session.group import Life
from jaxnb.session.interrupts_and_timeouts import Supervisor
from jaxnb.session.reach import Reach

DIGEST_SECONDS = 30.0
"""A process that is asked for digests of arrays' bytes, or for their names, reads much memory."""


def value_apart(replies: Mapping[int, CellReply]) -> str:
    """Returns of what parts a cell's value is made, if these are of several arrays; else nothing.

    Arrays of which each process has the whole are not meant: their bytes are compared. Nor are
    arrays over other devices on other processes: these are several arrays, and not one.
    """
    held = [_spread(reply.value) for reply in replies.values() if reply.value is not None]
    who = [i for i, reply in replies.items() if reply.value is not None]
    if len(held) < 2 or len(set(map(len, held))) > 1:
        return ""
    one: dict[object, dict[int, Argument | None]] = {}
    for i, arrays in zip(who, held, strict=True):
        for k, (where, source) in enumerate(arrays):
            one.setdefault((k, where), {})[i] = source
    return next(filter(None, map(apart_text, one.values())), "")


def _spread(info: ValueInfo) -> list[tuple[object, Argument | None]]:
    """Returns where each array of a value lies, and where it came from."""
    arrays = info.arrays or (() if info.array is None else (info.array,))
    return [(placing(each), None if each.fully_replicated else each.source) for each in arrays]


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found of a cell that has ended; attributes are those of :class:`CellResult`.

    Attributes:
        stopped: Where the processes were about to part, of which nothing has run.
    """

    stopped: Divergence | None = None
    unequal: tuple[UnequalInput, ...] = ()
    suspect: str = ""
    unequal_names: tuple[Difference, ...] = ()
    first_nan: FirstNan | None = None


@dataclass(frozen=True, slots=True)
class Ran:
    """A request that was run.

    Attributes:
        running: It, as it ran.
        generation: The group's.
        starts: How often its processes had been started.
        collected: What its processes have sent.
        findings: What was found of it.
        supervisor: How the wait for it ended.
        computed: What it has dispatched that had not ended, in words; empty if it was not cut.
    """

    running: RunningCell
    generation: int
    starts: int
    collected: Collected
    findings: Findings
    supervisor: Supervisor
    computed: str = ""

    @property
    def was_cut(self) -> bool:
        """Whether it was interrupted, or nobody waits for it any more."""
        return self.supervisor.interrupted or self.running.abandoned is not None

    @property
    def cause(self) -> Cause | Literal[""]:
        """Why its processes diverged, or waited without end; empty if neither."""
        if self.findings.stopped is not None:
            return self.findings.stopped.cause
        return self.running.wait_cause if self.was_cut else ""


def result_of(
    ran: Ran,
    num_processes: int,
    puller: Puller,
    pitfalls: tuple[Pitfall, ...] = (),
    cause: Cause | Literal[""] = "",
) -> CellResult:
    """Returns what a cell did.

    Args:
        ran: The cell.
        num_processes: Size of the group.
        puller: Fetches values that have stayed on the processes.
        pitfalls: Those that no earlier cell has reported.
        cause: Why its processes diverged, or waited until they were interrupted.
    """
    collected, found = ran.collected, ran.findings
    request, replies = collected.request, collected.replies
    key = CellKey(request.cell, ran.generation)
    gather = partial(puller.gather, request.request_id, key)

    def fetch(index: int, digest: bytes, gather: Gather | None) -> Any:
        asked = PackRequest(transfer=uuid.uuid4().hex, cell=request.request_id, digest=digest)
        return puller.cell_value(index, asked, key, gather)

    holders = _holders(replies)
    trails = {i: each.steps for i, each in replies.items() if each.steps is not None}
    per_process = {
        index: ProcessResult(
            process_index=index,
            value_info=_with_suspect(reply.value, found.suspect),
            stdout=collected.texts["stdout"][index],
            stderr=collected.texts["stderr"][index],
            displays=collected.displays[index],
            error=reply.error,
            seconds=reply.seconds,
            compile_seconds=reply.compile_seconds,
            compiles=reply.compiles,
            loads=reply.loads,
            memory=reply.memory,
            computes=reply.computes,
            fetch=partial(fetch, index, reply.value.digest if reply.value else b""),
            gather=partial(gather, holders[index]),
        )
        for index, reply in replies.items()
    }
    return CellResult(
        cell=request.cell,
        code=request.code,
        per_process=per_process,
        num_processes=num_processes,
        seconds=collected.seconds,
        stdout=collected.merged["stdout"],
        stderr=collected.merged["stderr"],
        divergence=found.stopped,
        unequal_names=found.unequal_names,
        pitfalls=pitfalls,
        first_nan=found.first_nan,
        timing=collected.timing if request.calls != 0 else None,
        gather=partial(gather, tuple(replies)),
        unequal=found.unequal,
        cause=cause,
        suspect=found.suspect,
        steps=steps.joined(trails) if request.steps else None,
    )


def _with_suspect(info: ValueInfo | None, suspect: str) -> ValueInfo | None:
    if info is None or info.array is None or not suspect:
        return info
    return replace(info, array=replace(info.array, suspect=info.array.suspect or suspect))


def _holders(replies: Mapping[int, CellReply]) -> dict[int, tuple[int, ...]]:
    """Returns by process whom the array is read from that it has as its value.

    Where processes have several arrays, each over some of them, those; of one array each process's
    own part, as the result has the whole.
    """
    places = {i: place_of(reply.value) for i, reply in replies.items()}
    at: dict[object, list[int]] = {}
    for i, place in places.items():
        at.setdefault(place, []).append(i)
    return {
        i: (i,) if place is None or len(at) == 1 else tuple(at[place])
        for i, place in places.items()
    }


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
        self, running: RunningCell, collected: Collected, *, was_interrupted: bool, is_apart: bool
    ) -> Findings:
        """Returns what is found, and shows it beside the cell's output, but for unequal names.

        Args:
            running: The cell.
            collected: What its processes have sent.
            was_interrupted: Whether it was interrupted, for whatever reason.
            is_apart: Whether a computation has failed on some processes only.
        """
        is_recorded = self._reach.is_recorded(collected.request)
        stopped = self._stopped(collected)
        if stopped is not None and stopped.program is not None and not running.is_shown:
            running.notice(  # a card has it, folded
                "The processes were about to dispatch programs that are not the same. "
                f"{stopped.program.summary}\n{divergence.text_of(stopped.program)}"
            )
        if caught := caught_text(collected.replies):
            running.notice(caught)
        found: tuple[UnequalInput, ...] = ()
        suspect = ""
        if is_recorded and running.abandoned is None:
            found = self._unequal(collected)
            for role in dict.fromkeys(each.array.role for each in found):
                those = [each for each in found if each.array.role == role]
                running.notice(unequal.describe(those, collected.request.cell))
            suspect = value_apart(collected.replies)
        has_failed = was_interrupted or self._life.deaths or collected.errors or stopped
        names = self._unequal_names(running, collected) if has_failed and is_recorded else ()
        seen = [each.nan for each in collected.replies.values() if each.nan is not None]
        first_nan = findings.first_of(collected.request.cell, seen)
        if first_nan is not None and not running.is_script:
            running.notice(str(first_nan))
        if was_interrupted and not (names or is_apart) and is_recorded:
            last = self._last_of_all(collected)
            if last is not None:
                running.notice(stopped_text(last))
        return Findings(stopped, found, suspect, names, first_nan)

    def _stopped(self, collected: Collected) -> Divergence | None:
        """Returns why a cell's processes did not agree, if they did not.

        How programs of one name and of equal shapes differ is shown: else the message says it.
        """
        errors = collected.errors
        stopped = [i for i, error in errors.items() if error.type_name == "DivergenceError"]
        if not stopped:
            return None
        recordings: dict[int, Recording] = self._reach.told(stopped, "recording")
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
            asked = divergence.programs_to_compare(found.sides)
            lines = {
                who: self._reach.told(who[:1], "program", fingerprint=asked[who]).get(who[0], [])
                for who in asked
            }
            found = replace(found, program=divergence.difference(lines))
        return found

    def _unequal(self, collected: Collected) -> tuple[UnequalInput, ...]:
        """Returns the replicas that a cell was to compute with, or has made, and are not equal."""
        gone = dead_processes(self._life.deaths) | collected.silent
        replies = {i: reply for i, reply in collected.replies.items() if i not in gone}
        if not unequal.differ({i: reply.replicas for i, reply in replies.items()}):
            return ()
        digested = self._reach.told(replies, "digested", DIGEST_SECONDS)
        # What comes out of a program may be told a cell later; of the others each cell tells.
        found = [
            each
            for each in unequal.unequal_inputs(digested)
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
        trails = {i: reply.trails for i, reply in collected.replies.items()}
        counts = {i: [t.count for t in trails[i] if t.processes == who] for i in who}
        if not counts[who[0]] or any(each != counts[who[0]] for each in counts.values()):
            return None
        recordings: dict[int, Recording] = self._reach.told(who[:1], "recording")
        known = [d for each in recordings.values() for d in each.dispatches]
        place = who, counts[who[0]][0]
        return next((d for d in known if (d.processes, d.number) == place), None)
