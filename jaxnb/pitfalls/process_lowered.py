"""The pitfalls that are seen as a computation is lowered."""

from __future__ import annotations

from jaxnb.compat.jax_pitfalls import Lowering
from jaxnb.model.insight import Pitfall
from jaxnb.pitfalls.process_constants import Constants
from jaxnb.pitfalls.process_recompiled import Recompiled
from jaxnb.pitfalls.process_replicated import Replicated


class Lowerings:
    """Those of a cell."""

    kind: str = "constant"

    def __init__(self) -> None:
        self._parts = (Constants(), Replicated(), Recompiled())

    def add(self, lowering: Lowering, line: int | None) -> None:
        """Takes a computation that the cell has lowered."""
        for part in self._parts:
            part.add(lowering, line)

    def pitfalls(self, code_name: str) -> list[Pitfall]:
        """Returns what is to be said of them."""
        return [each for part in self._parts for each in part.pitfalls(code_name)]
