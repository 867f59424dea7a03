"""Looks for pitfalls while a cell runs; where a cell costs nothing more than before.

What is looked at is told by JAX when it traces, lowers or moves something, never when it
dispatches. What was found is put into words at the end of the cell.
"""

from __future__ import annotations

import linecache
import sys
import traceback
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import jax

from jaxnb.compat.jax_pitfalls import Lowering, hook_pitfalls
from jaxnb.labels import capitalized, plural
from jaxnb.lockstep.process_connection import is_of_handler
from jaxnb.lockstep.process_origins import line_in
from jaxnb.model.insight import Pitfall
from jaxnb.model.scripts import the_cell
from jaxnb.pitfalls.process_lowered import Lowerings
from jaxnb.pitfalls.process_raised import Moves, explained, pitfall
from jaxnb.wire.process_features import CellHere, Feature


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
