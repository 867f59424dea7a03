"""Looks for pitfalls while a cell runs; where a cell costs nothing more than before.

What is looked at is told by JAX when it traces, lowers or moves something, never when it
dispatches. What was found is put into words at the end of the cell.
"""

from __future__ import annotations

import linecache
import math
import re
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnb.arrays.process_names import library_places, paths_to
from jaxnb.compat.jax_arrays import array_class, host_words
from jaxnb.compat.jax_pitfalls import Lowering, hook_pitfalls
from jaxnb.errors import JaxnbError
from jaxnb.labels import capitalized, plural, type_label
from jaxnb.lockstep.process_connection import is_of_handler
from jaxnb.lockstep.process_origins import line_in
from jaxnb.model.insight import NanFound, NanPlace, Pitfall
from jaxnb.model.scripts import the_cell
from jaxnb.pitfalls.process_raised import Moves, explained, pitfall
from jaxnb.wire.process_features import CellHere, Feature

# ``jax_debug_nans`` runs a function again, operation by operation, on the process that saw a NaN:
# its
# collectives wait for processes that saw none. This only reads: after each computation its results
# are waited for, and this process's shards of them are looked at on the host. The cell goes on, so
# that all processes do the same.

MAX_PLACES = 4
"""So many outputs, and inputs, of the first computation are told of."""


