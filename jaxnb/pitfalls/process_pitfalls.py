"""Looks for pitfalls while a cell runs; where a cell costs nothing more than before.

What is looked at is told by JAX when it traces, lowers or moves something, never when it
dispatches. What was found is put into words at the end of the cell.
"""

from __future__ import annotations

import linecache
import sys
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import jax

from jaxnb.compat.jax_pitfalls import Lowering, constants, hook_pitfalls
from jaxnb.labels import capitalized, format_bytes, plural
from jaxnb.lockstep.process_connection import is_of_handler
from jaxnb.lockstep.process_origins import line_in
from jaxnb.model.insight import Pitfall
from jaxnb.model.scripts import the_cell
from jaxnb.pitfalls.process_raised import Moves, explained, nbytes_of, pitfall, type_of
from jaxnb.wire.process_features import CellHere, Feature

CONSTANT_BYTES = 16 << 20
"""In all of one computation. Masks, tables of positions and the like are closed over on purpose,
and are smaller; from here on compilation and the program's memory grow by what one notices."""

COMPILATIONS = 8
"""Of one function, at one line of one cell. Training, evaluation, a last batch and lengths padded
to powers of two are fewer; a loop that compiles at each turn is soon there."""

_LIBRARIES = (
    str(Path(jax.__file__).parent),
    *(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")),
)
"""Functions of libraries are compiled once for each layer's shape, and nobody can change that."""


class Lowerings:
    """Those of a cell: what they close over, and how often one function is compiled at a line."""

    kind: str = "constant"

    def __init__(self) -> None:
        self._constants: dict[tuple[str, int | None], tuple[int, str]] = {}
        self._counts: dict[tuple[str, str, int | None], int] = {}

    def add(self, lowering: Lowering, line: int | None) -> None:
        """Takes a computation that the cell has lowered."""
        found = {id(each): each for each in constants(lowering.jaxpr)}.values()
        total = sum(map(nbytes_of, found))
        if total >= CONSTANT_BYTES:
            largest = type_of(max(found, key=nbytes_of))
            self._constants.setdefault((lowering.name, line), (total, largest))
        if lowering.file and not lowering.file.startswith(_LIBRARIES):
            key = lowering.name, lowering.source, line
            self._counts[key] = self._counts.get(key, 0) + 1

    def pitfalls(self, code_name: str) -> list[Pitfall]:
        """Returns them in words."""
        found = [
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
        return found + [
            pitfall(
                "recompiled",
                code_name,
                line,
                f"`{name}` was compiled {plural(count, 'time')} at this line.",
                "To see what differs each time, run `jax.config.update('jax_explain_cache_misses', "
                "True)` on the processes, then the cell again.",
                subject=_without_cell(source),
            )
            for (name, source, line), count in self._counts.items()
            if count >= COMPILATIONS
        ]


def _without_cell(source: str) -> str:
    """Returns where a function is defined without the cell's number, which a new run changes."""
    name, _, place = source.partition(" at ")
    return name if Path(place).name.startswith("<cell ") else source


class Pmaps:
    """Those of a cell."""

    kind: str = "jit-of-pmap"

    def __init__(self) -> None:
        self._found: dict[int | None, int] = {}

    def add(self, devices: Sequence[Any], asked: Sequence[Any] | None, line: int | None) -> None:
        """Takes one.

        Args:
            devices: What it runs on.
            asked: Its ``devices=``: who names those of this process alone means them.
            line: The cell's line.
        """
        wanted = jax.devices() if asked is None else asked
        if {d.process_index for d in devices} < {d.process_index for d in wanted}:
            self._found.setdefault(line, len(devices))

    def pitfalls(self, code_name: str) -> list[Pitfall]:
        """Returns them in words."""
        return [
            pitfall(
                self.kind,
                code_name,
                line,
                f"A `pmap` within `jit` (or `grad`, `vmap`) runs over {plural(count, 'device')} "
                f"of its own process, not over all {jax.device_count()}: a `psum` in it adds up "
                "these only, and JAX says nothing.",
                "Call the pmapped function without `jit` around it, or use `jax.shard_map` over "
                "a mesh of all devices.",
            )
            for line, count in self._found.items()
        ]


MAX_PITFALLS = 16
"""So many of a cell are told of: more are no help to anybody."""

_TOLD_WITH: dict[str, str] = {"constant": "constant and recompiled"}


class Pitfalls(Feature):
    """Finds pitfalls in the cells that this process runs.

    A part of it that fails is switched off, and told of once; the cell does not notice.
    """

    def __init__(self) -> None:
        self._code_name: str | None = None
        self._told: tuple[Pitfall, ...] = ()
        self._broken: dict[str, Pitfall] = {}
        self._forget()
        for kind, reason in hook_pitfalls(self).items():
            kinds = _TOLD_WITH.get(kind, kind)
            self._give_up(kind, f"This JAX does not report {kinds} ({reason})")

    def _forget(self) -> None:
        self._lowerings, self._moves, self._pmaps = Lowerings(), Moves(), Pmaps()

    def begin(self, cell: CellHere) -> None:
        """Begins to look; if the cell asks for no check, nothing is looked at."""
        if cell.request.check != "off" and cell.request.pitfalls:
            self._code_name = cell.code_name

    def over(self, cell: CellHere) -> None:
        """Ends that, and puts what was found into words."""
        self._told = self._found(cell.raised)

    def told(self, _: CellHere) -> dict[str, tuple[Pitfall, ...]]:
        """Returns what was found."""
        return {"pitfalls": self._told}

    def _found(self, error: BaseException | None) -> tuple[Pitfall, ...]:
        name, self._code_name = self._code_name, None
        if name is None:
            return ()
        found: list[Pitfall] = []
        for part in (self._lowerings, self._moves, self._pmaps):
            self._try(part.kind, lambda part=part: found.extend(part.pitfalls(name)))  # type: ignore[misc]
        if error is not None:
            self._try("fetch", lambda: found.extend(explained(error, name)))
        self._forget()  # it holds shardings, and what computations close over
        return (*found[:MAX_PITFALLS], *self._broken.values())

    # ------------------------------------------------------------------ what JAX tells

    def lowered(self, read: Callable[[], Lowering]) -> None:
        """Takes a computation that a call has lowered."""
        if self._code_name is not None:
            self._try("constant", lambda: self._lowerings.add(read(), self._line()))

    def traced_pmap(self, devices: Sequence[Any], asked: Sequence[Any] | None) -> None:
        """Takes a ``pmap`` within another transformation."""
        if self._code_name is not None:
            self._try("jit-of-pmap", lambda: self._pmaps.add(devices, asked, self._line()))

    def gathered(self, value: Any) -> None:
        """Takes a value that ``device_put`` is about to gather."""
        if self._code_name is not None:
            self._try("device-put", lambda: self._moves.add_gathered(value, self._line()))

    def _line(self) -> int | None:
        frame: FrameType | None = sys._getframe(1)
        return line_in(frame, self._code_name or "")

    def _try(self, kind: str, look: Callable[[], object]) -> None:
        """Looks; the user's cell must not fail for it, nor may it fail in silence."""
        if kind in self._broken:
            return
        try:
            look()
        except Exception as error:
            if is_of_handler(error):
                raise
            where = linecache.getline(*_innermost(error)).strip()
            self._give_up(kind, f"It failed with {type(error).__name__}: {error}, in `{where}`")

    def _give_up(self, kind: str, reason: str) -> None:
        self._broken[kind] = Pitfall(
            "unchecked",
            f"jaxnb has stopped looking for the pitfall {kind} on this process. {reason}. "
            f"{capitalized(the_cell())} is not affected.",
            cause=kind,
        )


def _innermost(error: BaseException) -> tuple[str, int]:
    for frame, line in traceback.walk_tb(error.__traceback__):
        place = frame.f_code.co_filename, line
    return place
