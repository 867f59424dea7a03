"""Compiled programs as JAX and XLA give them: modules, listings, constants and texts."""

from __future__ import annotations

import bisect
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from jaxnb.compat.protobuf import Message
from jaxnb.compat.xla import (
    NOT_MOVED,
    Frames,
    Place,
    Program,
    frames_of,
    moved_places,
    read_program,
)
from jaxnb.model.dispatches import ProgramLine

# As text a constant takes some ten times its size, and seconds for 16 MB, with the interpreter's
# lock held. The serialized form is about its size.

_FLOATS = {8: "<f4", 9: "<f8", 11: "<f2"}
"""Fields of a literal whose values stand there as in memory, and of what type they are."""

LARGE_BYTES = 40
"""A smaller constant stands in the program's text."""

SHOWN_VALUES = 4


def literals_digest(module: bytes) -> str:
    """Returns a digest of all constants of a serialized ``HloModuleProto``, in its order.

    Args:
        module: The serialized program.

    Raises:
        ValueError: It is not one.
    """
    digest = hashlib.blake2b(digest_size=16)
    for literal in _literals(module):
        digest.update(literal)
    return digest.hexdigest()


def literal_lines(module: bytes) -> list[str]:
    """Returns a line for each large constant of a serialized ``HloModuleProto``, in its order.

    It has the size, a digest and, of floats, the first values and the range.
    """
    return [_line(literal) for literal in _literals(module) if len(literal) > LARGE_BYTES]


def _literals(module: bytes) -> Iterator[memoryview]:
    for computation in Message(module).messages(3):
        for instruction in computation.messages(2):
            if literal := instruction.data(8):
                yield literal


def _line(literal: memoryview) -> str:
    digest = hashlib.blake2b(literal, digest_size=4).hexdigest()
    known = Message(literal)
    for number, kind in _FLOATS.items():
        if len(floats := np.frombuffer(known.data(number), kind)):
            first = ", ".join(f"{each:.9g}" for each in floats[:SHOWN_VALUES])
            least, most = f"{floats.min():.9g}", f"{floats.max():.9g}"
            return (
                f"large constant, digest {digest}, {len(floats)} values: {first} …, from {least} "
                f"to {most}, sum {floats.sum(dtype=np.float64):.9g}"
            )
    return f"large constant, digest {digest}, {len(literal)} B"


LEFT_OUT = frozenset(
    {
        "outer_dimension_partitions",
        "selected_algorithm",
        "autotune_workspace_size",
        "plan_id",
        "triton_gemm_config",
        "block_level_fusion_config",
    }
)
"""Keys of ``backend_config``; see :func:`comparable`."""

MIN_ADDRESS = 1 << 32

_COMPUTATION = re.compile(r"^(ENTRY )?[^\s{]+ \{$", re.MULTILINE)
_CONFIG = 'backend_config={"'
_CALLBACK = re.compile(r'(custom_call_target="xla_\w*python_\w+".*\bindex = )\d+')
_INTEGER = re.compile(r"(?<![\w.\-])\d{10,20}(?![\w.])")

Ranges = list[tuple[int, int]]


def comparable(text: str, mapped: Callable[[], Ranges] | None = None) -> str:
    """Returns a module's canonical text without what may differ where the program is the same.

    It keeps everything that decides what is computed, how, and over which devices:

    - each operation with its operands, shapes, layouts and memory spaces, in the order of the
      schedule;
    - its attributes: dimension numbers, precision and algorithm of dots, comparators of sorts,
      called computations in full, channel ids and replica groups, shardings, frontend attributes
      (``set_xla_metadata``), ``backend_config`` (attributes of FFI and other custom calls:
      ``solve_triangular(lower=True)``, ``transpose_a``; trip counts that the compiler has found);
    - of the module: number of partitions and replicas, layouts of arguments and results, donation
      and aliasing;
    - small constants; of larger ones there is a digest beside it (:func:`literals_digest`), as
      there are the order of the devices and the ``compiler_options`` (``jax_dispatch``).

    Left out is only what may differ between processes that run the same program:

    - names of the module, of computations and instructions: made from names of Python functions
      and numbered as they come; processes may have traced other functions before (jax#40312);
    - ``metadata``, names of functions, files and lines: a function that is called from another
      line is the same program;
    - control dependencies: named by instructions; the order of the schedule has them;
    - ``index`` of a Python callback: its place in a list of callbacks, longer where JAX has lowered
      a function twice (jax#40312). **Which Python function is called back is not compared**: it has
      no bytes that processes could compare;
    - integers that are addresses of this process's memory: handles of libraries (a communicator, a
      plan) that are passed as attributes. Of 4 GiB and more, and within memory that the process has
      mapped; Linux only;
    - ``outer_dimension_partitions``: over how many threads XLA's CPU backend spreads a loop; a host
      with more cores has more;
    - what XLA's GPU backend has found by timing (``selected_algorithm``, ``algorithm``,
      ``plan_id``, tile sizes, and the workspace they need): processes that time by themselves
      (``--xla_gpu_shard_autotuning=false``) may choose others.

    Args:
        text: What XLA prints of a module with names of instructions made canonical, and without
            metadata.
        mapped: Returns the ranges of memory that this process has mapped, in order.
    """
    header, comma, rest = text.partition(",")  # it begins with the module's name
    text = f"{comma}{rest}" if header.startswith("HloModule ") else text
    text = _COMPUTATION.sub(r"\1{", text)
    if "python_" in text:
        text = _CALLBACK.sub(r"\1_", text)
    if "backend_config=" not in text:
        return text
    known = cache(mapped or _mapped)
    return "\n".join(
        _without_config(line, known) if "backend_config=" in line else line
        for line in text.split("\n")
    )


