"""Origins: from where each global array comes, so that processes can compare what they use.

An array's origin is an attribute of the array object itself, as arrays are not hashable: it lives
as long as the array, and costs a dictionary entry. Two processes' parts of one array have the same
number: that of the dispatch that made it (the cell, the processes that it spans, how many came
before it there, which result) or, for an array that was made of host data, that of the call (the
cell, the processes, and how many arrays of its shape and dtype were made before it there). What is
put together again of the shards of such an array has a number that rests on that array's too.

What is not counted: arrays of this process alone; arrays that other threads or asyncio tasks than
the cell's own make, as those come in any order (orbax reads so); results of dispatches while
checking is off. Of these the origin is unknown, and they are not compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import os
import sys
import threading
import traceback
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

import jax
import numpy as np

from jaxnb.compat import jax_arrays as internals
from jaxnb.labels import type_label
from jaxnb.lockstep.provenance import OF_PARTS, origin_text
from jaxnb.model.dispatches import Argument, DispatchEnd, Made, Origin

_OWN = (
    *(str(Path(file).parent) for file in (jax.__file__, np.__file__)),
    str(Path(__file__).parents[1]),
)
"""Where code lies that raises errors of a dispatch, jaxlib's too."""

_SKIPPED = tuple(f"{folder}{os.sep}" for folder in _OWN)

MAX_CALLS = 4096
"""So many calls are remembered, in which some code was on the way to a dispatch."""

_CALLS: dict[tuple[int, int], tuple[int | None, CodeType]] = {}
"""What :func:`_called` gives for a call, by the code's id and the instruction; and that code, held
so that its id is that of no other."""

MASK = (1 << 61) - 1
"""Sums of hashes stay below this, as hashes do."""


_OF_CALLS = (
    "api.py", "compilation_cache.py", "core.py", "pjit.py", "profiler.py", "pxla.py", "stages.py",
    "traceback_util.py",
)  # fmt: skip
"""Files of JAX's that are on the way to any dispatch."""


def calls_jax(frame: FrameType | None) -> bool:
    """Whether the code has called a function of JAX's own, or an operator, and not a jitted one.

    What those call their arguments tells the user nothing: ``y`` is the second of an addition.
    """
    while frame is not None and (name := frame.f_code.co_filename).startswith(_SKIPPED):
        if name.startswith(_JAX) and not name.endswith(_OF_CALLS):
            return True
        frame = frame.f_back
    return False


def is_of_jax(computation: str) -> bool:
    """Whether a computation has the name of a function of JAX's that is jitted: ``jit(dot)``."""
    name = computation.removeprefix("jit(").removesuffix(")")
    return any(hasattr(module, name) for module in (jax.numpy, jax.lax, jax.nn, jax.random))


def line_in(frame: FrameType | None, code_name: str) -> int | None:
    """Returns the innermost line of the cell that called; None if it did not."""
    while frame is not None:
        if frame.f_code.co_filename == code_name:
            return frame.f_lineno
        frame = frame.f_back
    return None


def place_in(frame: FrameType | None, code_name: str) -> tuple[int | None, int]:
    """Returns the innermost line of the cell that called, and a number for the place in the code.

    The place is that of every call on the way to here, from the cell on, in functions of earlier
    cells and of modules too; calls on one line have different places. Outside of the cell: None and
    0. The number is the same in all processes.
    """
    line, place = None, 0
    while frame is not None:
        code, instruction = frame.f_code, frame.f_lasti
        known = _CALLS.get((id(code), instruction))
        called = _called(frame) if known is None else known[0]
        if called is not None:
            place = hash((place, called, instruction))
            if code.co_filename == code_name:
                if line is None:
                    line = frame.f_lineno
                if code.co_name == "<module>":
                    break
        frame = frame.f_back
    return (None, 0) if line is None else (line, place & MASK)


def _called(frame: FrameType) -> int | None:
    """Returns the number of a call by file, function and line; None if it is in code of JAX's."""
    code = frame.f_code
    called = None
    if not code.co_filename.startswith(_SKIPPED):
        # The folder of a cell's file may have the number of its process in its name.
        name = f"{code.co_filename.rpartition('/')[2]}:{code.co_name}"
        # The line too: each statement of a cell is compiled by itself.
        called = zlib.crc32(name.encode(), frame.f_lineno or 0)
    if len(_CALLS) >= MAX_CALLS:
        _CALLS.clear()
    _CALLS[id(code), frame.f_lasti] = called, code
    return called