class NanWatch(Feature):
    """Looks at what a cell computes until it has seen a NaN.

    Args:
        process_index: This process.

    Attributes:
        is_on: Whether the next computation is to be looked at.
    """

    def __init__(self, process_index: int) -> None:
        self._me = process_index
        self.is_on = False
        self._infs = False
        self._started = 0.0
        self._after = 0
        self._found: NanFound | None = None
        self._outputs: list[tuple[int, weakref.ref[Any]]] = []
        self._names: Mapping[str, Any] = {}
        self._clean: dict[int, weakref.ref[Any]] = {}
        self._array_class: Any = array_class()

    def begin(self, cell: CellHere) -> None:
        """Begins a cell, which may ask for it."""
        check = cell.request.check_nans
        self.is_on, self._infs = check is not False, check == "inf"
        self._started, self._after = time.monotonic(), 0
        self._found, self._outputs, self._names = None, [], cell.names

    def require_seen(self, missing: str) -> None:
        """Raises if the cell asks for it, and nothing is told of computations."""
        if self.is_on and missing:
            raise JaxnbError(
                f"Cannot look for NaNs: this JAX does not report computations ({missing}). "
                "Nothing was run."
            )

    def told(self, cell: CellHere) -> dict[str, NanFound | None]:
        """Ends a cell; returns the first computation with a NaN in its results."""
        self.is_on = False
        self._clean.clear()
        self._name_outputs()
        found, self._found = self._found, None
        return {"nan": found}

    def _name_outputs(self) -> None:
        """Notes what names hold the arrays now that had a NaN."""
        if self._found is None:
            return
        alive = [(place, array()) for place, array in self._outputs]
        arrays = [array for _, array in alive if array is not None]
        found_at = paths_to(dict(self._names), {id(array) for array in arrays})
        paths = {key: each.path for key, each in found_at.items()}
        bound = {place: paths.get(id(array), "") for place, array in alive}
        outputs = (replace(e, name=e.name or bound.get(e.place, "")) for e in self._found.outputs)
        self._found = replace(self._found, outputs=tuple(outputs))

    def before(self, arguments: Sequence[Any]) -> tuple[NanPlace, ...]:
        """Returns which arguments of a computation have a NaN; it may be about to delete them."""
        if self._found is None:
            return self._places(arguments)
        self._name_outputs()  # a loop binds the names anew
        self.is_on = False  # what comes of it tells nothing new
        return ()

    def after(
        self,
        name: str,
        processes: tuple[int, ...],
        number: int,
        line: int | None,
        inputs: tuple[NanPlace, ...],
        results: Sequence[Any],
    ) -> None:
        """Looks at the results of a computation; see :class:`Watch`."""
        if self._found is not None:
            return
        outputs = self._places(results)
        if outputs:
            seconds = time.monotonic() - self._started
            self._found = NanFound(
                self._me,
                name,
                line,
                processes,
                number,
                self._after,
                seconds,
                outputs,
                inputs,
            )
            self._outputs = [(each.place, weakref.ref(results[each.place])) for each in outputs]
        self._after += len(processes) > 1

    def _places(self, values: Iterable[Any]) -> tuple[NanPlace, ...]:
        found: list[NanPlace] = []
        for place, value in enumerate(values):
            if len(found) < MAX_PLACES and (seen := self._look(place, value)) is not None:
                found.append(seen)
        return tuple(found)

    def _look(self, place: int, value: Any) -> NanPlace | None:
        if isinstance(value, (float, complex, np.ndarray, np.generic)):
            host = np.asarray(value)
            return self._look_at(place, host, [((), host)]) if _is_inexact(host.dtype) else None
        # Not a ref: to read one is to dispatch something.
        if type(value) is not self._array_class or not _is_inexact(value.dtype):
            return None
        key = id(value)
        known = self._clean.get(key)
        if value.is_deleted() or (known is not None and known() is value):
            return None
        parts = [(shard.index, host_words(shard.data)) for shard in value.addressable_shards]
        seen = self._look_at(place, value, parts)
        if seen is None:
            self._clean[key] = weakref.ref(value, lambda _: self._clean.pop(key, None))
        return seen

    def _look_at(
        self, place: int, value: Any, parts: Sequence[tuple[Any, np.ndarray[Any, Any]]]
    ) -> NanPlace | None:
        what = ""
        first: tuple[int, ...] = ()
        counts: set[tuple[str, int]] = set()  # replicas of a part count once
        for index, data in parts:
            nans = np.isnan(data)
            kind = "NaN"
            if self._infs and not nans.any():
                nans, kind = np.isinf(data), "Inf"
            if not nans.any():
                continue
            where = np.argwhere(nans)
            starts = [each.start or 0 for each in index] or [0] * nans.ndim
            if not what or (kind == "NaN" and what == "Inf"):
                what = kind
                first = tuple(int(at) + start for at, start in zip(where[0], starts, strict=True))
            counts.add((str(index), len(where)))
        if not what:
            return None
        count = sum(each for _, each in counts)
        return NanPlace(place, type_label(value.dtype, np.shape(value)), what, first, count)


def _is_inexact(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.inexact))


COMPILATIONS = 8
"""Of one function, at one line of one cell. Training, evaluation, a last batch and lengths padded
to powers of two are fewer; a loop that compiles at each turn is soon there."""

_LIBRARIES = (f"{Path(jax.__file__).parent}/", *library_places())
"""Functions of libraries are compiled once for each layer's shape, and nobody can change that."""

_JOINING = ("append", "concatenate")
"""JAX's own, by which an array grows in a loop: that can be changed."""


