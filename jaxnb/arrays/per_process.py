"""What the processes have under one name, where it is not one thing for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from jaxnb.model.arrays import ArrayInfo

if TYPE_CHECKING:
    from jaxnb.arrays.gathered import GatheredArray


class PerProcess(dict[int, Any]):
    """Values that differ by process: process index to value."""

    def __repr__(self) -> str:
        return f"PerProcess({super().__repr__()})"


Gather: TypeAlias = "Callable[[int, ArrayInfo], GatheredArray]"
"""Makes an array that stayed on the processes from its index in the value, and description."""