def end_of(error: BaseException) -> DispatchEnd:
    """Returns how a dispatch ended that raised."""
    if isinstance(error, KeyboardInterrupt) or _is_of_handler(error):
        return "interrupted"
    return "broken" if "Gloo" in str(error) else "failed"


def _is_of_handler(error: BaseException) -> bool:
    """Whether a signal's handler has raised it: nothing else of the user's runs in a dispatch."""
    innermost = deque(traceback.walk_tb(error.__traceback__), maxlen=1)
    return not any(frame.f_code.co_filename.startswith(_OWN) for frame, _ in innermost)


T = TypeVar("T")
ATTRIBUTE = "_jaxnb_origin"

PART = "_jaxnb_part"
"""Of an array of this process alone: of which array that spans processes it is a part."""

MAX_AGREED = 1 << 14
"""So many arrays are remembered of which processes have agreed that they are one."""

_AGREED = 7

MOST_HOLDERS = 4
"""An array is looked for under so many names: a tuple may hold what a name is bound to, too."""


_get = attrgetter(ATTRIBUTE)
_number = itemgetter(0)
_JAX = str(Path(jax.__file__).parent)
_CREATED = 1
_UNKNOWN = Made(0, "unknown", "", 0, 0, None)
_NO_ORIGIN: Origin = (0, _UNKNOWN)


class _Scope:
    """A time in which all processes make the same arrays in the same order."""

    def __init__(self, name: str, cell: int, code_name: str, by: str = "") -> None:
        self.run = number_of(name)
        self.by = by
        self.cell = cell
        self.code_name = code_name
        self.counts: dict[tuple[int, ...], int] = {}
        self.task = _task()


class _Thread(threading.local):
    scope: _Scope | None = None


