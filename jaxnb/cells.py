"""How a session runs a cell on its processes, and what it does if that left them out of step."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from jaxnb import divergence, nans, programs, unequal
from jaxnb.deaths import dead_processes
from jaxnb.errors import JaxnbError, RecoveryInterrupted
from jaxnb.labels import Outputs
from jaxnb.life import COME_BACK_SECONDS, Life
from jaxnb.lockstep.interrupting import interrupt
from jaxnb.lockstep.looking import Looker
from jaxnb.lockstep.place import conductor_beside
from jaxnb.model import (
    CellRequest,
    Dispatch,
    Divergence,
    PackRequest,
    ProcessReport,
    Recording,
    Side,
)
from jaxnb.model.nans import NanFound
from jaxnb.model.origins import Difference
from jaxnb.model.programs import ProgramDifference
from jaxnb.options import process_indices
from jaxnb.outcome import caught_text, stopped_text
from jaxnb.patience import Patience
from jaxnb.provenance import (
    differing_arguments,
    differing_names,
    made_in,
    unequal_names_text,
)
from jaxnb.pulling import CellKey
from jaxnb.recovery.card import recovered_text
from jaxnb.result import CellResult
from jaxnb.running import RunningCell
from jaxnb.settings import KnownSettings
from jaxnb.sinks import OutputSink, ScriptNotices
from jaxnb.starting import untold
from jaxnb.timing import calls_to_come
from jaxnb.transport.client import Exchange, Transport
from jaxnb.unequal_inputs import unequal_inputs, with_apart
from jaxnb.wire.sentinels import TOLD

WATCH_AFTER_SECONDS = 0.05
"""In a cell that runs for longer the processes look at their main threads now and then."""

WATCH_SECONDS = 0.2
"""The cell's output waits so long at most: who does not answer in time may watch all the same."""

RECORDING_SECONDS = 5.0
"""To look through compiled programs for collectives takes a while."""


@dataclass(frozen=True, slots=True)
class RanRequest:
    """A request that was run.

    Attributes:
        running: It.
        result: What it did.
        patience: How the wait for it ended.
        parted: Where the processes have dispatched the same in another order, if they have.
    """

    running: RunningCell
    result: CellResult
    patience: Patience
    parted: Divergence | None


