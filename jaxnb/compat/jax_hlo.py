"""Compiled programs, as XLA's own parser has them and as JAX's private names tell of them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from jaxnb.compat.jax_literals import literal_lines, literals_digest
from jaxnb.compat.jax_program_text import comparable
from jaxnb.compat.xla_listing import program_lines
from jaxnb.compat.xla_program import Line, Program, from_text, header_and_entry, matters
from jaxnb.model.programs import ProgramLine

_NAMES = re.compile(r"^ *(?:ROOT )?%?([\w.$-]+) = ", re.MULTILINE)


def programs(compiled: Any) -> list[Program]:
    """Returns the programs of a ``jax.stages.Compiled``; mostly one.

    By XLA's own parser; where this JAX does not expose it, from the text.
    """
    try:
        return [parsed(module) for module in compiled.runtime_executable().hlo_modules()]
    except AttributeError:
        return [from_text(compiled.as_text() or "")]


def parsed(module: Any) -> Program:
    """Returns a module of XLA as data.

    Raises:
        AttributeError: The wheel does not expose XLA's parser.
    """
    text = module.to_string()
    header, entry = header_and_entry(text)
    # The parser lists instructions in the order in which they were made, the text in that in
    # which they are run.
    order = {name: place for place, name in enumerate(_NAMES.findall(text))}
    computations = {}
    for computation in module.computations():
        known = sorted(computation.instructions(), key=lambda each: order.get(each.name, 0))
        found = [line for each in known if (line := _line(each)) is not None]
        computations[computation.name] = found
    return Program(module.name, entry, computations, header)


def _line(instruction: Any) -> Line | None:
    opcode = _words(instruction.opcode)
    if opcode == "async-start":
        wrapped = instruction.async_wrapped_root()
        inner = _words(wrapped.opcode)
        # Only the wrapped one has the facts in its text; the pair may have the metadata.
        return Line(f"{inner}-start", wrapped.to_string(), wrapped=True) if matters(inner) else None
    return Line(opcode, instruction.to_string()) if matters(opcode) else None


def _words(opcode: Any) -> str:
    """Returns an opcode as it stands in the text: ``HloOpcode.kAllGather`` is ``all-gather``."""
    name = str(opcode).rpartition(".")[2].removeprefix("k")
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


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


def modules_lines(modules: Sequence[Any]) -> list[ProgramLine]:
    """Returns the operations of programs, each with the source line it comes from, for people.

    As :func:`modules_text`, but for what it says of large constants.
    """
    options = _options()
    options.print_metadata = True
    return [line for module in modules for line in program_lines(module.to_string(options))]
