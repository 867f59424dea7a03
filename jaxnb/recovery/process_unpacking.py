"""Variables that another process has packed, made again in this one."""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, ClassVar, cast

from jaxnb.arrays.lost import MAKE_AGAIN, MAKE_ANEW, LostArray, LostValue, loss_of, set_text
from jaxnb.arrays.process_names import Found, paths_to
from jaxnb.errors import ValueGoneError
from jaxnb.recovery.messages import LostPart
from jaxnb.recovery.process_arrays import is_array


@dataclass(slots=True)
class Loss:
    """An object that cannot be packed; kept, so that its id stays its own.

    Of one that ``is_whole`` not even the type is asked: what asked it before has failed.
    """

    value: Any
    reason: str
    name: str
    path: str = ""
    also: tuple[str, ...] = ()
    shards: tuple[tuple[Any, Any], ...] = ()
    is_whole: bool = False

    @property
    def part(self) -> LostPart:
        """What is told of it."""
        is_old = issubclass(type(self.value), LostValue)
        kind = type_text(self.value)
        return LostPart(self.path or self.name, kind, self.reason, is_old, self.also)

    @property
    def stand_in(self) -> LostValue:
        """What takes its place: each use of it raises."""
        value = self.value
        if issubclass(type(value), LostValue):
            return cast(LostValue, value)
        if is_array(self.value):
            advice = MAKE_ANEW if self.shards else MAKE_AGAIN
            part = self.part
            return LostArray(lost_text(part), self.shards, advice, part.type, self.reason)
        return LostValue(lost_text(self.part), kind=self.part.type, reason=self.reason)


def in_words(each: Loss) -> str:
    """Returns what an object is, with its article."""
    kind = type_text(each.value)
    return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"


def type_text(value: Any) -> str:
    """Returns what something is, in a word: ``"generator"``, ``"CheckpointManager"``."""
    kind = type(value)
    if issubclass(kind, LostValue):
        return loss_of(value)[0]
    if is_array(value):
        return f"{value.dtype}{list(value.shape)}"
    return str.__str__(kind.__qualname__)  # it may be of a class of the user's


def reason_of(error: BaseException) -> str:
    """Returns why something cannot be packed; what pickle itself says needs no type before it."""
    if isinstance(error, RecursionError):
        return "nested too deep"
    if isinstance(error.__cause__, RecursionError):
        return reason_of(error.__cause__)
    is_of_pickle = isinstance(error, TypeError | pickle.PicklingError) and str(error)
    return str(error) if is_of_pickle else f"{type(error).__name__}: {error}".rstrip(": ")


def lost_text(part: LostPart) -> str:
    """Returns what has become of a part, as the beginning of a sentence."""
    return f"`{part.path}` ({part.type}) was not carried over: {part.reason}"


_Unpickler: Any = pickle._Unpickler
"""The one that is written in Python, whose steps can be watched."""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """Variables, made again.

    Attributes:
        variables: Names and values.
        lost: By name, what could not be made again here, beside what could not be packed.
        stand_ins: What is in its place.
    """

    variables: Mapping[str, Any]
    lost: Mapping[str, tuple[LostPart, ...]] = field(default_factory=dict)
    stand_ins: tuple[LostValue, ...] = field(default=())

    def lost_of(self, names: Container[str]) -> list[LostPart]:
        """Returns what was lost under some names."""
        return [part for name, parts in self.lost.items() if name in names for part in parts]


def unpack(
    data: bytes | memoryview,
    buffers: Sequence[Any],
    sizes: Mapping[str, int],
    met: Callable[[str, Any], None] = lambda name, value: None,
) -> Unpacked:
    """Makes variables again.

    What cannot be made here (a module is missing, a class's ``__setstate__`` raises) does not keep
    the rest from it: a stand-in takes its place.

    Args:
        data: The pickles, one a name.
        buffers: What was left out of them. What is made shares their memory where it can.
        sizes: The names, and the sizes of their pickles in bytes.
        met: Called with each name and value, when it is made; twice if something is lost.

    Raises:
        KeyboardInterrupt: It was interrupted.
    """
    try:
        unpickler = pickle.Unpickler(io.BytesIO(data), buffers=buffers)
        found = {}
        for _ in sizes:
            name, value = unpickler.load()
            found[name] = value
            met(name, value)
        return Unpacked(found)
    except (Exception, SystemExit):  # once more, part by part, to find which it was
        return _unpack_patiently(data, buffers, sizes, met)


def _unpack_patiently(
    data: bytes | memoryview,
    buffers: Sequence[Any],
    sizes: Mapping[str, int],
    met: Callable[[str, Any], None],
) -> Unpacked:
    file = io.BytesIO(data)
    patient = _PatientUnpickler(file, buffers=buffers)
    found, start = {}, 0
    for name, size in sizes.items():
        file.seek(start)
        known = len(patient.memo)
        try:
            _, value = patient.load()
        except (Exception, SystemExit) as error:  # of what was lost before, say
            value = patient.stand_in("value", error)
            # Pickles refer to objects by their number: the next one's must come out right.
            numbered = _numbered(bytes(data[start : start + size]))
            patient.memo |= dict.fromkeys(range(len(patient.memo), known + numbered), value)
        found[name] = value
        met(name, value)
        patient.name_lost(name)
        start += size
    return Unpacked(found, patient.named(found), tuple(patient.stand_ins))


