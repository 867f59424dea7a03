"""Looks for the first NaN of a cell in what it computes, without computing anything itself.

``jax_debug_nans`` runs a function again, operation by operation, on the process that saw a NaN: its
collectives wait for processes that saw none. This only reads: after each computation its results
are waited for, and this process's shards of them are looked at on the host. The cell goes on, so
that all processes do the same.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnb.arrays.process_names import paths_to
from jaxnb.compat.jax_arrays import array_class, host_words
from jaxnb.errors import JaxnbError
from jaxnb.labels import type_label
from jaxnb.model.insight import NanFound, NanPlace
from jaxnb.wire.process_features import CellHere, Feature

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
        self._clean: dict[int, weakref.ref[Any]] = {}
        self._array_class: Any = array_class()

    def begin(self, cell: CellHere) -> None:
        """Begins a cell, which may ask for it."""
        check = cell.request.check_nans
        self.is_on, self._infs = check is not False, check == "inf"
        self._started, self._after = time.monotonic(), 0
        self._found, self._outputs = None, []

    def require_seen(self, missing: str) -> None:
        """Raises if the cell asks for it, and nothing is told of computations."""
        if self.is_on and missing:
            raise JaxnbError(
                f"Cannot look for NaNs: this JAX does not report computations ({missing}). "
                "Nothing was run."
            )

    def told(self, cell: CellHere) -> dict[str, NanFound | None]:
        """Ends a cell; returns the first computation with a NaN in its results."""
        return {"nan": self._ended(cell.names)}

    def _ended(self, names: Mapping[str, Any]) -> NanFound | None:
        self.is_on = False
        self._clean.clear()
        found, self._found = self._found, None
        if found is None:
            return None
        alive = [(place, array()) for place, array in self._outputs]
        arrays = [array for _, array in alive if array is not None]
        found_at = paths_to(dict(names), {id(array) for array in arrays})
        paths = {key: each.path for key, each in found_at.items()}
        bound = {place: paths.get(id(array), "") for place, array in alive}
        outputs = tuple(replace(each, name=bound.get(each.place, "")) for each in found.outputs)
        return replace(found, outputs=outputs)

    def before(self, arguments: Sequence[Any]) -> tuple[NanPlace, ...]:
        """Returns which arguments of a computation have a NaN; it may be about to delete them."""
        return self._places(arguments)

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
                is_operation=_is_operation(name),
            )
            self._outputs = [(each.place, weakref.ref(results[each.place])) for each in outputs]
            self.is_on = False  # what comes of it tells nothing new
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


def _is_operation(name: str) -> bool:
    """Whether a computation is called as a function of JAX is: ``"jit(log)"``.

    A function of the user's with such a name is taken for one.
    """
    inner = name.removeprefix("jit(").removesuffix(")").strip("_")
    return any(hasattr(each, inner) for each in (jnp, jnp.linalg, jax.lax, jax.nn, jax.random))


def _is_inexact(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.inexact))
