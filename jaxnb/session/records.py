"""What a session remembers of its cells: history, timelines, what it told, what it may replay."""

from __future__ import annotations

import json
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal, overload

from jaxnb.callers import levels_to_caller
from jaxnb.cells.outcome import outcome_of
from jaxnb.cells.result import CellResult
from jaxnb.cells.running import RunningCell
from jaxnb.errors import NanWarning, PitfallWarning, UsageError
from jaxnb.labels import one_line, plural
from jaxnb.lockstep.settings import KnownSettings
from jaxnb.model.cells import CellOutcome, CellRecord, CellRequest, code_seconds
from jaxnb.model.dispatches import Cause, Trail
from jaxnb.model.insight import Pitfall
from jaxnb.pitfalls.findings import Said, describe, of_printed
from jaxnb.profile.timelines import Timelines, Told
from jaxnb.session.group import Life
from jaxnb.session.reach import Reach
from jaxnb.session.results import Ran

MAX_CELLS = 10_000
"""The last so many cells are kept."""

MAX_CHARS = 300
"""Of a line of code, and of what is said of an error."""


_TELLS_LITTLE = re.compile(r"#|import\b|from\b.*\bimport\b")


class CellHistory(Sequence[CellRecord]):
    """What cells a session has run, in order; kept over restarts and recoveries.

    The last 10 000 are kept; ``forgotten`` says how many were before them. A notebook shows it as
    a table, ``print`` as text.

    Attributes:
        forgotten: How many cells are not kept any more.
    """

    def __init__(self, records: Sequence[CellRecord] = (), forgotten: int = 0) -> None:
        self._records = deque(records, maxlen=MAX_CELLS)
        self.forgotten = forgotten

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> CellRecord: ...
    @overload
    def __getitem__(self, index: slice) -> CellHistory: ...
    def __getitem__(self, index: int | slice) -> CellRecord | CellHistory:
        if isinstance(index, slice):
            return CellHistory(list(self._records)[index], self.forgotten)
        return self._records[index]

    def __iter__(self) -> Iterator[CellRecord]:
        return iter(list(self._records))  # a cell in the background may add one meanwhile

    def last(self, count: int) -> CellHistory:
        """Returns the last ``count`` cells; those before them count as forgotten."""
        start = max(0, len(self) - count)
        return CellHistory(list(islice(self, start, None)), self.forgotten + start)

    def note(self, record: CellRecord) -> None:
        """Adds a cell."""
        self.forgotten += len(self._records) == MAX_CELLS
        self._records.append(record)

    def to_jsonl(self, path: str | Path, *, overwrite: bool = False) -> int:
        """Writes one JSON object per line: the fields of :class:`~jaxnb.model.CellRecord`.

        Args:
            path: The file.
            overwrite: Whether a file that exists is replaced.

        Returns:
            How many cells were written.

        Raises:
            UsageError: The file exists; nothing was written.
            OSError: It cannot be written.
        """
        records = list(self)
        text = "".join(json.dumps(asdict(record)) + "\n" for record in records)
        target = Path(path).expanduser()
        try:
            with target.open("w" if overwrite else "x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise UsageError(
                f"{target} exists. Nothing was written. Give another name, or replace it: "
                "`%spmd_history --json FILE --overwrite` (in Python: `overwrite=True`)."
            ) from None
        return len(records)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} cells>"

    def __str__(self) -> str:
        from jaxnb.session import card_history

        return card_history.history_card(list(self), self.forgotten).text

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        from jaxnb.session import card_history

        card = card_history.history_card(list(self), self.forgotten)
        return {"text/plain": card.text, "text/html": card.html}


def record_of(
    result: CellResult,
    *,
    began: datetime,
    trails: Iterable[Sequence[Trail]] | None,
    outcome: CellOutcome,
    detail: str,
    generation: int,
    starts: int = 1,
    cause: Cause | Literal[""] = "",
) -> CellRecord:
    """Returns what is kept of a cell.

    Args:
        result: What it did.
        began: When it was sent.
        trails: What each process dispatched to several; None if that was not recorded.
        outcome: How it ended.
        detail: What went wrong.
        generation: How often the group had been restarted.
        starts: How often its processes had been started.
        cause: Why its processes diverged, or waited without end.
    """
    results = list(result.per_process.values())
    lines = [line.strip() for line in result.code.strip().splitlines()]
    telling = (line for line in lines if line and not _TELLS_LITTLE.match(line))
    allocated, peaks = _memory(result)
    return CellRecord(
        cell=result.cell,
        began=began.astimezone().isoformat(timespec="milliseconds"),
        code=one_line(next(telling, lines[0]), MAX_CHARS) if lines else "",
        lines=len(lines),
        processes=tuple(result.per_process),
        seconds=result.seconds,
        process_seconds=max((each.seconds for each in results), default=0.0),
        compile_seconds=max((each.compile_seconds for each in results), default=0.0),
        compiles=max((each.compiles for each in results), default=0),
        dispatches=None
        if trails is None
        else max((sum(trail.count for trail in mine) for mine in trails), default=0),
        allocated_bytes=allocated,
        peak_bytes=peaks,
        outcome=outcome,
        detail=one_line(detail, MAX_CHARS),
        generation=generation,
        starts=starts,
        cause=cause,
    )


def _memory(result: CellResult) -> tuple[dict[int, int], dict[int, int]]:
    allocated: dict[int, int] = {}
    peaks: dict[int, int] = {}
    for process in result.per_process.values():
        for device in process.memory:
            allocated[device.device_id] = device.change_bytes
            if device.peak_bytes is not None and device.peak_of == "device":
                peaks[device.device_id] = device.peak_bytes
    return allocated, peaks