def _without_config(line: str, mapped: Callable[[], Ranges]) -> str:
    start = line.index("backend_config=")
    rest = line[start:]
    if rest.startswith(_CONFIG):
        at = len(_CONFIG) - 2
        try:
            value, end = json.JSONDecoder().raw_decode(rest, at)
        except ValueError:  # a custom call's own text
            pass
        else:
            kept = json.dumps(_kept(value), sort_keys=True)
            rest = f"{rest[:at]}{kept}{rest[end:]}"
    return line[:start] + _INTEGER.sub(lambda found: _no_address(found[0], mapped), rest)


def _kept(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _kept(each) for key, each in value.items() if not _is_left_out(key, each)}
    return [_kept(each) for each in value] if isinstance(value, list) else value


def _is_left_out(key: str, value: Any) -> bool:
    # That of a convolution is an object; that of a dot, which the program asks for, a word.
    return key in LEFT_OUT or (key == "algorithm" and isinstance(value, dict))


def _no_address(digits: str, mapped: Callable[[], Ranges]) -> str:
    number = int(digits)
    if number < MIN_ADDRESS:
        return digits
    ranges = mapped()
    place = bisect.bisect_right(ranges, number, key=lambda each: each[0]) - 1
    is_address = place >= 0 and ranges[place][0] <= number < ranges[place][1]
    return "address" if is_address else digits


def _mapped() -> Ranges:
    """Returns the ranges of memory that this process has mapped; none where that is not known."""
    try:
        with open("/proc/self/maps") as file:
            lines = [line.split(" ", 1)[0].split("-") for line in file]
    except OSError:  # no Linux
        return []
    return sorted((int(start, 16), int(end, 16)) for start, end in lines)


MAX_LINES = 20_000
"""Of a longer program the first lines are shown to people; all of it is compared."""

_LISTED_COMPUTATION = re.compile(r"^(?:ENTRY )?%?[\w.$-]+ (?:\(.*\) -> .*)?\{$", re.MULTILINE)
_METADATA = re.compile(r",? ?metadata=\{((?:[^{}\"]|\"(?:[^\"\\]|\\.)*\")*)\}")
_FIELD = re.compile(r"(\w+)=(?:\"((?:[^\"\\]|\\.)*)\"|(\S+))")
_BODY = re.compile(r", \w+=(?:\{)?(?=,|$)")
_OF_SHARD_MAP = re.compile(r"/shard_map(/broadcast\.\d+)?$")
"""Constants of a body, which JAX makes where ``shard_map`` is called."""

_INSTRUCTION = re.compile(r"^  (ROOT )?\S+ = ")


def program_lines(text: str, frames: Frames) -> list[ProgramLine]:
    """Returns the operations of a program, in the order of its text, each once.

    Bodies that XLA prints within the operation that calls them stand there by themselves too, so
    they are left out within it. Where nobody knows the source of a constant it is that of what
    comes next.

    Args:
        text: XLA's canonical text of a module, with metadata.
        frames: The module's stack frames.
    """
    first = _LISTED_COMPUTATION.search(text)
    header = text[: first.start()] if first else text
    found = [ProgramLine(each) for each in _facts(header)]
    for line in _joined(text[len(header) :]):
        if len(found) >= MAX_LINES:
            break
        match = _METADATA.search(line)
        place = None
        if match is not None:
            known = {name: a or b for name, a, b in _FIELD.findall(match[1])}
            if not _OF_SHARD_MAP.search(known.get("op_name", "")):
                place = frames.line(int(known.get("stack_frame_id", 0)))
        source = "" if place is None else f"{place.file}:{place.line}"
        found.append(ProgramLine(_BODY.sub("", _METADATA.sub("", line)), source))
    following = ""
    for i in range(len(found) - 1, -1, -1):
        following = found[i].source or following
        if not found[i].source and " constant(" in found[i].text:
            found[i] = ProgramLine(found[i].text, following)
    return found


def _facts(header: str) -> list[str]:
    """Returns what a module's first line says beside its name: donation, layouts, partitions."""
    facts, depth, start = [], 0, 0
    line = header.partition("\n")[0].partition(", ")[2]
    for place, character in enumerate(f"{line},"):
        depth += (character in "{([") - (character in "})]" and line[place - 1] != "-")
        if character == "," and depth == 0:
            facts.append(line[start:place].strip())
            start = place + 1
    return [fact for fact in facts if fact not in ("", "is_scheduled=true")]


def _joined(text: str) -> Iterator[str]:
    """Yields operations without the bodies within them."""
    current = ""
    for line in text.split("\n"):
        if found := _INSTRUCTION.match(line):
            if current:
                yield current
            current = ("ROOT " if found[1] else "") + line[found.end() :]
        elif line.startswith("  }") and current:
            current += line[3:]
        elif not line.startswith("  ") and current:
            yield current
            current = ""
    if current:
        yield current


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
    """Returns programs as processes compare them; :func:`comparable` says what is left out.

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
