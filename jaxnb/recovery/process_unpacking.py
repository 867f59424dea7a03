"""Variables that another process has packed, made again in this one."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from jaxnb.engine.lost import LostValue
from jaxnb.model.recovery import LostPart
from jaxnb.recovery.process_state import lost_text, reason_of

_Unpickler: Any = pickle._Unpickler
"""The one that is written in Python, whose steps can be watched."""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """Variables, made again.

    Attributes:
        variables: Names and values.
        lost: What could not be made again here, beside what could not be packed.
    """

    variables: Mapping[str, Any]
    lost: tuple[LostPart, ...] = field(default=())


def unpack(
    data: bytes | memoryview,
    buffers: Sequence[Any],
    count: int,
    met: Callable[[str, Any], None] = lambda name, value: None,
) -> Unpacked:
    """Makes variables again.

    What cannot be made here (a module is missing, a class's ``__setstate__`` raises) does not keep
    the rest from it: a stand-in takes its place.

    Args:
        data: The pickles, one a name.
        buffers: What was left out of them. What is made shares their memory where it can.
        count: The number of names.
        met: Called with each name and value, when it is made; twice if something is lost.

    Raises:
        Exception: The data are cut short, or are no pickles.
    """
    try:
        return Unpacked(_load(pickle.Unpickler(io.BytesIO(data), buffers=buffers), count, met))
    except Exception:  # once more, part by part, to find which it was
        patient = _PatientUnpickler(io.BytesIO(data), buffers=buffers)
        variables = _load(patient, count, met, patient)
        return Unpacked(variables, tuple(dict.fromkeys(patient.lost)))


def _load(
    unpickler: Any, count: int, met: Callable[[str, Any], None], patient: Any = None
) -> dict[str, Any]:
    found = {}
    for _ in range(count):
        name, value = unpickler.load()
        found[name] = value
        met(name, value)
        if patient is not None:
            patient.name_lost(name)
    return found


class _PatientUnpickler(_Unpickler):  # type: ignore[misc]
    """Goes on where something cannot be made, with a stand-in; in Python, so slower than C's.

    Attributes:
        lost: What could not be made.
    """

    dispatch: ClassVar = dict(_Unpickler.dispatch)

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.lost: list[LostPart] = []
        self._new: list[tuple[str, str]] = []

    def name_lost(self, name: str) -> None:
        """Notes under which name what was lost since the last call is."""
        self.lost += [LostPart(name, kind, reason) for kind, reason in self._new]
        self._new.clear()

    def find_class(self, module: str, name: str) -> Any:
        """Returns what a name stands for, or a stand-in for it."""
        try:
            return super().find_class(module, name)
        except Exception as error:  # what its module raises when it is imported
            return self._stand_in(f"{module}.{name}", error)

    def _stand_in(self, kind: str, error: BaseException) -> LostValue:
        reason = reason_of(error)
        self._new.append((kind, reason))
        return LostValue(lost_text(LostPart(kind, "in a value", reason)))

    def _try(self, load: Any, kind: Any, *left: Any) -> None:
        """Runs one step of the pickle; if it raises, what it was to make is lost."""
        depth = len(self.stack) - len(left)
        try:
            load(self)
        except Exception as error:  # a constructor's, or a __setstate__ of the user's
            if isinstance(kind, LostValue):  # it was told when it was met
                made: Any = kind
            else:
                made = self._stand_in(getattr(kind, "__qualname__", type(kind).__qualname__), error)
            del self.stack[depth:]
            self.stack.append(made)

    def load_reduce(self) -> None:
        """Calls a function with arguments."""
        self._try(_Unpickler.load_reduce, self.stack[-2], *self.stack[-2:])

    dispatch[pickle.REDUCE[0]] = load_reduce

    def load_newobj(self) -> None:
        """Makes an object of a class."""
        self._try(_Unpickler.load_newobj, self.stack[-2], *self.stack[-2:])

    dispatch[pickle.NEWOBJ[0]] = load_newobj

    def load_newobj_ex(self) -> None:
        """Makes an object of a class, with named arguments."""
        self._try(_Unpickler.load_newobj_ex, self.stack[-3], *self.stack[-3:])

    dispatch[pickle.NEWOBJ_EX[0]] = load_newobj_ex

    def load_build(self) -> None:
        """Sets the state of an object."""
        self._try(_Unpickler.load_build, self.stack[-2], *self.stack[-2:])

    dispatch[pickle.BUILD[0]] = load_build
