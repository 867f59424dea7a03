"""What objects say of how to pickle them, and those that are another library's own."""

from __future__ import annotations

import pickle
import sys
from pickle import whichmodule  # type: ignore[attr-defined]
from types import BuiltinFunctionType, FunctionType
from typing import Any


def with_elements(found: Any) -> Any:
    """Takes the elements out of iterators at once: what fails there is this object's."""
    if not isinstance(found, tuple) or len(found) < 4:
        return found
    elements = (each if each is None else iter([*each]) for each in found[3:5])
    return (*found[:3], *elements, *found[5:])


def checked(value: Any, found: Any) -> Any:
    """Returns what an object says of how to pickle it, if pickle takes it.

    Raises:
        pickle.PicklingError: It does not.
    """
    if isinstance(found, str):
        if type(value) is BuiltinFunctionType or _is_global(value, found):
            return found
        raise pickle.PicklingError(f"cannot be found by its name, {found}")
    if not (isinstance(found, tuple) and 2 <= len(found) <= 6 and callable(found[0])):
        raise pickle.PicklingError(f"its __reduce__ returned {type(found).__name__}")
    if not isinstance(found[1], tuple):
        raise pickle.PicklingError("its __reduce__ returned no tuple of arguments")
    return found


def error_reduced(error: BaseException, found: Any) -> Any:
    """Adds what pickle leaves out of an exception: what it was raised from.

    Args:
        error: The exception.
        found: What it says itself of how to pickle it.
    """
    cause, context = error.__cause__, error.__context__
    if (cause is None and context is None) or not isinstance(found, tuple) or len(found) > 3:
        return found
    own = found[2] if len(found) == 3 else None
    return (*found[:2], (own, cause, context, error.__suppress_context__), None, None, _fill_error)


def _fill_error(error: BaseException, state: tuple[Any, ...]) -> None:
    own, error.__cause__, error.__context__, error.__suppress_context__ = state
    if own is not None:
        error.__setstate__(own)


def _is_global(value: Any, name: str) -> bool:
    home = whichmodule(value, name)
    if home == "__main__":  # it is not bound yet when it is needed
        return False
    module: Any = sys.modules.get(home)
    for part in name.split("."):
        module = getattr(module, part, None)
    return module is value


class OwnObjects:
    """Finds objects that are a library's own: ``jax.config``, ``sys.stdout``.

    A copy of one would be another object than that which the library goes on to use.
    """

    def __init__(self) -> None:
        self._names: dict[str, dict[int, str]] = {}

    def reduced(self, value: Any) -> Any:
        """Returns what imports an object; NotImplemented if no module has it."""
        for name in ("stdin", "stdout", "stderr"):
            if value is getattr(sys, name):
                return _attribute, ("sys", name)
        if getattr(type(value), "_instance", None) is value and hasattr(type(value), "instance"):
            return _attribute_of, (type(value), "instance")  # IPython's shell: there is one
        kind = type(value)
        home = kind.__module__
        if issubclass(kind, type | FunctionType) or home in ("builtins", "__main__"):
            return NotImplemented
        if home not in self._names:
            inside = vars(sys.modules[home]) if home in sys.modules else {}
            self._names[home] = {
                id(each): name for name, each in inside.items() if type(each).__module__ == home
            }
        found = self._names[home].get(id(value))
        return NotImplemented if found is None else (_attribute, (home, found))


def _attribute_of(kind: type, name: str) -> Any:
    return getattr(kind, name)()


def _attribute(module: str, name: str) -> Any:
    return getattr(__import__(module, fromlist=[name]), name)