class Lowerings:
    """Those of a cell: how often one function is compiled at a line."""

    kind: str = "recompiled"

    def __init__(self) -> None:
        self._types: dict[tuple[str, str, int | None], list[tuple[str, ...]]] = {}
        self._joined: dict[tuple[str, int | None], list[tuple[str, ...]]] = {}

    def add(self, lowering: Lowering, line: int | None) -> None:
        """Takes a computation that the cell has lowered."""
        if lowering.file and not lowering.file.startswith(_LIBRARIES):
            key = lowering.name, lowering.source, line
            self._types.setdefault(key, []).append(lowering.types)
        elif lowering.name in _JOINING:
            self._joined.setdefault((lowering.name, line), []).append(lowering.types)

    def pitfalls(self, code_name: str) -> list[Pitfall]:
        """Returns them in words."""
        functions = [
            self._told(code_name, name, line, types, _without_cell(source))
            for (name, source, line), types in self._types.items()
            if len(types) >= COMPILATIONS
        ]
        growing = [
            self._told(code_name, name, line, types, name, is_joined=True)
            for (name, line), types in self._joined.items()
            if len(types) >= COMPILATIONS and any(map(_grows, zip(*types, strict=False)))
        ]
        return functions + growing

    def _told(
        self,
        code_name: str,
        name: str,
        line: int | None,
        types: Sequence[tuple[str, ...]],
        subject: str,
        *,
        is_joined: bool = False,
    ) -> Pitfall:
        other = _other_types(types)
        said = f"`{name}` needed {plural(len(types), 'program')} at this line{other}."
        advice = _OTHER_TYPES if other else _SAME_TYPES
        if is_joined:
            said, advice = f"{said} Each shape is a program of its own.", _GROWING
        return pitfall(self.kind, code_name, line, said, advice, subject=subject)


_GROWING = (
    "Allocate once, `acc = jnp.zeros((n, …))`, and fill it, `acc = acc.at[i].set(x)`; or append to "
    "a Python list and join it after the loop; or use `jax.lax.scan`."
)
_OTHER_TYPES = "Pad to a few sizes, or give all at once to a `jax.lax.scan`."
_SAME_TYPES = (
    "Its arguments had the same types: was `jax.jit` called in the loop? Call it before. Or a "
    "static argument or a sharding differed."
)


def _grows(types: Sequence[str]) -> bool:
    """Whether an argument has more elements at each compilation: ``"float32[8,2]"``."""
    sizes = [math.prod(map(int, re.findall(r"\d+", each.partition("[")[2]))) for each in types]
    return all(one < other for one, other in pairwise(sizes))


def _other_types(types: Sequence[tuple[str, ...]]) -> str:
    """Returns which argument had other types, of most calls; or nothing."""
    if len(set(types)) <= len(types) / 2:
        return ""
    first, second = list(dict.fromkeys(types))[:2]
    if len(first) != len(second):
        return f", with {len(first)} arguments, then {len(second)}"
    at = next(k for k, (one, other) in enumerate(zip(first, second, strict=True)) if one != other)
    return f": argument {at + 1} of {len(first)} was {first[at]}, then {second[at]}"


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
            self._give_up(kind, f"This JAX does not report it ({reason})")

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
            self._try("recompiled", lambda: self._lowerings.add(read(), self._line()))

    def traced_pmap(self, devices: Sequence[Any], asked: Sequence[Any] | None) -> None:
        """Takes a ``pmap`` within another transformation."""
        if self._code_name is not None:
            self._try("jit-of-pmap", lambda: self._pmaps.add(devices, asked, self._line()))

    def gathered(self, value: Any) -> None:
        """Takes a value that ``device_put`` is about to gather."""
        if self._code_name is not None:
            self._try("device-put", lambda: self._moves.add_gathered(value, self._line()))

    def _line(self) -> int | None:
        return line_in(sys._getframe(1), self._code_name or "")

    def _try(self, kind: str, look: Callable[[], object]) -> None:
        """Looks; the user's cell must not fail for it, nor may it fail in silence."""
        if kind in self._broken:
            return
        try:
            look()
        except Exception as error:
            if is_of_handler(error):
                raise
            *_, (frame, line) = traceback.walk_tb(error.__traceback__)
            where = linecache.getline(frame.f_code.co_filename, line).strip()
            self._give_up(kind, f"It failed with {type(error).__name__}: {error}, in `{where}`")

    def _give_up(self, kind: str, reason: str) -> None:
        self._broken[kind] = Pitfall(
            "unchecked",
            f"jaxnb has stopped looking for the pitfall {kind} on this process. {reason}. "
            f"{capitalized(the_cell())} is not affected.",
            cause=kind,
        )
