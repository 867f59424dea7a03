"""Writes this process's variables to a file, and takes them from one."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import jax

from jaxnb.engine.handing import STATE
from jaxnb.engine.lost import LostValue
from jaxnb.model.recovery import LostPart
from jaxnb.recovery import files, process_modules
from jaxnb.recovery.messages import Measured, Refused, StateFile, Taken
from jaxnb.recovery.process_cells import set_sources_of_cells, sources_of_cells
from jaxnb.recovery.process_modules import values_of_modules
from jaxnb.recovery.process_state import PackedState, pack, reason_of
from jaxnb.recovery.process_unpacking import unpack

_OF_IPYTHON = re.compile(r"_{1,3}|_i{1,3}|_[io]h|_dh|_exit_code")
_OF_MODULES = {*vars(ModuleType("m")), "__builtin__", "__builtins__", "__annotations__", "__file__"}


def _is_of_shell(shell: Any, name: str, value: Any) -> bool:
    """Whether IPython has bound a name: what it keeps of cells, and what it and jaxnb put there."""
    if shell.user_ns_hidden.get(name, _NOTHING) is value or name in _OF_MODULES:
        return True
    if found := re.fullmatch(r"_(i?)(\d+)", name):
        kept = shell.user_ns.get("In" if found[1] else "Out")
        try:
            return kept[int(found[2])] is value
        except (LookupError, TypeError):
            return False
    return _OF_IPYTHON.fullmatch(name) is not None


_NOTHING = object()


def _extend_path(path: list[str]) -> None:
    sys.path += [each for each in path if each not in sys.path and Path(each).is_dir()]


_STATE: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "sys.path": (lambda: [*sys.path], _extend_path),
    "the texts of cells": (sources_of_cells, set_sources_of_cells),
    **{
        name: STATE[name]
        for name in (
            "jax.config", "np.random.get_state()", "random.getstate()", "jax.set_mesh(…)",
        )
    },
}  # fmt: skip
"""What belongs to no name, and is carried with the variables; it is set when it is met."""

_FOR_ALL = ("sys.path", "the texts of cells")
"""Of these, what is carried with some names too: their values may need it."""

_waiting: PackedState | None = None
"""What :func:`measure` has packed and :func:`write` has not written yet."""


def variables_of(shell: Any) -> dict[str, Any]:
    """Returns the user's own variables: what cells, and pushes, have bound."""
    names = dict(shell.user_ns)
    return {name: value for name, value in names.items() if not _is_of_shell(shell, name, value)}


def measure(shell: Any, process_index: int, *, names: Sequence[str]) -> Measured:
    """Packs variables, and keeps them until they are written or dropped.

    Args:
        shell: The kernel's.
        process_index: This process.
        names: Their names; all if there are none.
    """
    global _waiting
    found = variables_of(shell)
    missing = tuple(name for name in names if name not in shell.user_ns)
    if missing:
        return Measured({}, 0, (), missing)
    chosen = {name: shell.user_ns[name] for name in names} or found
    # What is made may need a module, which a cell has imported, while it is made.
    order = sorted(chosen, key=lambda name: not issubclass(type(chosen[name]), ModuleType))
    chosen = {name: chosen[name] for name in order}
    chosen_state = _FOR_ALL if names else _STATE
    state = {name: _STATE[name][0]() for name in chosen_state}
    _waiting = pack(state | chosen | ({} if names else values_of_modules()))
    texts = {name: _text(value) for name, value in chosen.items()}
    return Measured(texts, _waiting.nbytes, _waiting.lost)


def write(shell: Any, process_index: int, *, folder: str) -> StateFile | Refused:
    """Writes what :func:`measure` has packed to a file in a directory."""
    packed = _waiting
    assert packed is not None
    path = Path(folder) / f"process-{process_index:05}"
    try:
        found = files.write(path, packed.names, packed.pickle, packed.buffers)
    except OSError as error:
        return Refused(f"could not write its file ({error.strerror or error})")
    finally:
        drop(shell, process_index)
    return StateFile(path.name, path.stat().st_size, found)


def drop(shell: Any, process_index: int) -> None:
    """Drops what :func:`measure` has packed."""
    global _waiting
    _waiting = None


def check(shell: Any, process_index: int, *, path: str, expected: str) -> Refused | None:
    """Looks whether a file is as it was written; nothing in it is made yet."""
    try:
        is_same = files.digest(Path(path)) == expected
    except OSError as error:
        return Refused(f"could not read its file ({error.strerror or error})")
    return None if is_same else Refused("has a file that is not as it was written: do not use it")


def load(shell: Any, process_index: int, *, path: str, names: Sequence[str]) -> Taken:
    """Binds the variables of a file.

    Args:
        shell: The kernel's.
        process_index: This process.
        path: The file, which :func:`check` has found as it was written.
        names: Which of them; all if there are none.
    """
    contents = files.read(Path(path))

    def met(name: str, value: Any) -> None:
        if name in _STATE and (not names or name in _FOR_ALL):
            _STATE[name][1](value)
        elif name.isidentifier() and not names:
            shell.user_ns[name] = value  # at once: what comes may need it when it is made

    unpacked = unpack(contents.pickle, contents.buffers, contents.names, met)
    chosen = {
        name: value
        for name, value in unpacked.variables.items()
        if name.isidentifier() and (not names or name in names)
    }
    shell.push(chosen)
    lost = [part for part in unpacked.lost if part.path in chosen]
    for path, value in unpacked.variables.items():
        if path not in _STATE and not path.isidentifier() and not names:
            lost += _bound_in_module(path, value)
    return Taken(tuple(chosen), tuple(lost))


def _bound_in_module(path: str, value: Any) -> list[LostPart]:
    """Binds a value in a module of the user's; returns what is lost if it cannot be imported."""
    try:
        # What the import has made anew is better than nothing.
        if not (isinstance(value, LostValue) and process_modules.has(path)):
            process_modules.bind(path, value)
    except Exception as error:  # what the user's module raises
        return [LostPart(path, type(value).__qualname__, reason_of(error))]
    return []


def _text(value: Any) -> str:
    """Returns what a value is, for people who look at the list of what was saved."""
    kind = type(value)
    if issubclass(kind, jax.Array) and not issubclass(kind, jax.core.Tracer):
        spec = getattr(value.sharding, "spec", None)
        return f"{value.dtype}{[*value.shape]}" + (f" over {spec}" if spec is not None else "")
    if issubclass(kind, type):
        return f"class {value.__name__}"
    if issubclass(kind, ModuleType | FunctionType):
        return f"{kind.__name__} {value.__name__}"
    sizes: Mapping[type, str] = {dict: "entries", list: "elements", tuple: "elements"}
    return (
        f"{kind.__qualname__} of {len(value)} {sizes[kind]}"
        if kind in sizes
        else (kind.__qualname__)
    )