class Origins:
    """Gives the global arrays of this process their origins."""

    def __init__(self) -> None:
        self._cell: _Scope | None = None
        self._thread = _Thread()
        self._class: type | None = None
        """Of concrete arrays."""
        self.missing: tuple[str, ...] = ()
        """What is not seen with this JAX, and why."""
        self._unknown = itertools.count(-1, -1)
        self._has_unknown = False
        self._agreed: dict[int, int] = {}  # numbers, to those that all have agreed on
        self.variables: Callable[[int], Iterable[tuple[str, Any]]] = lambda _: ()
        self._is_dispatching: Callable[[], int] = int

    def install(self, is_dispatching: Callable[[], int], put: Callable[[Any, Any], None]) -> None:
        """Sees arrays that are made from now on; ``missing`` says which it cannot see.

        Args:
            is_dispatching: Whether this thread is making a dispatch: what JAX makes meanwhile, of
                the arguments, is not the user's.
            put: Takes an array that ``jax.device_put`` has made, and what it was given to put.
        """
        self._is_dispatching = is_dispatching
        if self._class is None:
            self._class = internals.array_class()
            hooked = (
                ("how arrays were made, before a use", internals.hook_creations(self._created)),
                ("arrays of jax.device_put", internals.hook_puts(_put, put)),
                ("whose shards arrays are made of", internals.hook_parts(_separated)),
            )
            self.missing = tuple(f"{what} ({why})" for what, why in hooked if why)

    # ------------------------------------------------------------------ when

    def begin(self, request_id: str, cell: int, code_name: str) -> None:
        """Begins a cell, in this thread and asyncio task."""
        self._cell = self._thread.scope = _Scope(request_id, cell, code_name)

    def continue_in(self, task: T) -> T:
        """Has the arrays of another asyncio task counted as the cell's; returns the task."""
        if self._cell is not None:
            self._cell.task = task
        return task

    def end(self) -> None:
        """Ends the cell: what is made later has no place in the order of its arrays."""
        self._cell = self._thread.scope = None

    @contextlib.contextmanager
    def within(self, name: str, by: str) -> Iterator[None]:
        """Counts the arrays that this thread makes meanwhile, apart from all others.

        Args:
            name: The same on all processes, and of no other time: a transfer's.
            by: What is said to have made them.
        """
        before = self._thread.scope
        self._thread.scope = _Scope(name, 0, "", by)
        try:
            yield
        finally:
            self._thread.scope = before

    # ------------------------------------------------------------------ what

    def of_arguments(self, arguments: Iterable[Any]) -> tuple[Origin, ...]:
        """Returns the origins of what is given to a dispatch; one without global array has 0.

        Nothing is computed, read or waited for. An array without origin gets a number that no
        other one has, by which it is known in this process.
        """
        arguments = list(arguments)
        try:
            return tuple(map(_get, arguments))
        except AttributeError:
            return tuple([self._of_argument(each) for each in arguments])

    def _of_argument(self, value: Any) -> Origin:
        array = self.array_of(value)
        if array is None or array.sharding.is_fully_addressable:
            return _NO_ORIGIN
        found = origin_of(array)
        if found is None:
            self._has_unknown = True
            found = give(array, _UNKNOWN, next(self._unknown))
        return found

    def numbers(self, origins: Iterable[Origin]) -> tuple[int, ...]:
        """Returns the numbers by which processes compare arrays; 0 for those of unknown origin."""
        agreed = self._agreed
        if not (agreed or self._has_unknown):
            return tuple(map(_number, origins))
        return tuple([agreed.get(n, n if made.base else 0) for n, made in origins])

    def agree(self, given: Mapping[int, Sequence[Argument]], me: int) -> None:
        """Has arrays that differ in number only compared by one number from now on.

        Args:
            given: Process index to the arrays that it gave to a dispatch.
            me: This process.
        """
        if len(self._agreed) > MAX_AGREED:
            self._agreed.clear()
        for mine in given[me]:
            all_of_it = [
                e for those in given.values() for e in those if e.position == mine.position
            ]
            numbers = {each.number for each in all_of_it}
            # 0 stands for all arrays of unknown origin, and for what spans no processes.
            if len(numbers) > 1 and 0 not in numbers:
                places = sorted({each.made.place for each in all_of_it})
                self._agreed[mine.number] = hash((_AGREED, *places))

    def array_of(self, value: Any) -> Any:
        """Returns the array that holds a value's elements; None if it is not an array of JAX's."""
        if type(value) is self._class:
            return value
        found = internals.buffer_of(value)
        return found if type(found) is self._class else None

    def of(self, value: Any) -> Origin | None:
        """Returns the origin of an array, of keys too; None if it has none."""
        return origin_of(self.array_of(value))

    def carry(self, origin: Origin | None, array: Any) -> None:
        """Gives an array that was made anew from the parts of another the other's origin."""
        target = self.array_of(array)
        if origin is not None and target is not None:
            give(target, origin[1], origin[0])

    def dispatched(self, made: Made, results: Sequence[Any]) -> None:
        """Gives the results of a dispatch their origins; those that have one keep it."""
        for number, each in enumerate(results, made.base):
            array = each if type(each) is self._class else self.array_of(each)
            if array is not None and ATTRIBUTE not in array.__dict__:
                array.__dict__[ATTRIBUTE] = number, made

    def replaced(self, made: Made, written: Sequence[Any]) -> None:
        """Gives arrays that refs are to, which a dispatch has changed, origins of that dispatch."""
        for i, array in enumerate(written):
            if array is not None:
                array.__dict__[ATTRIBUTE] = made.base - 1 - i, made

    def described(self, origins: Sequence[Origin]) -> list[Argument]:
        """Returns what is known of a dispatch's arguments, with the names that they have now."""
        names = self.names({number for number, _ in origins})
        return [
            Argument(i, names.get(number, ""), number if made.base else 0, made)
            for i, (number, made) in enumerate(origins)
            if number
        ]

    def names(self, wanted: Collection[int]) -> dict[int, str]:
        """Returns the first name in the namespace of the arrays with these numbers."""
        found: dict[int, str] = {}
        for name, value in self.variables(1):
            origin = self.of(value)
            if origin is not None and origin[0] in wanted:
                found.setdefault(origin[0], name)
        return found

    def bound(self) -> list[Argument]:
        """Returns all names of the namespace that hold global arrays, leaves of containers too."""
        found = [(n, v, self.of(v)) for n, v in self.variables(MOST_HOLDERS)]
        return [
            Argument(
                0,
                name,
                *origin,
                processes=tuple(_processes(self.array_of(value).sharding)),
                type=type_label(value.dtype, value.shape),
            )
            for name, value, origin in found
            if origin and origin[1].base
        ]

    def _created(self, array: Any, of: Any) -> None:
        parts = [part for each in of if (part := getattr(each, PART, None)) is not None]
        if array.sharding.is_fully_addressable:
            if parts:
                array.__dict__[PART] = parts[0]
            return
        if self._is_dispatching() or ATTRIBUTE in array.__dict__:
            return
        scope = self._thread.scope
        if scope is None or _task() is not scope.task:
            return
        name, line, site = _caller(scope.code_name)
        if name is not None:
            made = _counted(scope, array, scope.by or name, line, site)
            give(array, _of_parts(made, array, parts) if parts else made)


