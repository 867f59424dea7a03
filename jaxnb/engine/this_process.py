"""What this process has: given to every function that the notebook has it call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxnb.engine.recorder import Recorder
from jaxnb.engine.sampling import Sampler
from jaxnb.engine.stats import Statistics


@dataclass(frozen=True, slots=True)
class ThisProcess:
    """One process of a group.

    Attributes:
        index: Its index.
        shell: Its kernel's, whose namespace holds the user's variables.
        recorder: Knows what it has dispatched.
        sampler: Looks at its main thread while a cell runs.
        statistics: Takes its statistics; for the sentinel's thread alone.
    """

    index: int
    shell: Any
    recorder: Recorder
    sampler: Sampler
    statistics: Statistics