def _numbered(data: bytes) -> int:
    """Returns how many objects a pickle numbers."""
    return sum(step.name == "MEMOIZE" for step, _, _ in pickletools.genops(data))


class _PatientUnpickler(_Unpickler):  # type: ignore[misc]
    """Goes on where something cannot be made, with a stand-in; in Python, so slower than C's.

    Attributes:
        stand_ins: What is in the place of what could not be made.
    """

    dispatch: ClassVar = dict(_Unpickler.dispatch)

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.stand_ins: list[LostValue] = []
        self._lost: dict[str, list[LostValue]] = {}
        self._new: list[LostValue] = []

    def name_lost(self, name: str) -> None:
        """Notes under which name what was lost since the last call is."""
        if self._new:
            self._lost[name], self._new = self._new, []

    def named(self, variables: Mapping[str, Any]) -> dict[str, tuple[LostPart, ...]]:
        """Returns what was lost, by name, and has each stand-in tell where it is.

        Args:
            variables: All that was made.
        """
        paths = paths_to(variables, {*map(id, self.stand_ins)})
        for each in self.stand_ins:
            if found := paths.get(id(each)):
                set_text(each, lost_text(LostPart(found.path, *loss_of(each))))
        return {name: tuple(self._parts(name, variables[name], paths)) for name in self._lost}

    def _parts(self, name: str, value: Any, paths: Mapping[int, Found]) -> list[LostPart]:
        """Returns what was lost under a name, each thing once: where it is, if that is known."""
        parts: dict[tuple[str, str], LostPart] = {}
        for each in self._lost[name]:
            found = paths.get(id(each))
            path = name if found is None or found.chain[0] is not value else found.path
            parts.setdefault(loss_of(each), LostPart(path, *loss_of(each)))
        return [*parts.values()]

    def find_class(self, module: str, name: str) -> Any:
        """Returns what a name stands for, or a stand-in for it."""
        try:
            return super().find_class(module, name)
        except (Exception, SystemExit) as error:  # what its module raises when it is imported
            return self.stand_in(f"{module}.{name}", error)

    def stand_in(self, kind: str, error: BaseException) -> LostValue:
        """Returns what takes the place of something that cannot be made, and notes it."""
        reason = reason_of(error)
        made = LostValue(lost_text(LostPart(kind, "in a value", reason)), kind=kind, reason=reason)
        self.stand_ins.append(made)
        if not isinstance(error, ValueGoneError):  # of another one, which was told
            self._new.append(made)
        return made

    def make(self, load: Callable[[Any], None], made_of: int) -> None:
        """Runs a step of the pickle that makes or fills an object; if it raises, that is lost.

        Args:
            load: The step.
            made_of: How many things on the stack it takes, the object or its class first.
        """
        depth = len(self.stack) - made_of
        first, *given = self.stack[depth:]
        try:
            load(self)
        except (Exception, SystemExit) as error:  # a constructor's, a __setstate__ of the user's
            parts = [part for each in given if isinstance(each, tuple) for part in each]
            lost = [each for each in (first, *given, *parts) if isinstance(each, LostValue)]
            self._replace(depth, lost[0] if lost else first, error)

    def fill(self, load: Callable[[Any], None]) -> None:
        """Runs a step that puts things into the container below the last mark."""
        depth = len(self.metastack[-1]) - 1
        first = self.metastack[-1][-1]
        try:
            load(self)
        except (Exception, SystemExit) as error:  # an `append`, a `__setitem__`, a `__hash__`
            self._replace(depth, first, error)

    def _replace(self, depth: int, first: Any, error: BaseException) -> None:
        is_lost = isinstance(first, LostValue)  # it was told when it was met
        made = first if is_lost else self.stand_in(_kind_of(first), error)
        del self.stack[depth:]
        self.stack.append(made)
        for key, value in self.memo.items():
            if value is first and not is_lost and not isinstance(first, type | FunctionType):
                self.memo[key] = made


def _kind_of(value: Any) -> str:
    kind = value if isinstance(value, type | FunctionType) else type(value)
    return kind.__qualname__.lstrip("_")  # of ours, the maker of arrays say


def _step(name: str, made_of: int) -> Callable[[Any], None]:
    load = getattr(_Unpickler, name)
    if made_of:
        return lambda unpickler: unpickler.make(load, made_of)
    return lambda unpickler: unpickler.fill(load)


for _opcode, _name, _made_of in (
    (pickle.REDUCE, "load_reduce", 2),
    (pickle.NEWOBJ, "load_newobj", 2),
    (pickle.NEWOBJ_EX, "load_newobj_ex", 3),
    (pickle.BUILD, "load_build", 2),
    (pickle.APPEND, "load_append", 2),
    (pickle.SETITEM, "load_setitem", 3),
    (pickle.APPENDS, "load_appends", 0),
    (pickle.SETITEMS, "load_setitems", 0),
    (pickle.ADDITEMS, "load_additems", 0),
):
    _PatientUnpickler.dispatch[_opcode[0]] = _step(_name, _made_of)
