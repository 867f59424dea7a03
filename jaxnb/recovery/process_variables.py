"""What is carried of this process: its variables, and what belongs to no variable."""

from __future__ import annotations

import contextlib
import importlib
import random
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, Sharding

from jaxnb.arrays import process_pushes
from jaxnb.arrays.lost import MAKE_AGAIN, LostValue
from jaxnb.arrays.process_names import is_of_user, parts_of
from jaxnb.arrays.process_pulls import HELD, LARGE_VALUES
from jaxnb.launch.folder import PATH
from jaxnb.recovery import hooks
from jaxnb.recovery.messages import Lost
from jaxnb.recovery.process_arrays import is_array
from jaxnb.recovery.process_classes import set_sources_of_cells, sources_of_cells
from jaxnb.recovery.process_losses import reason_of, type_text
from jaxnb.wire.process_sentinel import ThisProcess

# Such a module is imported again in the new process, and then given the data that it had. What
# else
# is in it (functions and classes, locks, clients, sentinels) is as the import makes it.

_OF_JAX = (jax.Array, Mesh, Sharding, jax.Device)

_DATA = (
    str, bytes, bytearray, int, float, complex, type(None), np.ndarray, np.generic,
    np.random.Generator, np.random.RandomState,
)  # fmt: skip

_CONTAINERS = (dict, list, tuple, set, frozenset)

MAX_WRAPPED = 100
"""A function that was wrapped more often is not looked for."""

MAX_PARTS = 10_000
"""So many parts of a value are looked at to tell whether it is data."""


def values_of_modules() -> dict[str, Any]:
    """Returns the data of the user's modules by their names in these: ``"model.mesh"``."""
    return {
        f"{name}.{attribute}": value
        for name, module in sorted(sys.modules.items())
        if type(module) is ModuleType and name != "__main__" and is_of_user(name)
        for attribute, value in vars(module).items()
        if not attribute.startswith("__") and is_data(value)
    }


def is_data(value: Any) -> bool:
    """Whether a value is carried: plain data, NumPy's, JAX's, or an object of the user's."""
    kind = type(value)
    if issubclass(kind, ModuleType | type) or _is_code(value):
        return False
    if issubclass(kind, (*_DATA, *_OF_JAX)) or is_of_user(kind.__module__):
        return True
    parts = [part for _, part in zip(range(MAX_PARTS), _inside(value), strict=False)]
    if issubclass(kind, _CONTAINERS):
        return all(
            issubclass(type(part), (*_DATA, *_CONTAINERS, *_OF_JAX))
            or is_of_user(type(part).__module__)
            for part in parts
        )
    return any(issubclass(type(part), _OF_JAX) for part in parts)


def _is_code(value: Any) -> bool:
    """Whether a value is a function, or wraps one."""
    found = unwrapped(value)
    return isinstance(found[-1], FunctionType) or len(found) == MAX_WRAPPED


def unwrapped(value: Any) -> list[Any]:
    """Returns a value, what it wraps (what was jitted, or cached), what that wraps, and so on.

    The last is a function, if there is one; of a value that wraps itself it is that.
    """
    found = [value]
    while len(found) < MAX_WRAPPED and not isinstance(found[-1], FunctionType):
        inside = getattr(found[-1], "__dict__", {})
        wrapped = inside.get("__wrapped__") if isinstance(inside, dict) else None
        if wrapped is None:
            break
        found.append(wrapped)
    return found


def _inside(value: Any) -> Iterator[Any]:
    seen, left = {id(value)}, [value]
    while left:
        for _, part in parts_of(left.pop()):
            if id(part) not in seen:
                seen.add(id(part))
                left.append(part)
                yield part


_OF_IPYTHON = re.compile(r"_{1,3}|_i{1,3}|_[io]h|_dh|_exit_code")
_OF_MODULES = {*vars(ModuleType("m")), "__builtin__", "__builtins__", "__annotations__", "__file__"}
_NOTHING = object()


