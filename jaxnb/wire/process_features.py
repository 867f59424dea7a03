"""What goes along with a cell in this process: the runner knows each by this interface only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxnb.labels import capitalized, text_of
from jaxnb.lockstep.process_connection import is_of_handler
from jaxnb.model.cells import CellRequest
from jaxnb.model.insight import Pitfall
from jaxnb.model.scripts import the_cell


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
        left_out: The features that have failed in it, and how that is told.
    """

    request: CellRequest
    code_name: str
    names: Mapping[str, Any]
    began: float
    seconds: float = 0.0
    raised: BaseException | None = None
    left_out: dict[Feature, Pitfall] = field(default_factory=dict)


class Feature:
    """Something that looks on while cells run, and tells of it with the reply.

    One that fails in a cell (a sick GPU tells nothing of its memory) is left out of the rest of
    it, which is told; the cell does not notice.

    Made as the process joins the group. What looks at dispatches as well is a
    :class:`~jaxnb.lockstep.process_recorded.Watch`. A subclass leaves out what it does not do.
    """

    def begin(self, cell: CellHere) -> None:
        """A cell begins."""

    def left(self, cell: CellHere) -> None:
        """Its code has raised something, which is formatted next; that may take long."""

    def over(self, cell: CellHere) -> None:
        """Its code has ended; its value, which may compute something, is described next."""

    def told(self, cell: CellHere) -> Mapping[str, Any]:
        """It has ended: returns what is told of it, by name of the field of the reply."""
        return {}


REGISTERED: list[Feature] = []
"""Those that look on at the cells of this process. Without one its fields are empty."""


def begin(cell: CellHere) -> None:
    """Tells all that a cell begins."""
    _have(cell, lambda feature: feature.begin(cell))


def left(cell: CellHere) -> None:
    """Tells all that its code has raised something."""
    _have(cell, lambda feature: feature.left(cell))


def over(cell: CellHere) -> None:
    """Tells all that its code has ended."""
    _have(cell, lambda feature: feature.over(cell))


def told(cell: CellHere) -> dict[str, Any]:
    """Returns what all tell of a cell, as fields of the reply."""
    fields: dict[str, Any] = {}
    _have(cell, lambda feature: fields.update(feature.told(cell)))
    if cell.left_out:
        fields["pitfalls"] = (*fields.get("pitfalls", ()), *cell.left_out.values())
    return fields


def _have(cell: CellHere, does: Callable[[Feature], object]) -> None:
    """Has each feature do something; one that fails does nothing more in this cell."""
    for feature in REGISTERED:
        if feature in cell.left_out:
            continue
        try:
            does(feature)
        except Exception as error:
            if is_of_handler(error):
                raise
            name, why = type(feature).__name__, f"{type(error).__name__}: {text_of(error)}"
            cell.left_out[feature] = Pitfall(
                "unchecked",
                f"jaxnb has left {name} out of {the_cell()} on this process: it failed with {why}. "
                f"{capitalized(the_cell())} is not affected.",
                cause=f"{name} {why}",
            )


def register(features: Iterable[Feature]) -> None:
    """Has these look on at cells from now on, and none else."""
    REGISTERED[:] = features
