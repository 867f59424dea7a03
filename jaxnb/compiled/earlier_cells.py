"""The cells that a plan's definitions come from, and who knows what became of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from jaxnb.model.cells import CellRequest
from jaxnb.model.compiled import GroupValues


def _unknown(_: Sequence[str]) -> GroupValues:
    return GroupValues()


@dataclass(frozen=True)
class EarlierCells:
    """Cells that have run.

    Attributes:
        requests: The cells, in the order in which they have run.
        values: Returns the group's plain values of some names, to be compared with what the
            definitions give.
    """

    requests: Iterable[CellRequest] = ()
    values: Callable[[Sequence[str]], GroupValues] = _unknown


NO_CELLS = EarlierCells()