class Replayable:
    """What successful cells a group has run, in order, one run more than once if it was."""

    def __init__(self) -> None:
        self._ran: list[tuple[CellRequest, tuple[int, ...] | None]] = []
        self._is_over = False

    @property
    def cells(self) -> list[CellRequest]:
        """The cells."""
        return [request for request, _ in self._ran]

    def note(self, request: CellRequest, result: CellResult) -> None:
        """Notes a cell that has ended, if it has succeeded."""
        if result.errors or request.aside:
            return
        if self._is_over:
            self._ran, self._is_over = [], False
        who = tuple(result.per_process)
        self._ran.append((request, None if len(who) == result.num_processes else who))

    def end(self) -> None:
        """Ends the history of processes that are gone; it is kept until the first new cell."""
        self._is_over = True

    def replay(self, run: Callable[..., Any], progress: Callable[[str, str], None]) -> int:
        """Runs the cells again, in fresh processes, up to the first that fails.

        Args:
            run: ``Session.run``, which notes them anew.
            progress: Told of each cell.

        Returns:
            How many have run.

        Raises:
            BaseException: What the first that failed raised, or an interrupt, with a note of how
                far it went. The history is as it was, so that it can be run again.
        """
        cells = self._ran
        self.end()
        done = 0
        try:
            for done, (cell, processes) in enumerate(cells):
                progress("replaying", f"cell [{cell.cell}], {done + 1} of {len(cells)}")
                run(
                    cell.code,
                    ranks=processes,
                    cell=cell.cell,
                    first_line=cell.first_line,
                    check=cell.check,
                )
        except BaseException as error:
            self._ran, self._is_over = cells, False
            error.add_note(
                f"%spmd_restart --replay: the processes are new. {done} of "
                f"{plural(len(cells), 'cell')} had been run again when cell "
                f"[{cells[done][0].cell}] failed or was interrupted; the others were not run. Push "
                "again what `%spmd_push` had sent."
            )
            raise
        return len(cells)


class Records:
    """Remembers the cells of a session, over restarts and recoveries.

    Args:
        life: The group.
        reach: Reaches its processes.
        settings: What is known of their settings.

    Attributes:
        history: A line for each cell.
        timelines: What processes did in the last ones, and when.
        replayable: Those that a restart may run again.
        said: The pitfalls that were told of.
    """

    def __init__(self, life: Life, reach: Reach, settings: KnownSettings) -> None:
        self._life, self._reach, self._settings = life, reach, settings
        self.history = CellHistory()
        self.timelines = Timelines()
        self.replayable = Replayable()
        self.said = Said()

    def new_pitfalls(self, ran: Ran) -> tuple[Pitfall, ...]:
        """Returns the pitfalls of a cell that no cell before it has told of, and notes them.

        Among them are settings that differ, also where no other pitfall is looked for.
        """
        request = ran.collected.request
        is_checked = request.check != "off"
        settings = self._settings.pitfalls() if is_checked else ()
        generation = self._life.generation
        pitfalls = ran.collected.pitfalls
        if request.pitfalls and is_checked and request.script is None:
            pitfalls = (*pitfalls, *of_printed(ran.collected.merged["stdout"]))
        found = self.said.new(pitfalls, generation)
        self.said.forget_mended("settings", settings)
        return (*found, *self.said.new(settings, generation))

    def note(
        self, ran: Ran, result: CellResult, began: datetime, failure: Exception | None
    ) -> None:
        """Notes a cell that has ended, well or not.

        Args:
            ran: It, as it ran.
            result: What it did.
            began: When.
            failure: What was raised for it, or by a process in it; None if nothing was.
        """
        self.timelines.note(result.cell, self._told(ran))
        is_recorded = self._reach.is_recorded(ran.collected.request)
        said = failure or result.first_nan
        record = record_of(
            result,
            began=began,
            trails=[reply.trails for reply in ran.collected.replies.values()]
            if is_recorded
            else None,
            outcome=outcome_of(
                result,
                failure,
                is_parted=result.divergence is not None,
                was_abandoned=ran.running.abandoned is not None,
                was_interrupted=ran.supervisor.interrupted,
            ),
            detail=str(said or result.suspect),
            cause=result.cause,
            generation=self._life.generation,
            starts=ran.starts,
        )
        self.history.note(record)

    def _told(self, ran: Ran) -> dict[int, Told]:
        hosts = {report.process_index: report.host for report in self._life.reports}
        told = {}
        for index, reply in ran.collected.replies.items():
            seconds = code_seconds(reply.seconds, reply.error)
            told[index] = Told(
                reply.activity,
                seconds,
                hosts.get(index, ""),
                reply.error.ending if reply.error is not None else "",
            )
        return told


def tell(running: RunningCell, result: CellResult, error: Exception | None) -> None:
    """Tells who does not see a cell's card of what it has: a script is warned, at its line."""
    is_script, warn_at = running.is_script, levels_to_caller()
    if is_script and result.first_nan is not None:
        warnings.warn(str(result.first_nan), NanWarning, stacklevel=warn_at)
    if not result.pitfalls or running.is_shown:
        return
    text = describe(result.pitfalls, len(result.per_process))
    if not is_script:
        for each in result.pitfalls:
            running.notice(describe([each], len(result.per_process)))
    elif error is not None:
        error.add_note(text)
    else:
        warnings.warn(text, PitfallWarning, stacklevel=warn_at)
