"""Digests of replicas: of each array that did not come out of a recorded dispatch, once.

JAX takes the devices' copies of a part to be equal and never checks. Results of a recorded dispatch
need no look: the processes ran one program on the same inputs. Those of programs that may make them
unequal all the same are looked at as they are shown. All else that is replicated, on two
devices or more, is digested as a recorded dispatch first uses it: before the dispatch, which may
take the memory over. On an accelerator that copies the array to the host, once.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxnb.arrays.process_describe import Layout, layout_of, unreduced_axes
from jaxnb.compat.jax_arrays import device_arrays, host_words, is_deleted
from jaxnb.labels import type_label
from jaxnb.lockstep.process_inputs import digest, digest_of_put
from jaxnb.lockstep.process_origins import MASK, ORIGINS
from jaxnb.lockstep.process_recorded import Entry
from jaxnb.lockstep.provenance import origin_text
from jaxnb.model.dispatches import DigestedArray, Origin, Processes, ReplicaPart, ReplicaTrail, Role

# A ``shard_map`` without ``check_vma`` that forgets a reduction, a ``pmap`` with ``out_axes=None``,
# a callback that returns something else on each process: the processes agree on the program and on
# its inputs, and their replicas differ. So the results of such a program's first run in a cell are
# digested. Nothing waits for them, as they may never come: they are looked at after later
# dispatches and as the cell ends, else as the next one begins. So which results are looked at must
# not depend on when they are there: those of the run are, unless a later dispatch was given their
# memory. Then they are followed to its results, up to those that are left as the cell ends.

_Dispatch = tuple[Processes, int, str, int | None]


@dataclass(slots=True)
class _Followed:
    """Results of one program, or what was made in their memory."""

    dispatch: _Dispatch
    axes: tuple[str, ...]
    results: list[tuple[int, Callable[[], Any]]]
    is_digested: bool = False
    is_later: bool = False  # made in the memory of others: looked at as the cell ends

    def there(self) -> list[tuple[int, Any]]:
        """Returns those that are still held by somebody, and their places among the results."""
        found = [(i, get()) for i, get in self.results]
        return [(i, each) for i, each in found if each is not None]

    def let_go(self) -> None:
        """Follows them only as long as somebody else holds them."""
        self.results = [(i, weakref.ref(each)) for i, each in self.there()]


class UncheckedResults:
    """Follows results that may be unequal until they are there, and has them digested once.

    Args:
        replicated: Returns the array that holds a value, if it has replicas; else None.
        digest: Digests one: its place among the results, itself, the axes, and the dispatch.
    """

    def __init__(
        self,
        replicated: Callable[[Any], Any],
        digest: Callable[[int, Any, tuple[str, ...], _Dispatch], None],
    ) -> None:
        self._replicated, self._digest = replicated, digest
        self._followed: list[_Followed] = []
        self._seen: set[tuple[int, Processes]] = set()

    def begin(self) -> None:
        """Begins a cell: each program is looked at once more."""
        self._seen.clear()
        self.look()
        self._followed = [each for each in self._followed if not each.is_digested]

    def made(self, entry: Entry, results: Sequence[Any]) -> None:
        """Takes the results of a dispatch of the main thread.

        Args:
            entry: The dispatch.
            results: What it results in, which may not be there yet.
        """
        known = entry.known
        if self._followed:
            self._followed = [e for e in self._followed if self._follow(e, entry, results)]
        key = known.fingerprint, known.processes
        if (known.axes or known.calls_back) and key not in self._seen:
            self._seen.add(key)
            dispatch = known.processes, entry.number, known.name, entry.line
            # Held, not only followed: `w = step(w)` lets go of them before they are there.
            if here := self._here(results):
                held = [(i, partial(_same, array)) for i, array in here]
                self._followed.append(_Followed(dispatch, known.axes, list(held)))

    def _here(self, results: Sequence[Any]) -> list[tuple[int, Any]]:
        found = [(i, self._replicated(each)) for i, each in enumerate(results)]
        return [(i, array) for i, array in found if array is not None]

    def _follow(self, each: _Followed, entry: Entry, results: Sequence[Any]) -> bool:
        """Looks at results after a dispatch; returns whether they are to be followed further."""
        there = each.there()
        if any(array.is_deleted() for _, array in there):
            processes, _, name, line = each.dispatch
            each.dispatch = processes, entry.number, name, line
            each.results = [(i, weakref.ref(array)) for i, array in self._here(results)]
            each.is_digested, each.is_later = False, True
            return bool(each.results)
        if not (each.is_digested or each.is_later):
            self._look_at(each, there)
        return bool(there)

    def look(self) -> None:
        """Digests the results that are there; a cell begins, or ends."""
        for each in self._followed:
            if not each.is_digested:
                self._look_at(each, each.there())

    def _look_at(self, each: _Followed, there: Sequence[tuple[int, Any]]) -> None:
        arrays = [(i, array) for i, array in there if not is_deleted(array)]
        if not all(array.is_ready() for _, array in arrays):
            return
        each.is_digested = True
        with contextlib.suppress(RuntimeError):  # it has failed: whoever reads it is told
            for i, array in arrays:
                self._digest(i, array, each.axes, each.dispatch)
        each.let_go()


def _same(value: Any) -> Any:
    return value


MAX_DONE = 1 << 18
"""So many arrays are remembered as compared; of more, those still used are compared again."""

_DONE = "_jaxnb_digested"


@dataclass(slots=True)
class _Looked:
    """An array, as it was first given to a dispatch, or came out of one; still without a name."""

    described: DigestedArray
    origin: int
    array: weakref.ref[Any]


@dataclass(slots=True)
class _Cell:
    looked: list[_Looked] = field(default_factory=list)
    trails: dict[Processes, tuple[int, int]] = field(default_factory=dict)
    is_compared: bool = False


class Replicas:
    """What this process has digested of replicas, in the cell that runs or ran last.

    Args:
        process_index: This process.

    Attributes:
        results: Those of programs that may make replicas unequal.
    """

    def __init__(self, process_index: int) -> None:
        self._me = process_index
        self._done: set[int] = {0}  # by origin; 0 have all arrays of this process alone
        self._cell = _Cell()
        self._lock = threading.Lock()
        self.results = UncheckedResults(self._replicated, self._digest_result)

    def begin(self, *, is_compared: bool) -> None:
        """Begins a cell; results that others may digest in it only are kept for one more."""
        kept = [each for each in self._cell.looked if each.described.role == "result"]
        self._cell = _Cell(kept, is_compared=is_compared)
        self.results.begin()

    def unseen(self, origins: Sequence[Origin]) -> list[int]:
        """Returns which arguments of a dispatch may have to be digested: few, or none."""
        done = self._done
        return [
            i for i, each in enumerate(origins) if each[1][1] != "dispatch" and each[0] not in done
        ]

    def digest(
        self,
        positions: Sequence[int],
        arguments: Sequence[Any],
        origins: Sequence[Origin],
        dispatch: _Dispatch,
    ) -> tuple[tuple[Processes, int], ...]:
        """Digests arguments that were not digested before; waits for them if they are computed.

        Args:
            positions: Which arguments.
            arguments: All that is given to the dispatch.
            origins: Their origins.
            dispatch: The processes that it spans, its number, its name, its line.

        Returns:
            For each set of processes that hold the same parts a number, which is to be equal on
            these; for this process alone if its own devices hold other bytes each.
        """
        found: dict[Processes, tuple[int, int]] = {}
        for position in positions:
            array = ORIGINS.array_of(arguments[position])
            number = origins[position][0]
            if array is None or _DONE in array.__dict__ or array.is_deleted():
                continue
            parts = self._parts_of(array)
            if len(self._done) > MAX_DONE:
                self._done = {0}
            self._done.add(number)
            array.__dict__[_DONE] = True
            if parts:
                value = arguments[position]
                self._add(
                    found, self._looked(value, array, position, origins[position], dispatch, parts)
                )
        return tuple((processes, value) for processes, (_, value) in sorted(found.items()))

    def _looked(self, value: Any, array: Any, position: int, origin: Origin, dispatch: _Dispatch,
                parts: tuple[ReplicaPart, ...], role: Role = "argument",
                axes: tuple[str, ...] = ()) -> _Looked:  # fmt: skip
        (processes, number, computation, line), (base, made) = dispatch, origin
        layout = self._layout_of(array)
        described = DigestedArray(
            processes, number, position, computation, line, "", made.base,
            origin_text(made, base), type_label(*_kind_of(value, array)),
            layout.spec or layout.text, parts, role, axes,
        )  # fmt: skip
        return _Looked(described, base, weakref.ref(array))

    def _layout_of(self, array: Any) -> Layout:
        return layout_of(array.sharding, tuple(array.shape))

    def _replicated(self, value: Any) -> Any:
        """Returns the array that holds a value, if several devices hold a part of it; else None."""
        array = ORIGINS.array_of(value)
        is_one = array is not None and _is_replicated(array, self._layout_of(array))
        return array if is_one else None

    def _digest_result(
        self, position: int, array: Any, axes: tuple[str, ...], dispatch: _Dispatch
    ) -> None:
        origin = ORIGINS.of(array)
        if origin is not None and (parts := self._parts_of(array)):
            looked = self._looked(array, array, position, origin, dispatch, parts, "result", axes)
            self._add({}, looked)

    def put(self, value: Any, given: Any) -> None:
        """Digests host data that were put onto devices of this and other processes, but not of all.

        Each gives the same, be the array replicated or not. Where all take part, JAX compares it.
        """
        array, origin = ORIGINS.array_of(value), ORIGINS.of(value)
        if not self._cell.is_compared or origin is None or origin[1].kind != "created":
            return
        owners = {each.id: each.process_index for each in array.sharding.device_set}
        processes = tuple(sorted(set(owners.values())))
        if self._me not in processes or not 1 < len(processes) < jax.process_count():
            return
        if number := digest_of_put(given, array.dtype):
            made = origin[1]
            device = min(i for i, process in owners.items() if process == self._me)
            whole = tuple((0, size) for size in array.shape)
            part = ReplicaPart(whole, processes, ((device, f"{number:014x}"),))
            at = processes, made.place or made.base, made.name, made.line
            self._add({}, self._looked(value, array, 0, origin, at, (part,), "put"))

    def _add(self, found: dict[Processes, tuple[int, int]], looked: _Looked) -> None:
        with self._lock:
            described, trails = looked.described, self._cell.trails
            for k, part in enumerate(described.parts):
                digests = {each for _, each in part.digests}
                value = int(min(digests)[:14], 16)
                holders = part.processes
                if len(digests) > 1:  # the devices of this process do not have the same
                    holders = (self._me,)
                elif len(holders) == 1:
                    continue
                for known in (found, trails):
                    count, before = known.get(holders, (0, 0))
                    # In any order: results are digested when they are there.
                    step = hash((described.number, described.position, k, value))
                    known[holders] = count + 1, (before + step) & MASK
            self._cell.looked.append(looked)

    def _parts_of(self, array: Any) -> tuple[ReplicaPart, ...]:
        """Digests the parts of an array that are here and on another device too."""
        layout = self._layout_of(array)
        if not _is_replicated(array, layout):
            return ()
        by_index: dict[Any, list[Any]] = {}
        for shard in layout.shards:
            by_index.setdefault(shard.index, []).append(shard)
        replicated = {index: held for index, held in by_index.items() if len(held) > 1}
        shards = [shard for held in replicated.values() for shard in held]
        mine = {shard.device_id for shard in shards if shard.process_index == self._me}
        if not mine:
            return ()
        digests = _digests(array, mine)
        parts = []
        for index, held in replicated.items():
            here = tuple(
                (s.device_id, digests[s.device_id]) for s in held if s.device_id in digests
            )
            if here:
                holders = tuple(sorted({shard.process_index for shard in held}))
                parts.append(ReplicaPart(index, holders, here))
        return tuple(parts)

    def forget(self, processes: Processes, number: int) -> None:
        """Has arrays digested again when they are used again: a dispatch of them was not made."""
        with self._lock:
            for each in self._cell.looked:
                of = each.described
                if (of.role, of.processes, of.number) == ("argument", processes, number):
                    self._done.discard(each.origin)
                    if (array := each.array()) is not None:
                        array.__dict__.pop(_DONE, None)

    # ------------------------------------------------------------------ what the notebook asks

    def trails(self) -> tuple[ReplicaTrail, ...]:
        """Returns what was digested in the cell, in short; digests what has come by its end."""
        self.results.look()
        with self._lock:
            found = sorted(self._cell.trails.items())
        return tuple(ReplicaTrail(processes, *counted) for processes, counted in found)

    def digested(self) -> list[DigestedArray]:
        """Returns the arrays that were digested in the cell, with the names they have now."""
        with self._lock:
            looked = list(self._cell.looked)
        names = ORIGINS.names({each.origin for each in looked})
        return [replace(each.described, name=names.get(each.origin, "")) for each in looked]


def _is_replicated(array: Any, layout: Layout) -> bool:
    # The devices of one that is unreduced hold summands, which differ.
    return not unreduced_axes(array.sharding) and any(s.replica_id for s in layout.shards)


def _kind_of(value: Any, array: Any) -> tuple[Any, Any]:
    """Returns dtype and shape of what was given: of keys theirs, not those of their words."""
    is_key = isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    return (value.dtype, value.shape) if is_key else (array.dtype, array.shape)


def _digests(array: Any, devices: set[int]) -> dict[int, str]:
    """Digests what this process's devices hold; memory that they share once."""
    found: dict[int, str] = {}
    shared: dict[int, tuple[str, Any]] = {}  # with the memory, so that no other takes its place
    for data in device_arrays(array):
        device = int(next(iter(data.sharding.device_set)).id)
        if device not in devices:
            continue
        words = host_words(data)
        place = words.ctypes.data if words.size else 0
        if place not in shared:
            shared[place] = digest(words).hex(), words
        found[device] = shared[place][0]
    return found
