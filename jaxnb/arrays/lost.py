"""What stands for a value that is lost: every use of it says so.

This module imports no jax: a notebook that pulls such an array unpickles it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from jaxnb.errors import ArrayGoneError, JaxnbError, ValueGoneError

_OPERATORS = [
    "abs",
    "add",
    "and",
    "bool",
    "call",
    "complex",
    "contains",
    "delitem",
    "divmod",
    "enter",
    "exit",
    "eq",
    "float",
    "floordiv",
    "ge",
    "getitem",
    "gt",
    "iadd",
    "imul",
    "index",
    "int",
    "invert",
    "ipow",
    "isub",
    "iter",
    "itruediv",
    "le",
    "len",
    "lshift",
    "lt",
    "matmul",
    "mod",
    "mul",
    "ne",
    "neg",
    "next",
    "or",
    "pos",
    "pow",
    "radd",
    "rand",
    "rdivmod",
    "rfloordiv",
    "rlshift",
    "rmatmul",
    "rmod",
    "rmul",
    "ror",
    "rpow",
    "rrshift",
    "rshift",
    "rsub",
    "rtruediv",
    "rxor",
    "setitem",
    "sub",
    "truediv",
    "xor",
    "array",
    "format",
]


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


def reduced_whole(lost: LostValue) -> tuple[Any, ...]:
    """Returns what pickle makes it of again, with the parts that this process still has."""
    if isinstance(lost, LostArray):
        return LostArray, (lost._what, lost.shards, lost._advice, lost._kind, lost._reason)
    return lost.__reduce__()


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
