"""What this process has: given to every function that the notebook has it call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # it is what all others are given, and stands below them
    from collections.abc import Callable

    from jaxnb.arrays.process_exposures import Exposures
    from jaxnb.arrays.process_pushes import Pushes
    from jaxnb.cells.process_sampling import Sampler
    from jaxnb.lockstep.process_recorder import Recorder
    from jaxnb.model.arrays import PackRequest
    from jaxnb.profile.process_stats import Statistics


@dataclass(frozen=True, slots=True)
class ThisProcess:
    """One process of a group.

    Attributes:
        index: Its index.
        shell: Its kernel's, whose namespace holds the user's variables.
        recorder: Knows what it has dispatched.
        sampler: Looks at its main thread while a cell runs.
        statistics: Takes its statistics; for the sentinel's thread alone.
        exposures: Keeps the bytes of the pulls and pushes that it takes part in.
        pushes: Those pushes.
        large_value: Returns the value of a cell that was too large to travel with its result.
    """

    index: int
    shell: Any
    recorder: Recorder
    sampler: Sampler
    statistics: Statistics
    exposures: Exposures
    pushes: Pushes
    large_value: Callable[[PackRequest], Any]
