"""Timing: how long the calls of a timed cell took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles


def middle_half(seconds: Sequence[float]) -> tuple[float, float]:
    """Returns the first and the third quartile of one or more times."""
    if len(seconds) == 1:  # quantiles refuses that before Python 3.13
        return seconds[0], seconds[0]
    low, _, high = quantiles(seconds, n=4, method="inclusive")
    return low, high


@dataclass(frozen=True)
class ProcessTiming:
    """The calls of a timed cell on one process; times in seconds.

    Attributes:
        process_index: The process.
        first: The first call, which may trace and compile; None if it did not end.
        repeats: The calls after it, in order, as far as they ended.
    """

    process_index: int
    first: float | None
    repeats: tuple[float, ...] = field(repr=False)

    @property
    def median(self) -> float | None:
        """The median of the repeats; None if there are none."""
        return median(self.repeats) if self.repeats else None

    @property
    def spread(self) -> tuple[float, float] | None:
        """The middle half of the repeats: first and third quartile; None below two of them."""
        if len(self.repeats) < 2:
            return None
        return middle_half(self.repeats)

    @property
    def fastest(self) -> float | None:
        """The fastest repeat; None if there are none."""
        return min(self.repeats, default=None)

    @property
    def slowest(self) -> float | None:
        """The slowest repeat; None if there are none."""
        return max(self.repeats, default=None)


@dataclass(frozen=True)
class CellTiming:
    """The calls of a timed cell.

    Attributes:
        per_process: Process index to its calls.
    """

    per_process: Mapping[int, ProcessTiming]

    @property
    def repeats(self) -> int:
        """How many calls after the first ended on every process."""
        return min((len(each.repeats) for each in self.per_process.values()), default=0)

    @property
    def median(self) -> float | None:
        """The slowest process's median; None if a process has none."""
        medians = [each.median for each in self.per_process.values()]
        known = [each for each in medians if each is not None]
        return max(known) if known and len(known) == len(medians) else None
