"""Pure: the last minute of statistics."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxnb.profile.statistics import DeviceStats

SAMPLES = 60
"""How many samples are kept."""

Values = Sequence[float | None]


def _values() -> deque[float | None]:
    return deque(maxlen=SAMPLES)


@dataclass(slots=True)
class Track:
    """What is remembered of one device; None stands for a sample that did not come.

    Attributes:
        last: Its last statistics.
        in_use: Bytes in use.
        gpu: How busy the GPU was, in percent.
        cpu: Processor time of its process, in percent of one core.
    """

    last: DeviceStats
    in_use: deque[float | None] = field(default_factory=_values)
    gpu: deque[float | None] = field(default_factory=_values)
    cpu: deque[float | None] = field(default_factory=_values)


class StatsHistory:
    """The last samples of each device."""

    def __init__(self) -> None:
        self._tracks: dict[int, Track] = {}

    @property
    def tracks(self) -> list[Track]:
        """The devices', by process and device."""
        return sorted(
            self._tracks.values(), key=lambda t: (t.last.device.process_index, t.last.device.id)
        )

    def add(self, rows: Sequence[DeviceStats]) -> None:
        """Takes one sample of all devices."""
        for row in rows:
            track = self._tracks.get(row.device.id)
            earlier = row if track is None else track.last
            if track is None:
                track = self._tracks[row.device.id] = Track(row)
            track.in_use.append(row.bytes_in_use)
            track.gpu.append(row.utilization_percent)
            track.cpu.append(cpu_percent(earlier, row))
            track.last = row


def cpu_percent(earlier: DeviceStats, later: DeviceStats) -> float | None:
    """Returns the processor time that a process used between two samples, in percent of a core.

    None where one of them is missing, or is another process's.
    """
    if earlier.pid != later.pid or earlier.at_seconds is None or later.at_seconds is None:
        return None
    used = (later.process_cpu_seconds or 0.0) - (earlier.process_cpu_seconds or 0.0)
    seconds = later.at_seconds - earlier.at_seconds
    return 100.0 * used / seconds if seconds > 0 else None
