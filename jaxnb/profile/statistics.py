"""Statistics: what a process uses of its devices and of its host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from jaxnb.model.group import DeviceInfo, ProcessInfo, SentinelFault
from jaxnb.wire.sentinels import Sentinels

MOST_LARGEST = 5
"""Of so many of the largest arrays is told for each device."""


@dataclass(frozen=True)
class LargeArray:
    """One of the largest live arrays on a device.

    Attributes:
        name: How a cell reaches it, e.g. ``"state['opt'][0]"``; ``"a, b"`` if these are arrays
            that share its buffer. Empty if no name in the namespace leads to it; None if the
            search was given up: there is too much to look at.
        nbytes: Its bytes on this device.
        shape: The shape of the whole array.
        dtype: Its dtype.
        devices: The ids of all devices that hold a part of it, by its sharding, as pairs of the
            first and the last of those that follow each other: of other processes' too.
    """

    name: str | None
    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    devices: tuple[tuple[int, int], ...]

    def rank(self) -> tuple[int, bool, str]:
        """Returns a key to sort by: the largest first; of equal ones those with a name, by it."""
        return -self.nbytes, not self.name, self.name or ""


@dataclass(frozen=True)
class DeviceStats:
    """One device's memory and load, with those of the process that owns it.

    Attributes:
        device: The device.
        host: The host it is on.
        pid: The process that owns it.
        bytes_in_use: From ``memory_stats()`` where the backend has it, else the bytes of
            the live arrays' shards on this device, each buffer counted once.
        peak_bytes: Peak of the same, or None where the backend does not say.
        limit_bytes: What the device may use, or None.
        source: ``"memory_stats"`` or ``"live_arrays"``: where ``bytes_in_use`` is from;
            ``"none"`` for a process that gave no numbers.
        live_arrays: Number of buffers of live arrays on this device: arrays that share one
            count once.
        process_rss_bytes: Resident memory of the process.
        process_pss_bytes: The same with shared pages divided among those who share them;
            None where the system does not tell (it does on Linux), and in brief statistics.
        note: Why numbers are missing, e.g. ``"process 2: was killed by SIGKILL"``; empty otherwise.
        largest: The largest live arrays on this device, the largest first; empty in brief
            statistics.
        utilization_percent: How much of the last moments the GPU was busy, by NVML; or None.
        temperature_celsius: The GPU's temperature, by NVML; or None.
        gpu_note: Why NVML did not tell; empty otherwise, and on the CPU.
        process_cpu_seconds: Processor time that the process has used since it began.
        at_seconds: When these numbers were taken, by the process's own monotonic clock: between
            two of them lies what the processor time was used in.
    """

    device: DeviceInfo
    host: str
    pid: int
    bytes_in_use: int | None = None
    peak_bytes: int | None = None
    limit_bytes: int | None = None
    source: Literal["memory_stats", "live_arrays", "none"] = "none"
    live_arrays: int = 0
    process_rss_bytes: int | None = None
    process_pss_bytes: int | None = None
    note: str = ""
    largest: tuple[LargeArray, ...] = ()
    utilization_percent: float | None = None
    temperature_celsius: int | None = None
    gpu_note: str = ""
    process_cpu_seconds: float | None = None
    at_seconds: float | None = None


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
    return [DeviceStats(device, process.host, process.pid, note=note) for device in process.devices]
