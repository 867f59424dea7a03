"""How a session runs a cell on its processes, and what it does if that left them out of step."""

from __future__ import annotations

import contextlib
import itertools
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

from jaxnb import divergence, nans, programs
from jaxnb.deaths import dead_processes
from jaxnb.errors import JaxnbError
from jaxnb.labels import Outputs
from jaxnb.life import COME_BACK_SECONDS, Life
from jaxnb.lockstep.interrupting import interrupt
from jaxnb.lockstep.place import conductor_beside
from jaxnb.model import CellRequest, Divergence, PackRequest, ProcessReport, Recording, Side
from jaxnb.model.dispatches import AGREED
from jaxnb.model.nans import NanFound
from jaxnb.model.origins import Difference
from jaxnb.model.programs import ProgramDifference
from jaxnb.model.stopping import HoldState
from jaxnb.options import process_indices
from jaxnb.outcome import recovered_text
from jaxnb.patience import Patience
from jaxnb.provenance import (
    differing_arguments,
    differing_names,
    made_in,
    unequal_names_text,
)
from jaxnb.pulling import CellKey
from jaxnb.result import CellResult
from jaxnb.running import RunningCell
from jaxnb.settings import KnownSettings
from jaxnb.sinks import OutputSink, ScriptNotices
from jaxnb.starting import untold
from jaxnb.suspicion import of_same_inputs, suspicion, with_apart
from jaxnb.timing import calls_to_come
from jaxnb.transport.client import Exchange, Transport

COME_BACK_AGAIN_SECONDS = 0.5
"""The same for a process that has not answered an interrupt for seconds, and another one."""

WATCH_AFTER_SECONDS = 0.05
"""In a cell that runs for longer the processes look at their main threads now and then."""


@dataclass(frozen=True, slots=True)
class RanRequest:
    """A request that was run.

    Attributes:
        running: It.
        result: What it did.
        patience: How the wait for it ended.
        parted: Where the processes parted, if that is to be told.
        unequal: What is to be told of inputs that were not equal.
    """

    running: RunningCell
    result: CellResult
    patience: Patience
    parted: Divergence | None
    unequal: str = ""


