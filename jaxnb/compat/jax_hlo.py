"""Compiled programs, in XLA's serialized form and as JAX's private names tell of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from jaxnb.compat.jax_literals import literal_lines, literals_digest
from jaxnb.compat.jax_program_text import comparable
from jaxnb.compat.xla_frames import NOT_MOVED, Place, frames_of, moved_places
from jaxnb.compat.xla_listing import program_lines
from jaxnb.compat.xla_messages import Message
from jaxnb.compat.xla_program import Program, read_program
from jaxnb.model.dispatches import ProgramLine


def programs(compiled: Any) -> list[Program]:
    """Returns the programs of a ``jax.stages.Compiled``; mostly one.

    Raises:
        AttributeError: This JAX does not expose serialized programs.
    """
    executable = compiled.runtime_executable()
    moved = moved_in(executable)
    modules = executable.hlo_modules()
    return [read_program(each.as_serialized_hlo_module_proto(), moved) for each in modules]


def moved_in(executable: Any) -> Mapping[Place, Place]:
    """Returns where the lines of an executable stand now, if it was compiled elsewhere."""
    if not moved_places:
        return NOT_MOVED
    return moved_places.get(executable.fingerprint, NOT_MOVED)


def device_ids(compiled: Any) -> tuple[int, ...] | None:
    """Returns the devices of a ``jax.stages.Compiled`` in the program's order.

    None where this JAX has no such attribute: then they are taken to be in the order of the
    mesh.
    """
    executable = getattr(getattr(compiled, "_executable", None), "_unloaded_executable", None)
    devices = getattr(executable, "device_list", None)
    return None if devices is None else tuple(device.id for device in devices)


def fingerprint(compiled: Any) -> str:
    """Returns a digest of a compiled program that is equal for equal programs.

    Names and source lines are left out; they are in the text where this JAX cannot print
    without them.
    """
    try:
        text = modules_text(compiled.runtime_executable().hlo_modules())
    except (ImportError, AttributeError):
        text = compiled.as_text() or ""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def modules_text(modules: Sequence[Any]) -> str:
    """Returns programs as processes compare them; :mod:`program_text` says what is left out.

    Of constants that are too large for text there is a digest.

    Raises:
        ImportError: This JAX cannot print without names.
        AttributeError: The same.
    """
    options = _options()
    return "\n".join(_module_text(module, options) for module in modules)


def _options() -> Any:
    from jax._src.lib import hlo  # type: ignore[attr-defined]

    options = hlo.HloPrintOptions.canonical()
    options.print_large_constants, options.print_metadata = False, False
    options.print_backend_config = True
    return options


def _module_text(module: Any, options: Any) -> str:
    text = comparable(str(module.to_string(options)))
    if ELIDED not in text:
        return text
    serialized = module.as_serialized_hlo_module_proto()
    lines = "\n".join(literal_lines(serialized))
    return f"{text}constants {literals_digest(serialized)}\n{lines}\n"


ELIDED = "constant({...})"
"""What stands in the text for a large constant."""


def modules_lines(
    modules: Sequence[Any], moved: Mapping[Place, Place] = NOT_MOVED
) -> list[ProgramLine]:
    """Returns the operations of programs, each with the source line it comes from, for people.

    As :func:`modules_text`, but for what it says of large constants.

    Args:
        modules: The programs.
        moved: What :func:`moved_in` returns of their executable.
    """
    options = _options()
    options.print_metadata = True
    found: list[ProgramLine] = []
    for module in modules:
        frames = frames_of(Message(module.as_serialized_hlo_module_proto()), moved)
        found += program_lines(module.to_string(options), frames)
    return found