class Part(NamedTuple):
    """Something that belongs to no name.

    Attributes:
        read: Returns it; takes the shell.
        set: Sets it, in another process; takes the shell, and it.
        follows: It is carried with some names too: their values may need it.
    """

    read: Callable[[Any], Any]
    set: Callable[[Any, Any], object]
    follows: bool = False


def _extend_path(_: Any, path: list[str]) -> None:
    sys.path += [each for each in path if each not in sys.path and Path(each).is_dir()]


def _settings() -> dict[str, Any]:
    values = jax.config.values
    plain = {k: v for k, v in values.items() if isinstance(v, bool | int | float | str | None)}
    return {k: v for k, v in sorted(plain.items()) if k not in _SETTINGS_OF_JOINING}


def _set_settings(settings: dict[str, Any]) -> None:
    now = jax.config.values
    for name, value in settings.items():
        if now.get(name) != value:
            with contextlib.suppress(Exception):  # it cannot be changed any more
                jax.config.update(name, value)


_SETTINGS_OF_JOINING = (
    "jax_platforms", "jax_num_cpu_devices", "jax_cpu_collectives_implementation",
)  # fmt: skip


def _set_mesh(mesh: Any) -> None:
    if mesh is not None:
        jax.set_mesh(mesh)


def _last_values(shell: Any) -> dict[str, Any]:
    hook = shell.displayhook
    return {name: getattr(hook, name) for name in ("_", "__", "___") if hasattr(hook, name)}


def _set_last_values(shell: Any, found: dict[str, Any]) -> None:
    vars(shell.displayhook).update(found)
    shell.user_ns.update(found)


def _set_outputs(shell: Any, found: dict[int, Any]) -> None:
    shell.user_ns["Out"].update(found)
    shell.user_ns.update({f"_{number}": value for number, value in found.items()})


def _inputs(shell: Any) -> list[str]:
    return list(shell.user_ns.get("In", ()))


def _set_inputs(shell: Any, texts: list[str]) -> None:
    shell.user_ns["In"][:] = texts
    numbered = {f"_i{number}": text for number, text in enumerate(texts) if text}
    shell.user_ns.update(numbered)


_TEXTS = "the texts of cells"
_DEVICE = "jax.config.jax_default_device"

PARTS: dict[str, Part] = {
    "sys.path": Part(lambda _: [*sys.path], _extend_path, follows=True),
    _TEXTS: Part(
        lambda _: sources_of_cells(), lambda _, texts: set_sources_of_cells(texts), follows=True
    ),
    "jax.config": Part(lambda _: _settings(), lambda _, found: _set_settings(found)),
    _DEVICE: Part(
        lambda _: jax.config.values.get("jax_default_device"),
        lambda _, device: device and jax.config.update("jax_default_device", device),
    ),
    "np.random.get_state()": Part(
        lambda _: np.random.get_state(), lambda _, found: np.random.set_state(found)
    ),
    "random.getstate()": Part(lambda _: random.getstate(), lambda _, found: random.setstate(found)),
    "jax.set_mesh(…)": Part(lambda _: process_pushes.mesh(), lambda _, mesh: _set_mesh(mesh)),
}
"""What is made before the variables, in order; it is set when it is met."""

LAST_PARTS: dict[str, Part] = {
    "jaxnb.on_recover(…)": Part(
        lambda _: hooks.functions(),
        lambda _, functions: hooks.set_functions(functions),
    ),
    "Out": Part(lambda shell: dict(shell.user_ns.get("Out", {})), _set_outputs),
    "the last values": Part(_last_values, _set_last_values),
    "In": Part(_inputs, _set_inputs),
    "the values of cells": Part(
        lambda _: dict(LARGE_VALUES), lambda _, values: LARGE_VALUES.update(values)
    ),
    "arrays that the notebook knows of": Part(
        lambda _: HELD.alive(), lambda _, alive: HELD.take(alive)
    ),
}
"""What is made after them, and is of use to this session only: it is not saved."""

_ALL = PARTS | LAST_PARTS

