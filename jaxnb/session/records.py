"""What a session remembers of its cells: history, timelines, what it told, what it may replay."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from datetime import datetime

from jaxnb.callers import levels_to_caller
from jaxnb.cells.answers import ending_of
from jaxnb.cells.outcome import outcome_of
from jaxnb.cells.result import CellResult
from jaxnb.cells.sinks import OutputSink, ScriptNotices
from jaxnb.errors import DivergenceWarning, NanWarning, PitfallWarning
from jaxnb.lockstep import divergence
from jaxnb.lockstep.settings import KnownSettings, as_pitfalls
from jaxnb.model.cells import code_seconds
from jaxnb.model.insight import Pitfall
from jaxnb.pitfalls.already_told import Said, describe
from jaxnb.profile.timelines import Timelines, Told
from jaxnb.session.group import Life
from jaxnb.session.history import CellHistory, record_of
from jaxnb.session.reach import Reach
from jaxnb.session.replaying import Replayable
from jaxnb.session.results import Ran


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

    def new_pitfalls(self, ran: Sequence[Ran]) -> tuple[Pitfall, ...]:
        """Returns the pitfalls of a cell that no cell before it has told of, and notes them.

        Among them are settings that differ, also where no other pitfall is looked for.
        """
        is_checked = ran[-1].collected.request.check != "off"
        settings = as_pitfalls(self._settings.differences()) if is_checked else ()
        generation = self._life.generation
        found = [p for each in ran for p in self.said.new(each.collected.pitfalls, generation)]
        self.said.forget_mended("settings", settings)
        return (*found, *self.said.new(settings, generation))

    def note(
        self, ran: Sequence[Ran], result: CellResult, began: datetime, failure: Exception | None
    ) -> None:
        """Notes a cell that has ended, well or not.

        Args:
            ran: What was run of it.
            result: What it did.
            began: When.
            failure: What was raised for it, or by a process in it; None if nothing was.
        """
        self.timelines.note(result.cell, [self._told(each) for each in ran])
        last = ran[-1]
        is_recorded = self._reach.is_recorded(ran[0].collected.request)
        parted = last.findings.parted
        said = failure or (parted and divergence.describe(parted)) or result.first_nan
        record = record_of(
            result,
            began=began,
            trails=[each.collected.trails for each in ran] if is_recorded else None,
            outcome=outcome_of(
                result,
                failure,
                is_parted=result.divergence is not None,
                was_abandoned=last.running.abandoned is not None,
                was_interrupted=last.supervisor.interrupted,
            ),
            detail=str(said or result.suspect),
            cause=result.cause,
            generation=self._life.generation,
            starts=last.starts,
        )
        self.history.note(record)

    def _told(self, ran: Ran) -> dict[int, Told]:
        hosts = {report.process_index: report.host for report in self._life.reports}
        told = {}
        for index, reply in ran.collected.replies.items():
            seconds = code_seconds(reply.seconds, reply.error)
            told[index] = Told(reply.activity, seconds, hosts.get(index, ""), ending_of(reply))
        return told


def tell(ran: Ran, result: CellResult, sink: OutputSink, error: Exception | None) -> None:
    """Tells who does not see a cell's card of what it has: a script is warned, at its line."""
    is_script, warn_at = isinstance(sink, ScriptNotices), levels_to_caller()
    if is_script and ran.findings.parted is not None:
        text = divergence.describe(ran.findings.parted)
        warnings.warn(text, DivergenceWarning, stacklevel=warn_at)
    if is_script and result.first_nan is not None:
        warnings.warn(str(result.first_nan), NanWarning, stacklevel=warn_at)
    if not result.pitfalls or sink.shows_cards:
        return
    text = describe(result.pitfalls, len(result.per_process))
    if not is_script:
        ran.running.notice(text)
    elif error is not None:
        error.add_note(text)
    else:
        warnings.warn(text, PitfallWarning, stacklevel=warn_at)
