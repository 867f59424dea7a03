"""Asks processes for the statistics of their devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxnb.model.group import ProcessInfo, SentinelFault
from jaxnb.profile.statistics import DeviceStats
from jaxnb.wire.sentinels import Sentinels

FUNCTION = "jaxnb.profile.process_stats.statistics"
WAIT_SECONDS = 2.0
"""The first look at thousands of arrays takes longer."""


def device_rows(
    sentinels: Sentinels,
    processes: Callable[[], Sequence[ProcessInfo]],
    *,
    brief: bool,
    silent: str,
) -> list[DeviceStats]:
    """Returns a row for each device of each process, also while cells run.

    Args:
        sentinels: What answers for the processes.
        processes: Returns the processes as they are now: one may die meanwhile.
        brief: Leave out what takes milliseconds.
        silent: What is said of a process that does not answer in time.
    """
    alive = [p.process_index for p in processes() if p.state != "dead"]
    answers = sentinels.ask_all(alive, FUNCTION, seconds=WAIT_SECONDS, brief=brief)
    rows: list[DeviceStats] = []
    for process in processes():
        told = answers.get(process.process_index, silent)
        if isinstance(told, SentinelFault):
            told = f"cannot tell: {told.error}"
        rows += _rows_without_numbers(process, told) if isinstance(told, str) else told
    return rows


def _rows_without_numbers(process: ProcessInfo, why: str) -> list[DeviceStats]:
    """Returns a row for each device of a process that gave no statistics, saying why."""
    note = f"process {process.process_index}: {process.detail or why}"
    return [
        DeviceStats(
            device=device,
            host=process.host,
            pid=process.pid,
            bytes_in_use=None,
            peak_bytes=None,
            limit_bytes=None,
            source="none",
            live_arrays=0,
            process_rss_bytes=None,
            process_pss_bytes=None,
            note=note,
        )
        for device in process.devices
    ]