def _put(array: Any, before: Any) -> None:
    """Gives an array that JAX has made anew of one that it had just made the other's origin."""
    for name in (ATTRIBUTE, PART):
        if (found := getattr(before, name, None)) is not None and array is not before:
            array.__dict__[name] = found


def _separated(array: Any, parts: list[Any]) -> None:
    """Notes of which array its parts are, as they become arrays of this process alone."""
    part = array.__dict__.get(PART)
    if part is None:
        origin = array.__dict__.get(ATTRIBUTE)
        if origin is None or array.sharding.is_fully_addressable:
            return
        part = origin, _processes(array.sharding)
    for each in parts:
        each.__dict__[PART] = part


def _of_parts(made: Made, array: Any, parts: Sequence[tuple[Origin, list[int]]]) -> Made:
    """Returns what made an array of parts of others that span the same processes.

    Processes give an array over all of them their own arrays over some of them on purpose.
    """
    spanned = _processes(array.sharding)
    found = {origin[0]: origin for origin, of in parts if of == spanned}
    if not found:
        return made
    number, first = next(iter(found.values()))
    text = origin_text(first, number) if OF_PARTS not in first.name else "others"
    name = f"{made.name}{OF_PARTS}{text}"
    base, place = (hash((each, *sorted(found))) for each in (made.base, made.place))
    return made._replace(base=base, name=name, place=place)


def _processes(sharding: Any) -> list[int]:
    return sorted({device.process_index for device in sharding.device_set})


def _counted(scope: _Scope, array: Any, name: str, line: int | None, site: int) -> Made:
    processes = _processes(array.sharding)
    dtype = zlib.crc32(str(array.dtype).encode())
    key = _CREATED, dtype, *processes, -1, *array.shape
    number = scope.counts[key] = scope.counts.get(key, 0) + 1
    base = hash((scope.run, number, *key))
    place = 0
    if site:
        at = site, *key
        count = scope.counts[at] = scope.counts.get(at, 0) + 1
        place = hash((scope.run, count, *at))
    return Made(base, "created", name, scope.cell, number, line, place)


def number_of(name: str) -> int:
    """Returns a number for a name: the same in every process, which ``hash`` is not."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest())


def origin_of(array: Any) -> Origin | None:
    """Returns an array's origin; None for one that has none yet, and for all that is local."""
    return getattr(array, ATTRIBUTE, None)


def give(array: Any, made: Made, number: int | None = None) -> Origin:
    """Gives an array its origin, in place of any that it has."""
    origin = made.base if number is None else number, made
    array.__dict__[ATTRIBUTE] = origin
    return origin


def _task() -> Any:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _caller(code_name: str) -> tuple[str | None, int | None, int]:
    """Returns which function of JAX's the user has called, from which line and place of the cell.

    No name if JAX makes the array for itself: a constant of a compiled computation.
    """
    frame: FrameType | None = sys._getframe(3)
    name = ""
    while frame is not None and frame.f_code.co_filename.startswith(_JAX):
        called = frame.f_code.co_name
        if called == "shard_const_args":
            return None, None, 0
        if not called.startswith(("_", "<", "reraise", "wrap", "cache_miss")):
            name = called
        frame = frame.f_back
    return name, *place_in(frame, code_name)


ORIGINS = Origins()
"""This process's."""