OWN_PARTS = frozenset({"np.random.get_state()", "random.getstate()"})
"""What another process must not have too: both would draw the same numbers."""

PARTS_OF_PLACES = frozenset({"the values of cells", "arrays that the notebook knows of"})
"""What the notebook reads from where it knows it to be; in a group of another size it is not."""

COMMON_PARTS = {"sys.path", "jax.config", "jax.set_mesh(…)", *LAST_PARTS}
"""What is the same on every process by its nature."""


class Values(NamedTuple):
    """What is carried.

    Attributes:
        values: All of it, by name, in the order in which it is to be made.
        texts: What the user's own variables are, in words.
    """

    values: dict[str, Any]
    texts: dict[str, str]


def variables_of(shell: Any) -> dict[str, Any]:
    """Returns the user's own variables: what cells, and pushes, have bound."""
    names = {str.__str__(k): v for k, v in [*shell.user_ns.items()] if isinstance(k, str)}
    return {name: value for name, value in names.items() if not _is_of_shell(shell, name, value)}


def not_carried(shell: Any) -> tuple[Lost, ...]:
    """Returns what nobody carries: IPython's extensions, and what is bound to no text."""
    loaded = sorted(shell.extension_manager.loaded - {"IPython.extensions.storemagic"})
    names = [each.removeprefix("IPython.extensions.") for each in loaded]
    again = "not loaded in new processes: type `%spmd %load_ext {}`"
    return (
        *(Lost(name, "extension", (), again.format(name)) for name in names),
        *(
            Lost(f"globals()[…] ({type(k).__name__})", type(v).__qualname__, (), "it has no name")
            for k, v in [*shell.user_ns.items()]
            if not isinstance(k, str)
        ),
    )


def _is_of_shell(shell: Any, name: str, value: Any) -> bool:
    """Whether IPython has bound a name: what it keeps of cells, and what it and jaxnb put there."""
    if shell.user_ns_hidden.get(name, _NOTHING) is value or name in _OF_MODULES:
        return True
    if found := re.fullmatch(r"_i(\d+)", name):  # as it was typed: in In it is transformed
        return type(value) is str and int(found[1]) < len(shell.user_ns.get("In", ()))
    if found := re.fullmatch(r"_(\d+)", name):
        try:
            return shell.user_ns.get("Out")[int(found[1])] is value
        except (LookupError, TypeError):
            return False
    return _OF_IPYTHON.fullmatch(name) is not None


def to_save(shell: Any, names: Sequence[str] = ()) -> Values:
    """Returns what is saved to a directory.

    Args:
        shell: The kernel's.
        names: The variables, which are there; all of the user's if there are none.
    """
    if names:
        parts = {name: part for name, part in PARTS.items() if part.follows}
        chosen = {name: shell.user_ns[name] for name in names}
        return Values(_read(shell, parts) | _modules_first(chosen), _texts(chosen))
    own = variables_of(shell)
    values = _read(shell, PARTS) | _modules_first(own) | values_of_modules()
    return Values(values, _texts(own))


def to_carry(shell: Any) -> Values:
    """Returns what is carried to a process that takes the place of this one."""
    saved = to_save(shell)
    return Values(saved.values | _added_to_path() | _read(shell, LAST_PARTS), saved.texts)


def to_plan(shell: Any) -> dict[str, Any]:
    """Returns what a plan gets: the variables, and the settings that programs depend on."""
    parts = {name: PARTS[name] for name in ("sys.path", _TEXTS, "jax.config")}
    return _read(shell, parts) | _modules_first(variables_of(shell)) | values_of_modules()


def to_give(shell: Any) -> dict[str, Any]:
    """Returns what a process that is new gets of this one, if others have the same."""
    hooks = {name: LAST_PARTS[name] for name in ("jaxnb.on_recover(…)",)}
    found = to_save(shell).values | _added_to_path() | _read(shell, hooks)
    del found[_TEXTS]  # each process has those of the cells that it has run: they go beside it
    return {name: value for name, value in found.items() if name != _DEVICE or value is not None}