class Cells(Life):
    """The part of a session that has its processes run one cell, or one again."""

    @cached_property
    def _settings(self) -> KnownSettings:
        return KnownSettings()

    def interrupt_in_lockstep(self, request: CellRequest) -> None:
        """Has a cell's processes raise KeyboardInterrupt after the same dispatch."""
        conductor = conductor_beside(self._group.service_address)
        with contextlib.suppress(OSError):  # it has ended: the group's death is told of
            interrupt(conductor, self.num_processes, request.serial)

    def looker(self, request: CellRequest) -> Looker | None:
        """Returns what asks the conductor who waits in a cell; None where it is not asked."""
        if not self._is_recorded(request) or self.num_processes < 2:
            return None
        return Looker(conductor_beside(self._group.service_address), self.num_processes)

    def _take_reports(self, transport: Transport, reports: list[ProcessReport]) -> None:
        super()._take_reports(transport, reports)
        self._settings.joined(reports)

    def recordings(self, processes: Iterable[int] | None = None) -> dict[int, Recording]:
        """Returns what processes have dispatched together in their last cell, or in this one.

        Answered while they wait in C++ too. One that is silent for some seconds is left out.

        Args:
            processes: Process indices; all by default.
        """
        return self._recordings(process_indices(processes, self.num_processes))

    def _recordings(self, processes: Iterable[int]) -> dict[int, Recording]:
        return self._ask(processes, "recording")

    def _ask(
        self,
        processes: Iterable[int],
        function: str,
        /,
        seconds: float | None = None,
        **data: Any,
    ) -> dict[int, Any]:
        """Returns what those processes tell of their cell that answer."""
        seconds = RECORDING_SECONDS if seconds is None else seconds
        return self._sentinels.ask(processes, f"{TOLD}.{function}", seconds=seconds, **data)

    def _run_request(
        self,
        request: CellRequest,
        sink: OutputSink,
        outputs: Outputs,
        interrupted: threading.Event,
        timeout: float | None,
    ) -> RanRequest:
        """Runs a cell, once the turn is ours; the group is in step then, if that is possible."""
        running = self._send_cell(request, sink, outputs, interrupted)
        result, patience = self._wait(running, timeout)
        self._settings.replied(running.replies, running.silent)
        was_cut = patience.interrupted or bool(running.waiting_for or self.deaths)
        result = self._last_result = self._diverged(running, result, shows_cards=sink.shows_cards)
        parted = None if was_cut or result.errors else self._swapped(running, result)
        if parted is not None:
            result = self._last_result = replace(result, divergence=parted)
            if not isinstance(sink, ScriptNotices):
                running.notice(divergence.describe(parted))
        if caught := caught_text(running.replies):
            running.notice(caught)
        result = self._unequal(running, result)
        names = self._unequal_names(running, result, was_cut)
        result = self._last_result = replace(result, unequal_names=names)
        if (first := nans.first_of(result.cell, _nans(running))) is not None:
            result = self._last_result = replace(result, first_nan=first)
            if not isinstance(sink, ScriptNotices):
                running.notice(str(first))
        if patience.interrupted and not names:
            last = self._last_of_all(running, result)
            if last is not None:
                running.notice(stopped_text(last))
        is_alike = not (was_cut or result.errors)
        tell_names = partial(unequal_names_text, result.cell, has_ended_alike=is_alike)
        if patience.gave_up:
            self._recover_after(running, result.unequal_names, tell_names, 0.0)
        elif self._is_out_of_step(running, result, patience.interrupted):
            self._recover_after(running, result.unequal_names, tell_names)
        elif result.unequal_names:
            running.notice(tell_names(result.unequal_names))
        return RanRequest(running, result, patience, parted)

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
        request = replace(request, serial=next(self._serials))
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
                    self._ask(asked, "watch", WATCH_SECONDS, request_id=running.request.request_id)
        finally:
            patience.close()
            self._current = None
            self._left = running if running.waiting_for else None
            result = self._last_result = running.finish()
        return result, patience

    def _is_out_of_step(
        self, running: RunningCell, result: CellResult, was_interrupted: bool
    ) -> bool:
        """Whether collectives may be pending on some processes that others have not begun.

        They would pair with the wrong ones later, in silence. Where processes agree on each
        dispatch there are none. Else nobody knows how far each got when it was interrupted: with
        several CPU devices calls return before their collectives have run.
        """
        if self.deaths or self._lifecycle.state != "ready":
            return False
        if self._is_recorded(running.request):
            return False
        errors = [each.error for each in result.per_process.values()]
        ends = {error and (error.type_name, error.line) for error in errors}
        is_asynchronous = self._placement.devices_per_process > 1 and self.num_processes > 1
        return was_interrupted and (len(ends) > 1 or is_asynchronous)

    def _is_recorded(self, request: CellRequest) -> bool:
        return request.check != "off" and not any(r.unrecorded for r in self._reports)

    def _diverged(
        self, running: RunningCell, result: CellResult, *, shows_cards: bool
    ) -> CellResult:
        """Returns a cell's result with why its processes did not agree, if they did not.

        How programs of one name and of equal shapes differ is shown: else the message says it.
        """
        stopped = [i for i, error in result.errors.items() if error.type_name == "DivergenceError"]
        if not stopped:
            return result
        recordings = self._recordings(stopped)
        at = {i: each.refused for i, each in recordings.items() if each.refused is not None}
        if not at:
            return result
        notes = {i: e.ending for i, e in result.errors.items() if i not in stopped}
        missing = set(range(self.num_processes)) - result.per_process.keys()
        notes |= dict.fromkeys(missing, "was not asked to run the cell")
        found = divergence.refused(result.cell, at, notes)
        if found.kind == "inputs":
            made = next(iter(at.values()))
            who = made.processes
            given = self._ask(who, "arguments", processes=who, number=made.number)
            found = replace(found, differences=differing_arguments(given))
        if found.kind == "computation" and len({each.name for each in at.values()}) == 1:
            found = replace(found, program=self._difference(found.sides))
        if found.program is not None and not shows_cards:  # the card has it, folded
            said = "The processes were about to dispatch programs that are not the same."
            text = programs.text_of(found.program)
            running.notice(f"{said} {found.program.summary}\n{text}")
        return replace(result, divergence=found)

    def _swapped(self, running: RunningCell, result: CellResult) -> Divergence | None:
        """Returns where the same places of a cell began to dispatch in another order.

        What they dispatched was the same, so nothing has stopped them.
        """
        if not self._is_recorded(running.request):
            return None
        for processes in divergence.swapped(running.trails):
            recordings = self._recordings(processes)
            found = divergence.first_swapped(result.cell, processes, recordings)
            if found is not None:
                return found
        return None

    def _last_of_all(self, running: RunningCell, result: CellResult) -> Dispatch | None:
        """Returns the dispatch after which all processes of an interrupted cell have stopped."""
        kinds = {each.error and each.error.type_name for each in result.per_process.values()}
        if kinds != {"KeyboardInterrupt"} or not self._is_recorded(running.request):
            return None
        who = tuple(sorted(result.per_process))
        counts = {i: [t.count for t in running.trails[i] if t.processes == who] for i in who}
        if not counts[who[0]] or any(each != counts[who[0]] for each in counts.values()):
            return None
        recordings = self._recordings(who[:1])
        known = [d for each in recordings.values() for d in each.dispatches]
        place = who, counts[who[0]][0]
        return next((d for d in known if (d.processes, d.number) == place), None)

    def _unequal_names(
        self, running: RunningCell, result: CellResult, was_cut: bool
    ) -> tuple[Difference, ...]:
        """Returns the names that hold parts of different arrays since this cell.

        A cell that has ended alike on all processes leaves none. Who has died, or has not come
        back, is not asked: that would wait for one that is stopped.
        """
        has_ended = running.abandoned is not None or any(d.role != "engine" for d in self.deaths)
        is_alike = not (was_cut or result.errors or result.divergence is not None)
        if is_alike or has_ended or not self._is_recorded(running.request):
            return ()
        unknown = dead_processes(self.deaths) | running.silent
        bound = self._ask([i for i in result.per_process if i not in unknown], "bound")
        return made_in(result.cell, differing_names(bound))

    def _difference(self, sides: Sequence[Side]) -> ProgramDifference | None:
        """Asks processes for the programs that they were to dispatch in place of one another."""
        asked = divergence.programs_to_compare(sides)
        lines = {
            who: self._ask(who[:1], "program", fingerprint=asked[who]).get(who[0], [])
            for who in asked
        }
        return programs.difference(lines)

    def _unequal(self, running: RunningCell, result: CellResult) -> CellResult:
        """Returns a cell's result with which replicas it was to compute with are not equal.

        And with what its value is made of, if that is parts of several arrays.
        """
        if not self._is_recorded(running.request) or running.abandoned is not None:
            return result
        gone = dead_processes(self.deaths) | running.silent
        replies = {i: reply for i, reply in running.replies.items() if i not in gone}
        if found := unequal_inputs(replies, self._sentinels):
            result = replace(result, unequal=tuple(found))
            running.notice(unequal.describe(found, result.cell))
        return with_apart(result)

    def _recover_after(
        self,
        running: RunningCell,
        names: Sequence[Difference],
        tell_names: Callable[[Sequence[Difference]], str],
        come_back_seconds: float = COME_BACK_SECONDS,
    ) -> None:
        """Makes a new group after a cell whose processes are out of step; tells what it cost."""
        try:
            recovered = self._carry_over(
                untold, running.interrupted, come_back_seconds, running.notice
            )
        except RecoveryInterrupted as error:
            recovered = error.recovered
        except (JaxnbError, KeyboardInterrupt) as error:
            told = [str(error), *getattr(error, "__notes__", ())]
            running.notice(" ".join(filter(None, told)))
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