class Cells(Life):
    """The part of a session that has its processes run one cell, or one again."""

    _marks: Mapping[int, str] = MappingProxyType({})  # what rests on unequal inputs
    _marked: tuple[int, ...] = ()  # the group's generation and the processes that have been told

    @cached_property
    def _settings(self) -> KnownSettings:
        return KnownSettings()

    @cached_property
    def _serials(self) -> Iterator[int]:
        return itertools.count(1)

    def interrupt_in_lockstep(self, request: CellRequest) -> None:
        """Has a cell's processes raise KeyboardInterrupt after the same dispatch."""
        conductor = conductor_beside(self._group.service_address)
        with contextlib.suppress(OSError):  # it has ended: the group's death is told of
            interrupt(conductor, self.num_processes, request.serial)

    def _take_reports(self, transport: Transport, reports: list[ProcessReport]) -> None:
        super()._take_reports(transport, reports)
        self._settings.joined(reports)

    def recordings(self, processes: Iterable[int] | None = None) -> dict[int, Recording]:
        """Returns what processes have dispatched together in their last cell, or in this one.

        Answered while they wait in C++ too. One that is silent for some seconds is left out.

        Args:
            processes: Process indices; all by default.
        """
        return self._sentinels.recordings(process_indices(processes, self.num_processes))

    @property
    def computes_in_sight(self) -> bool:
        """Whether the system tells that devices compute: those of the CPU use its time."""
        return self._placement.platform == "cpu"

    def end_ring(self, processes: Iterable[int], text: str) -> list[int]:
        """Has what processes wait to agree on end with a message, once one is interrupted.

        Returns:
            Those that have been told.
        """
        return self._sentinels.end_ring(processes, text)

    def hold(
        self, processes: Iterable[int], cell: str, number: int, over: Sequence[int]
    ) -> dict[int, HoldState]:
        """Has processes hold before their next dispatch, for a while; returns who has done so."""
        return self._sentinels.hold(processes, cell, number, over)

    def stop_at(
        self, processes: Iterable[int], cell: str, number: int, over: Sequence[int], count: int
    ) -> dict[int, HoldState]:
        """Has processes raise KeyboardInterrupt after so many dispatches in their cell."""
        return self._sentinels.stop_at(processes, cell, number, over, count)

    def release(self, processes: Iterable[int]) -> None:
        """Has processes forget that they were to hold, or to stop at a dispatch."""
        self._sentinels.release(set(processes) - self._lifecycle.dead)

    def _run_request(
        self,
        request: CellRequest,
        sink: OutputSink,
        outputs: Outputs,
        interrupted: threading.Event,
        timeout: float | None,
    ) -> RanRequest:
        """Runs a cell, once the turn is ours; the group is in step then, if that is possible."""
        self._hand_on_marks()
        running = self._send_cell(request, sink, outputs, interrupted)
        result, patience = self._wait(running, timeout)
        self._settings.replied(running.replies, running.silent)
        was_cut = patience.interrupted or bool(running.waiting_for or running.freed or self.deaths)
        result = self._last_result = self._compared(running, result, was_cut)
        parted = result.divergence
        is_mismatch = parted is not None and (not was_cut or divergence.is_mismatch(parted))
        result, unequal = self._suspected(running, result, is_diverged=is_mismatch)
        if parted is not None and was_cut and not divergence.is_mismatch(parted):
            # The user stopped them anywhere, or some failed and others waited for them: that some
            # dispatched less is nothing to warn of.
            parted = None
        if parted is not None and not isinstance(sink, ScriptNotices):
            # A cell's card has the programs' differences, folded.
            tell = divergence.describe if sink.shows_cards else divergence.at_length
            running.notice(tell(parted))
        if unequal and (request.check in AGREED or not isinstance(sink, ScriptNotices)):
            running.notice(unequal)  # in strict mode the cell fails: it need not be warned of too
        if request.check in AGREED:
            result = self._last_result = self._with_refused(running, result)
        if (first := nans.first_of(result.cell, _nans(running))) is not None:
            result = self._last_result = replace(result, first_nan=first)
            if not isinstance(sink, ScriptNotices):
                running.notice(str(first))
        is_alike = not (was_cut or result.errors)
        tell_names = partial(unequal_names_text, result.cell, has_ended_alike=is_alike)
        if patience.gave_up:
            come_back_seconds = 0.0 if patience.ends_at_once else COME_BACK_AGAIN_SECONDS
            self._recover_after(running, result.unequal_names, tell_names, come_back_seconds)
        elif self._is_out_of_step(running, result, patience.interrupted):
            self._recover_after(running, result.unequal_names, tell_names)
        elif result.unequal_names:
            running.notice(tell_names(result.unequal_names))
        return RanRequest(running, result, patience, parted, unequal)

    def _may_repeat(self, ran: RanRequest, interrupted: threading.Event) -> bool:
        was_cut = ran.patience.interrupted or interrupted.is_set() or bool(self.deaths)
        failed = ran.result.errors or ran.running.sink_error or ran.running.abandoned
        return not (was_cut or failed or ran.parted) and self._lifecycle.state == "ready"

    def _run_repeats(
        self,
        first: RanRequest,
        sink: OutputSink,
        outputs: Outputs,
        interrupted: threading.Event,
        timeout: float | None,
    ) -> list[RanRequest]:
        """Runs a timed cell's other repeats, as many as its first one lets expect."""
        assert first.result.timing is not None
        calls = calls_to_come(first.result.timing)
        left = None if timeout is None else timeout - first.running.seconds
        if calls < 1 or (left is not None and left <= 0):
            return []
        request = replace(first.running.request, calls=calls, request_id=uuid.uuid4().hex)
        return [self._run_request(request, sink, outputs, interrupted, left)]

    def _send_cell(
        self,
        request: CellRequest,
        sink: OutputSink,
        outputs: Outputs,
        interrupted: threading.Event,
    ) -> RunningCell:
        request = replace(
            request,
            settings_differ=self._settings.may_change_programs(),
            serial=next(self._serials),
        )
        indices = list(request.ranks)
        assert self._transport is not None
        generation = self._generation
        exchange = Exchange()
        running = RunningCell(
            request,
            exchange,
            indices,
            self.num_processes,
            sink,
            fetch=partial(self._fetch, request, generation),
            gather=partial(
                self._puller.gather, request.request_id, CellKey(request.cell, generation)
            ),
            interrupted=interrupted,
            outputs=outputs,
        )
        self._current = running  # before the first process can be in the cell
        for index in indices:
            self._transport.send_to(exchange, index, request)
        if dropped := self._strays.move_to(exchange, indices):
            running.notice(f"{dropped} pieces of output that came between cells were dropped")
        return running

    def _wait(self, running: RunningCell, timeout: float | None) -> tuple[CellResult, Patience]:
        """Waits for a cell; returns its result, and how the wait ended."""
        patience = Patience(self, running, timeout)
        # To look at a thread takes a little of its time: not while calls are timed.
        is_watched = running.request.calls > 0
        try:
            while patience.go_on():
                running.step()
                if not is_watched and running.seconds > WATCH_AFTER_SECONDS:
                    is_watched = True
                    asked = running.waiting_for - dead_processes(self.deaths)
                    self._sentinels.watch(asked, running.request.request_id)
        finally:
            self._current = None
            self._left = running if running.waiting_for else None
            result = self._last_result = running.finish()
        return result, patience

    def _is_out_of_step(
        self, running: RunningCell, result: CellResult, was_interrupted: bool
    ) -> bool:
        """Whether collectives may be pending on some processes that others have not begun.

        They would pair with the wrong ones later, in silence. With one CPU device a process
        waits in C++ for its collective, and has been freed from it. With several, calls return
        before their collectives have run. What they have dispatched is compared; where it is
        not recorded, nobody knows how far each got when it was interrupted.
        """
        if self.deaths or self._lifecycle.state != "ready":
            return False
        if running.freed:
            return True
        if self._is_recorded(running.request):
            return result.divergence is not None and result.divergence.pending
        errors = [each.error for each in result.per_process.values()]
        ends = {error and (error.type_name, error.line) for error in errors}
        is_asynchronous = self._placement.devices_per_process > 1 and self.num_processes > 1
        return was_interrupted and (len(ends) > 1 or is_asynchronous)

    def _is_recorded(self, request: CellRequest) -> bool:
        return request.check != "off" and not any(r.unrecorded for r in self._reports)

    def _unequal_names(
        self, result: CellResult, was_cut: bool, asked: Sequence[int]
    ) -> tuple[Difference, ...]:
        """Returns the names that hold parts of different arrays since this cell.

        A cell that has ended alike on all processes leaves none.
        """
        if not (was_cut or result.errors or result.divergence is not None):
            return ()
        bound = self._sentinels.bound(asked)
        return made_in(result.cell, differing_names(bound))

    def _compared(self, running: RunningCell, result: CellResult, was_cut: bool) -> CellResult:
        """Compares what the processes dispatched together in a cell.

        What the dead have dispatched is lost with them. Who has not come back is not asked
        either: that would wait for one that is stopped.
        """
        if running.abandoned is not None or any(d.role != "engine" for d in self.deaths):
            return result  # all end, or have ended
        unknown = dead_processes(self.deaths) | running.silent
        asked = [i for i in result.per_process if i not in unknown]
        trails = {i: running.trails.get(i, ()) for i in range(self.num_processes)}
        if not self._is_recorded(running.request):
            return result
        if not unknown and divergence.agree(trails):
            names = self._unequal_names(result, was_cut, asked)
            return replace(result, unequal_names=names)
        recordings = {i: Recording(i, trails[i], ()) for i in asked}
        recordings |= self._sentinels.recordings(asked)
        notes = {i: "was not asked to run the cell" for i in trails if i not in result.per_process}
        notes |= {i: error.ending for i, error in result.errors.items()}
        same = of_same_inputs(recordings, unknown, self._sentinels)
        parted = divergence.compare(
            result.cell, recordings, notes, unknown, was_cut=was_cut, same=same
        )
        if parted is not None and (at := divergence.inputs_at(parted)) is not None:
            given = self._sentinels.arguments(at[0], at[1])
            parted = replace(parted, differences=differing_arguments(given))
        if parted is not None and parted.kind == "computation":
            parted = replace(parted, program=self._difference(parted.sides))
        result = replace(result, divergence=parted)
        names = self._unequal_names(result, was_cut, asked)
        return replace(result, unequal_names=names)

    def _difference(self, sides: Sequence[Side]) -> ProgramDifference | None:
        """Asks processes for the programs that they dispatched in place of one another."""
        asked = divergence.programs_to_compare(sides)
        lines = {who: self._sentinels.program(who[0], asked[who]) for who in asked}
        return programs.difference(lines)

    def _with_refused(self, running: RunningCell, result: CellResult) -> CellResult:
        """Returns a strict cell's result with why processes did not agree, if they did not.

        How the programs differ is shown.
        """
        refused = [i for i, error in result.errors.items() if error.type_name == "DivergenceError"]
        if not refused:
            return result
        recordings = self._sentinels.recordings(refused)
        at = {i: recordings[i].refused for i in recordings if recordings[i].refused is not None}
        if len({(each.processes, each.number) for each in at.values() if each is not None}) != 1:
            return result
        sides = divergence.sides(at, {})
        running.cause = divergence.cause_of(sides)
        found = self._difference(sides)
        if found is not None:
            said = "The processes were about to dispatch programs that are not the same."
            running.notice(f"{said} {found.summary}\n{programs.text_of(found)}")
        return replace(result, refused=running.cause)

    def _suspected(
        self, running: RunningCell, result: CellResult, *, is_diverged: bool
    ) -> tuple[CellResult, str]:
        """Compares the replicas that a cell has used, and has what rests on unequal ones marked.

        Returns:
            The result with that, and what is to be told of it.
        """
        gone = dead_processes(self.deaths) | running.silent
        if not self._is_recorded(running.request) or running.abandoned is not None:
            return result, ""
        living = [i for i in range(self.num_processes) if i not in gone]
        replies = {i: reply for i, reply in running.replies.items() if i not in gone}
        found = suspicion(result, replies, self._sentinels, living, is_diverged=is_diverged)
        result = self._last_result = with_apart(found.result)
        if found.marks:
            self._marks, self._marked = found.marks, self._pids()
        return result, found.notice

    def _hand_on_marks(self) -> None:
        """Tells processes that have replaced others what rests on unequal inputs."""
        if not self._marks or self._marked == (now := self._pids()):
            return
        if self._marked[0] != now[0]:  # a restart has left no array
            self._marks = {}
        else:
            self._sentinels.mark(range(self.num_processes), self._marks, {})
        self._marked = now

    def _pids(self) -> tuple[int, ...]:
        return (self._generation, *(report.pid for report in self._reports))

    def _recover_after(
        self,
        running: RunningCell,
        names: Sequence[Difference],
        tell_names: Callable[[Sequence[Difference]], str],
        come_back_seconds: float = COME_BACK_SECONDS,
    ) -> None:
        """Forms the group anew after a cell whose processes are out of step; tells what it cost."""
        try:
            recovered = self._reform(untold, come_back_seconds)
        except JaxnbError as error:
            running.notice(str(error))  # it says that the group could not be formed anew
            if names:
                running.notice(tell_names(names))
            return
        running.notice(recovered_text(recovered, names, tell_names))

    def _fetch(
        self, request: CellRequest, generation: int, index: int, digest: bytes, gather: Any
    ) -> Any:
        transfer = uuid.uuid4().hex
        asked = PackRequest(transfer=transfer, cell=request.request_id, digest=digest)
        return self._puller.cell_value(index, asked, CellKey(request.cell, generation), gather)


def _nans(running: RunningCell) -> list[NanFound]:
    return [each.nan for each in running.replies.values() if each.nan is not None]