def _added_to_path() -> dict[str, Any]:
    """Returns what of ``sys.path`` is the user's: the rest is that of the host."""
    return {"sys.path": [each for each in sys.path if each not in PATH]}


def _read(shell: Any, parts: Mapping[str, Part]) -> dict[str, Any]:
    return {name: part.read(shell) for name, part in parts.items()}


def _modules_first(values: Mapping[str, Any]) -> dict[str, Any]:
    """What is made may need a module, which a cell has imported, while it is made."""
    return dict(sorted(values.items(), key=lambda item: not issubclass(type(item[1]), ModuleType)))


def binder(
    shell: Any, names: Sequence[str] = (), without: Collection[str] = ()
) -> Callable[[str, Any], None]:
    """Returns what binds a value as soon as it is made: what comes may need it.

    Args:
        shell: The kernel's.
        names: Only these are wanted; all if there are none.
        without: Parts that are not set.
    """

    def met(name: str, value: Any) -> None:
        part = _ALL.get(name)
        if name in without or (names and name not in names and not (part and part.follows)):
            return
        if part is None and name.isidentifier():
            shell.user_ns[name] = value
        elif part is not None and not issubclass(type(value), LostValue):
            part.set(shell, value)

    return met


def bind(shell: Any, variables: Mapping[str, Any], names: Sequence[str] = ()) -> dict[str, Any]:
    """Binds the variables of what was made; returns them."""
    found = {
        name: value
        for name, value in variables.items()
        if name.isidentifier() and name not in _ALL and (not names or name in names)
    }
    shell.push(found)
    return found


def bind_lost(
    process: ThisProcess, reasons: Mapping[str, str], since: str = "", advice: str = MAKE_AGAIN
) -> None:
    """Has each use of variables raise that are not here.

    Args:
        process: This process.
        reasons: Why each is not; other names are left out.
        since: Why it may not be, as the end of a clause.
        advice: What to type.
    """
    place = f"is not on process {process.index}{since}"
    lost = {
        name: LostValue(f"`{name}` {place}: {why}", advice, kind="value", reason=why)
        for name, why in reasons.items()
        if name.isidentifier()
    }
    process.shell.push(lost)


def bind_in_modules(variables: Mapping[str, Any], names: Sequence[str] = ()) -> list[Lost]:
    """Gives modules of the user's the values that they had; returns what they cannot have."""
    lost: list[Lost] = []
    for path, value in variables.items():
        if path in _ALL or path.isidentifier() or (names and path not in names):
            continue
        name, _, attribute = path.rpartition(".")
        try:
            module = importlib.import_module(name)
            # What the import has just made is better than nothing.
            if not (issubclass(type(value), LostValue) and hasattr(module, attribute)):
                setattr(module, attribute, value)
        except Exception as error:  # what the user's module raises
            lost.append(Lost(path, type(value).__qualname__, (), reason_of(error)))
    return lost


def own_losses(lost: Iterable[Lost]) -> tuple[Lost, ...]:
    """Returns the losses that are to be told: of variables, not of what was kept for the session.

    The values of earlier cells (``Out[3]``) are told too: a cell can use them.
    """
    hidden = [name for name in LAST_PARTS if name != "Out"]
    return tuple(part for part in lost if not part.path.startswith(tuple(hidden)))


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: _text(value) for name, value in values.items()}


def _text(value: Any) -> str:
    """Returns what a value is, for people who look at the list of what was saved."""
    kind = type(value)
    if is_array(value):
        spec = getattr(value.sharding, "spec", None)
        return f"{value.dtype}{[*value.shape]}" + (f" over {spec}" if spec is not None else "")
    if issubclass(kind, type):
        return f"class {value.__name__}"
    if issubclass(kind, ModuleType | FunctionType):
        return f"{kind.__name__} {value.__name__}"
    of = {dict: "entries", list: "elements", tuple: "elements"}.items()
    units = [f" of {len(value)} {unit}" for each, unit in of if kind is each]
    return "".join([type_text(value), *units])
