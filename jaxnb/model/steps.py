"""What a stepped cell reports: the lines that it ran within ``shard_map``, and their values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxnb.model.arrays import MeshInfo
from jaxnb.model.scripts import SourceLine


@dataclass(frozen=True)
class StepValue:
    """What a line has assigned.

    Attributes:
        name: The variable, or where in it: ``"s"``, ``"params['w']"``; ``"returned"``.
        type: Its dtype and shape within ``shard_map``; empty for a value that is not an array.
        blocks: Device id to the value there. Empty if it has one for all, or none is known.
        text: The value if it has one for all, or why none is known.
        mesh: The mesh that the devices are on; None without blocks.
    """

    name: str
    type: str = ""
    blocks: Mapping[int, str] | None = None
    text: str = ""
    mesh: MeshInfo | None = None


@dataclass(frozen=True)
class Step:
    """A line that was run.

    Attributes:
        at: The line.
        source: Its text; for the first of a function the function with its arguments.
        values: What it has assigned, or returned.
        raised: The exception that it has raised, if it has.
    """

    at: SourceLine
    source: str
    values: tuple[StepValue, ...]
    raised: str = ""


@dataclass(frozen=True)
class StepTrail:
    """The steps of a cell on one process.

    Attributes:
        steps: The first of them, in order.
        more: How many came after these.
    """

    steps: tuple[Step, ...] = ()
    more: int = 0
