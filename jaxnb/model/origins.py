"""Where global arrays come from, in a form that processes can compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

OriginKind = Literal["dispatch", "created", "unknown", "host"]
"""How an array came into being: as the result of a recorded dispatch; by a call that makes an
array, ``jax.make_array_from_callback`` say. Others are not compared. ``"host"`` is what each
process has by itself: a number, a NumPy array, an array of its own devices alone."""


class Made(NamedTuple):
    """What made arrays: one dispatch, with all its results, or one call.

    Attributes:
        base: The first array's number, and those of the others follow it; equal on all processes
            if they are parts of the same array. Hashed from integers only, so that a process's
            hash seed does not count.
        kind: See :data:`OriginKind`.
        name: ``"jit(step)"``, ``"make_array_from_callback"``, ``"params['w']"``; of host data what
            is passed: ``"0.1"`` for one number, ``"float32[16]"``.
        cell: The number of the cell; 0 outside of cells.
        number: Which dispatch over its processes in that cell, or which array of its type, shape
            and processes that was made there; from 1.
        line: The cell's line, as the notebook counts; None outside of its code.
        place: Of an array made by a call: a number for the place in the code, its type, shape and
            processes, and how many like it that place had made before in the cell. Processes whose
            arrays have one place hold parts of one array, whatever else some of them have made.
    """

    base: int
    kind: OriginKind
    name: str
    cell: int
    number: int
    line: int | None
    place: int = 0


Origin = tuple[int, Made]
"""An array's own number, ``base`` plus its place among the results, and what made it."""


@dataclass(frozen=True)
class Argument:
    """A global array, or host data, that was given to a dispatch.

    Attributes:
        position: Which argument of the compiled computation it is, from 0.
        name: What the array is bound to in the namespace: ``"params['w']"``; empty if nothing
            there holds it.
        number: The array's origin number; of host data, a digest.
        made: What made it.
    """

    position: int
    name: str
    number: int
    made: Made

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Argument:
        """Makes it of what JSON has kept of it."""
        return cls(plain["position"], plain["name"], plain["number"], Made(*plain["made"]))


@dataclass(frozen=True)
class Difference:
    """One place at which processes used, or hold, arrays that are not parts of one array.

    Attributes:
        place: ``"argument leaf 0"``, or the name that all have for it.
        sides: Who has which.
    """

    place: str
    sides: tuple[tuple[tuple[int, ...], Argument | None], ...]
