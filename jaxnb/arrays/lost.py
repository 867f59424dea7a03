"""What stands for what a pull cannot give: values by process, records, and what is lost."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from jaxnb.errors import ArrayGoneError, JaxnbError, UsageError, ValueGoneError
from jaxnb.model.arrays import ArrayInfo, ArrayLeaf

if TYPE_CHECKING:
    from jaxnb.arrays.gathered import GatheredArray


class PerProcess(dict[int, Any]):
    """Values that differ by process: process index to value."""

    def __repr__(self) -> str:
        return f"PerProcess({super().__repr__()})"


Gather: TypeAlias = "Callable[[int, ArrayInfo], GatheredArray]"
"""Makes an array that stayed on the processes from its index in the value, and description."""


class NotMoved:
    """Stands in a pulled value for code that stayed on the processes: a function, say.

    Args:
        what: What it is: ``"function relu"``.
    """

    __slots__ = ("what",)

    def __init__(self, what: str) -> None:
        self.what = what

    def __repr__(self) -> str:
        return f"<not moved: {self.what}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return NotMoved, (self.what,)

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """Raises: it is on the processes only."""
        raise RuntimeError(f"{self!r} is on the processes only. Call it in a cell there.")


class Record:
    """An object of a class that a cell defined, as the notebook holds it: its parts by name.

    The class itself stays on the processes. Parts are attributes, and items by name.

    Attributes:
        _type_name: Name of the class.
        _parts: Name to part.
    """

    __slots__ = ("_parts", "_type_name")

    def __init__(self, type_name: str, parts: dict[str, Any]) -> None:
        self._type_name = type_name
        self._parts = parts

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in Record.__slots__:  # while it is being unpickled
            raise AttributeError(name)
        try:
            return self._parts[name]
        except KeyError:
            raise AttributeError(
                f"{self._type_name} has no part {name!r}; it has {', '.join(self._parts)}"
            ) from None

    def __getitem__(self, name: str) -> Any:
        return self._parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._parts]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return (self._type_name, self._parts) == (other._type_name, other._parts)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return Record, (self._type_name, self._parts)

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}={part!r}" for name, part in self._parts.items())
        return f"{self._type_name}({parts})"


def class_of(record: Record) -> str:
    """Returns the name of the class of the object that a record stands for."""
    return record._type_name


class _Unpickler(pickle.Unpickler):
    def __init__(
        self, skeleton: bytes, buffers: Sequence[Any], array: Callable[[int], Any]
    ) -> None:
        super().__init__(io.BytesIO(skeleton), buffers=buffers)
        self._array = array

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (ArrayLeaf.__module__, ArrayLeaf.__name__):
            return self._array
        try:
            return super().find_class(module, name)
        except AttributeError:
            if module != "__main__":
                raise
            raise UsageError(
                f"`{name}` is defined in the notebook, and a push sends its name only: define it "
                "in a `%%spmd` cell"
            ) from None


def unpickle(skeleton: bytes, buffers: Sequence[Any], array: Callable[[int], Any]) -> Any:
    """Reads a value that a process pickled, or the notebook.

    Args:
        skeleton: The pickle. It came over a channel signed with the cluster's key, from a
            process that this session started, or from the notebook that started this process.
        buffers: What was left out of band.
        array: Returns the array for an index, where the pickle leaves one out.

    Raises:
        Exception: It is made of something that is missing here.
    """
    return _Unpickler(skeleton, buffers, array).load()


# This module imports no jax: a notebook that pulls such an array unpickles it.

_OPERATORS = [
    "abs", "add", "and", "bool", "call", "complex", "contains", "delitem", "divmod", "enter",
    "exit", "eq", "float", "floordiv", "ge", "getitem", "gt", "iadd", "imul", "index", "int",
    "invert", "ipow", "isub", "iter", "itruediv", "le", "len", "lshift", "lt", "matmul", "mod",
    "mul", "ne", "neg", "next", "or", "pos", "pow", "radd", "rand", "rdivmod", "rfloordiv",
    "rlshift", "rmatmul", "rmod", "rmul", "ror", "rpow", "rrshift", "rshift", "rsub", "rtruediv",
    "rxor", "setitem", "sub", "truediv", "xor", "array", "format",
]  # fmt: skip


MAKE_ANEW = "Make it again: rerun the cell that made it, or load a checkpoint."
MAKE_AGAIN = "Make it again: rerun the cell that made it."


class LostValue:
    """A value that is lost: a part that could not be carried to another process, say.

    Whatever is done with it raises, so that no computation can go on without it.

    Args:
        what: The value, in words, and why it is lost.
        advice: What to do.
        kind: What it was: ``"generator"``.
        reason: Why it is lost.
    """

    __slots__ = ("__weakref__", "_advice", "_kind", "_reason", "_what")
    _error: type[JaxnbError] = ValueGoneError

    def __init__(
        self, what: str, advice: str = MAKE_AGAIN, kind: str = "", reason: str = ""
    ) -> None:
        self._what = what
        self._advice = advice
        self._kind, self._reason = kind, reason

    def __repr__(self) -> str:
        return f"<lost: {self._what}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return LostValue, (self._what, self._advice, self._kind, self._reason)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what pickle, IPython and JAX look for in any object
            raise AttributeError(name)
        self._raise()

    def _raise(self) -> NoReturn:
        raise self._error(f"{self._what}. {text_of(self)[1]}")

    __hash__ = object.__hash__


class LostArray(LostValue):
    """An array that is lost, of which nobody holds all shards any more, say: on every process.

    Args:
        what: The array, in words.
        shards: The parts that this process still has: the slices of the whole array, and the
            elements.
        advice: What to do.
        kind: What it was: ``"float32[4]"``.
        reason: Why it is lost.

    Attributes:
        shards: See above; a process that is new has none.
    """

    __slots__ = ("shards",)
    _error = ArrayGoneError

    def __init__(
        self,
        what: str,
        shards: tuple[tuple[Any, Any], ...] = (),
        advice: str = MAKE_ANEW,
        kind: str = "array",
        reason: str = "",
    ) -> None:
        super().__init__(what, advice, kind, reason or what)
        self.shards = shards

    def _raise(self) -> NoReturn:
        raise self._error(f"{self._what}. Nothing was computed. {text_of(self)[1]}")

    def __reduce__(self) -> tuple[Any, ...]:
        return LostArray, (self._what, (), self._advice, self._kind, self._reason)


def text_of(lost: LostValue) -> tuple[str, str]:
    """Returns what a value was and why it is lost, as a sentence, and what to do."""
    parts = "In a cell its `.shards` has the parts that the process still holds."
    more = f" {parts}" if lost._advice == MAKE_ANEW else ""
    return lost._what, f"{lost._advice}{more}"


def set_text(lost: LostValue, what: str) -> None:
    """Has a value tell something else of what it was and why it is lost.

    Args:
        lost: The value.
        what: See :class:`LostValue`.
    """
    lost._what = what


def loss_of(lost: LostValue) -> tuple[str, str]:
    """Returns what a value was, in a word, and why it is lost."""
    return lost._kind, lost._reason


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(self: LostValue, *_: Any, **__: Any) -> NoReturn:
        self._raise()

    refuse.__name__ = refuse.__qualname__ = name
    return refuse


for _name in _OPERATORS:
    setattr(LostValue, f"__{_name}__", _refusal(f"__{_name}__"))
# JAX looks whether it is there, and asks for another kind of object if it is.
LostValue.__jax_array__ = property(lambda lost: lost._raise())  # type: ignore[attr-defined]
