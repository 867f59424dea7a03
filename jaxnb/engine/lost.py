"""What stands for an array that lost shards with a process: every use of it says so.

This module imports no jax: a notebook that pulls such an array unpickles it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from jaxnb.errors import ArrayGoneError

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


MAKE_ANEW = "Make it anew: run the cell again that made it, or load a checkpoint."
MAKE_AGAIN = "Make it again: run the cell again that made it."


class LostArray:
    """An array that is lost, of which nobody holds all shards any more, say.

    Whatever is done with it raises :class:`~jaxnb.errors.ArrayGoneError`, on every process
    alike, so that no computation can go on with a part of it.

    Args:
        what: The array, in words.
        shards: The parts that this process still has: the slices of the whole array, and the
            elements.
        advice: What to do.

    Attributes:
        shards: See above; a process that is new has none.
    """

    __slots__ = ("__weakref__", "_advice", "_what", "shards")

    def __init__(
        self, what: str, shards: tuple[tuple[Any, Any], ...] = (), advice: str = MAKE_ANEW
    ) -> None:
        self._what = what
        self._advice = advice
        self.shards = shards

    def __repr__(self) -> str:
        return f"<lost: {self._what}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return LostArray, (self._what, (), self._advice)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what pickle, IPython and JAX look for in any object
            raise AttributeError(name)
        self._raise()

    def _raise(self) -> NoReturn:
        raise ArrayGoneError(f"{self._what}. Nothing was computed. {text_of(self)[1]}")

    __hash__ = object.__hash__


def text_of(lost: LostArray) -> tuple[str, str]:
    """Returns what an array was and why it is lost, as a sentence, and what to do."""
    parts = "In a cell its `.shards` has the parts that the process still holds."
    more = f" {parts}" if lost._advice == MAKE_ANEW else ""
    return lost._what, f"{lost._advice}{more}"


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(self: LostArray, *_: Any, **__: Any) -> NoReturn:
        self._raise()

    refuse.__name__ = refuse.__qualname__ = name
    return refuse


for _name in _OPERATORS:
    setattr(LostArray, f"__{_name}__", _refusal(f"__{_name}__"))
# JAX looks whether it is there, and asks for another kind of object if it is.
LostArray.__jax_array__ = property(LostArray._raise)  # type: ignore[attr-defined]
