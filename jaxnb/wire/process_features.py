"""What goes along with a cell in this process: the runner knows each by this interface only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from jaxnb.model.cells import CellRequest


@dataclass(slots=True)
class CellHere:
    """A cell in this process.

    Attributes:
        request: It.
        code_name: The file name of its code in tracebacks.
        names: The variables.
        began: When it began, on ``time.monotonic()``: what all its times are counted from.
        seconds: How long its code has taken, once that has ended.
        raised: What its code has raised.
    """

    request: CellRequest
    code_name: str
    names: Mapping[str, Any]
    began: float
    seconds: float = 0.0
    raised: BaseException | None = None


class Feature:
    """Something that looks on while cells run, and tells of it with the reply.

    Made as the process joins the group. What looks at dispatches as well is a
    :class:`~jaxnb.lockstep.process_watch.Watch`. A subclass leaves out what it does not do.
    """

    def begin(self, cell: CellHere) -> None:
        """A cell begins."""

    def over(self, cell: CellHere) -> None:
        """Its code has ended; its value, which may compute something, is described next."""

    def told(self, cell: CellHere) -> Mapping[str, Any]:
        """It has ended: returns what is told of it, by name of the field of the reply."""
        return {}


REGISTERED: list[Feature] = []
"""Those that look on at the cells of this process. Without one its fields are empty."""


def begin(cell: CellHere) -> None:
    """Tells all that a cell begins."""
    for feature in REGISTERED:
        feature.begin(cell)


def over(cell: CellHere) -> None:
    """Tells all that its code has ended."""
    for feature in REGISTERED:
        feature.over(cell)


def told(cell: CellHere) -> dict[str, Any]:
    """Returns what all tell of a cell, as fields of the reply."""
    return {name: value for feature in REGISTERED for name, value in feature.told(cell).items()}


def register(features: Iterable[Feature]) -> None:
    """Has these look on at cells from now on, and none else."""
    REGISTERED[:] = features
