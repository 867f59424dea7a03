"""What a cell did, made once of all that its processes have sent and all that was found of it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, Literal

from jaxnb.arrays.per_process import Gather
from jaxnb.arrays.pulling import CellKey, Puller
from jaxnb.cells.answers import place_of
from jaxnb.cells.collected import Collected
from jaxnb.cells.result import CellResult, ProcessResult
from jaxnb.cells.running import RunningCell
from jaxnb.cells.timing import joined
from jaxnb.model.arrays import PackRequest
from jaxnb.model.cells import CellReply, CellRequest, ValueInfo
from jaxnb.model.dispatches import Cause, Difference, Divergence, UnequalInput
from jaxnb.model.insight import Pitfall
from jaxnb.pitfalls.nans import FirstNan
from jaxnb.session.interrupts_and_timeouts import Supervisor


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found of a cell that has ended; attributes are those of :class:`CellResult`.

    Attributes:
        stopped: Where the processes were about to part, of which nothing has run.
        parted: Where they have dispatched the same in another order.
    """

    stopped: Divergence | None = None
    parted: Divergence | None = None
    unequal: tuple[UnequalInput, ...] = ()
    suspect: str = ""
    unequal_names: tuple[Difference, ...] = ()
    first_nan: FirstNan | None = None

    @property
    def divergence(self) -> Divergence | None:
        """Where they parted, or were about to."""
        return self.parted or self.stopped


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
        if self.findings.divergence is not None:
            return self.findings.divergence.cause
        return self.running.wait_cause if self.was_cut else ""


class Results:
    """Makes the results of cells.

    Args:
        puller: Brings their values, where these have stayed on the processes.
    """

    def __init__(self, puller: Puller) -> None:
        self._puller = puller

    def result_of(
        self,
        ran: Sequence[Ran],
        num_processes: int,
        pitfalls: tuple[Pitfall, ...] = (),
        cause: Cause | Literal[""] = "",
    ) -> CellResult:
        """Returns what a cell did.

        Args:
            ran: Its requests: one; of a cell that is timed there may be a second one.
            num_processes: Size of the group.
            pitfalls: Those that no cell before it has told of.
            cause: Why its processes parted, or waited until they were interrupted.
        """
        return reduce(joined, (self._of(each, num_processes, pitfalls, cause) for each in ran))

    def _of(
        self,
        ran: Ran,
        num_processes: int,
        pitfalls: tuple[Pitfall, ...],
        cause: Cause | Literal[""],
    ) -> CellResult:
        collected, found = ran.collected, ran.findings
        request, replies = collected.request, collected.replies
        gather = partial(
            self._puller.gather, request.request_id, CellKey(request.cell, ran.generation)
        )
        return CellResult(
            cell=request.cell,
            code=request.code,
            per_process={i: self._of_process(ran, i, gather) for i in replies},
            num_processes=num_processes,
            seconds=collected.seconds,
            stdout=collected.merged["stdout"],
            stderr=collected.merged["stderr"],
            divergence=found.divergence,
            unequal_names=found.unequal_names,
            pitfalls=pitfalls,
            first_nan=found.first_nan,
            timing=collected.timing if request.calls else None,
            gather=partial(gather, tuple(replies)),
            unequal=found.unequal,
            cause=cause,
            suspect=found.suspect,
        )

    def _of_process(self, ran: Ran, index: int, gather: Any) -> ProcessResult:
        collected = ran.collected
        reply = collected.replies[index]
        return ProcessResult(
            process_index=index,
            value_info=_with_suspect(reply.value, ran.findings.suspect),
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
            fetch=partial(
                self._fetch,
                collected.request,
                ran.generation,
                index,
                reply.value.digest if reply.value else b"",
            ),
            gather=partial(gather, _holders(collected.replies, index)),
        )

    def _fetch(
        self,
        request: CellRequest,
        generation: int,
        index: int,
        digest: bytes,
        gather: Gather | None,
    ) -> Any:
        transfer = uuid.uuid4().hex
        asked = PackRequest(transfer=transfer, cell=request.request_id, digest=digest)
        return self._puller.cell_value(index, asked, CellKey(request.cell, generation), gather)


def _with_suspect(info: ValueInfo | None, suspect: str) -> ValueInfo | None:
    if info is None or info.array is None or not suspect:
        return info
    return replace(info, array=replace(info.array, suspect=info.array.suspect or suspect))


def _holders(replies: Mapping[int, CellReply], index: int) -> tuple[int, ...]:
    """Returns whom the array is read from that one process has as its value.

    Where processes have several arrays, each over some of them, those; of one array each process's
    own part, as the result has the whole.
    """
    places = {i: place_of(reply.value) for i, reply in replies.items()}
    if places[index] is None or len(set(places.values())) == 1:
        return (index,)
    return tuple(i for i, place in places.items() if place == places[index])
