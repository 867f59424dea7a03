"""Large arrays that a function closes over: they are compiled into its program."""

from __future__ import annotations

from jaxnb.compat.jax_pitfalls import Lowering, constants
from jaxnb.labels import format_bytes
from jaxnb.model.insight import Pitfall
from jaxnb.pitfalls.process_words import nbytes_of, pitfall, type_of

CONSTANT_BYTES = 16 << 20
"""In all of one computation. Masks, tables of positions and the like are closed over on purpose,
and are smaller; from here on compilation and the program's memory grow by what one notices."""


class Constants:
    """Those of a cell."""

    def __init__(self) -> None:
        self._constants: dict[tuple[str, int | None], tuple[int, str]] = {}

    def add(self, lowering: Lowering, line: int | None) -> None:
        """Takes a computation that the cell has lowered."""
        found = {id(each): each for each in constants(lowering.jaxpr)}.values()
        total = sum(map(nbytes_of, found))
        if total >= CONSTANT_BYTES:
            largest = type_of(max(found, key=nbytes_of))
            self._constants.setdefault((lowering.name, line), (total, largest))

    def pitfalls(self, code_name: str) -> list[Pitfall]:
        """Returns what is to be said of them."""
        return [
            pitfall(
                "constant",
                code_name,
                line,
                f"`{name}` closes over {format_bytes(total)} of arrays (the largest is {largest}): "
                "they are compiled into the program as constants, on each device, and again at "
                "every recompilation.",
                "Pass them as arguments.",
                subject=name,
            )
            for (name, line), (total, largest) in self._constants.items()
        ]
