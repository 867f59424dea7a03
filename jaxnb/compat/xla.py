"""XLA's serialized programs, as plain data: their frames, groups, collectives and calls."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from jaxnb.compat.protobuf import Message
from jaxnb.compat.xla_uses import Taken, Uses
from jaxnb.model.compiled import CollectiveKind, Part
from jaxnb.model.scripts import SourceLine

# The numbers of fields are those of XLA's ``hlo.proto`` and ``xla_data.proto``; they never change.

Place = tuple[str, int, int]
"""A file, a line in it and a column."""

moved_places: dict[Any, Mapping[Place, Place]] = {}
"""By the fingerprint of an executable that was compiled where its lines stood elsewhere: where they
stand now."""

NOWHERE: Place = "", 0, 0
"""Where a line stands that nobody here has written."""

NOT_MOVED: Mapping[Place, Place] = {}

_NOT_THEIRS = ("/site-packages/", "/dist-packages/", "<frozen ")
_RUN_CELLS = re.compile(
    r"/(?:site|dist)-packages/(?:ipykernel|IPython|ipyparallel|jupyter_client|tornado|traitlets)/"
    r"|/python3\.\d+/(?:asyncio/|runpy\.py$)|^<frozen "
)
"""They run cells: their lines say nothing of the program."""
_OWN = f"{Path(__file__).parents[1]}/"
"""jaxnb's own frames say nothing: it calls JAX for the user."""


class Frames:
    """The stack frames in which a program's instructions were made.

    Args:
        frames: By number, from 1, the line of each frame and the number of its caller; 0 if it
            has none.
    """

    def __init__(self, frames: Mapping[int, tuple[SourceLine, int]]) -> None:
        self._frames = frames

    def line(self, frame: int, file: str = "", number: int = 0) -> SourceLine | None:
        """Returns the line that an instruction comes from.

        That is the innermost one of a cell; without one, the innermost that is not in an
        installed package; without one, the innermost but those of what runs cells.

        Args:
            frame: The number of its frame.
            file: Its file, where XLA writes that instead.
            number: The line in it.
        """
        stack = [SourceLine(file, number)] if file else list(self._stack(frame))
        chosen = _told([each.file for each in stack])
        return None if chosen is None else stack[chosen]

    def _stack(self, frame: int) -> Iterator[SourceLine]:
        seen: set[int] = set()
        while frame in self._frames and frame not in seen:
            seen.add(frame)
            line, frame = self._frames[frame]
            yield line


def frames_of(module: Message, moved: Mapping[Place, Place] = NOT_MOVED) -> Frames:
    """Returns the frames of a serialized module.

    Args:
        module: The module.
        moved: Where its lines stand now, of ``moved_places``.
    """
    tables = module.message(17)
    files, functions = ["", *tables.texts(1)], ["", *tables.texts(2)]
    places = [SourceLine("", 0)]
    for each in tables.messages(3):
        then = files[each.number(1)], each.number(3), each.number(4)
        file, line, _ = moved.get(then, then)
        places.append(SourceLine(file, line, functions[each.number(2)]))
    rows = enumerate(tables.messages(4), 1)
    return Frames({i: (places[row.number(1)], row.number(2)) for i, row in rows})


def told(stack: Sequence[Place]) -> Place | None:
    """Returns which of the lines of a stack is told, from the innermost, as :meth:`Frames.line`."""
    chosen = _told([file for file, _, _ in stack])
    return None if chosen is None else stack[chosen]


def _told(files: Sequence[str]) -> int | None:
    kept = [k for k, file in enumerate(files) if _is_told(file)]
    for wanted in (lambda f: f.startswith("<cell "),
                   lambda f: not any(part in f for part in _NOT_THEIRS)):  # fmt: skip
        for k in kept:
            if wanted(files[k]):
                return k
    return kept[0] if kept else None


def _is_told(file: str) -> bool:
    return bool(file) and not file.startswith(_OWN) and not _RUN_CELLS.search(file)


# The numbers are places in the program's device assignment, not ``Device.id``. The notations are
# those of ``xla/hlo/ir/replica_group.cc`` and ``mesh_and_axis.cc``.

Groups = tuple[tuple[int, ...], ...]

_OLD_LIST, _LIST, _IOTA, _MESH = 49, 87, 92, 93
"""Fields of an instruction: groups one by one, as they were and are written, as a reshaped range,
as axes of a mesh of XLA's own."""


def groups_of(instruction: Message) -> Groups:
    """Returns the groups of an instruction; none where it joins all."""
    if _MESH in instruction:
        return _along_axes(instruction.message(_MESH))
    devices = instruction.message(_LIST)
    iota = instruction.message(_IOTA) if _IOTA in instruction else devices.message(2)
    if sizes := iota.numbers(3):
        numbers = _range(sizes, iota.numbers(4))
        return _as_groups(numbers.reshape(iota.number(1), iota.number(2)))
    listed = [*devices.messages(1), *instruction.messages(_OLD_LIST)]
    return tuple(dict.fromkeys(group.numbers(1) for group in listed))


def _range(sizes: Sequence[int], order: Sequence[int]) -> np.ndarray[Any, Any]:
    """Returns device numbers in order, in a shape, its dimensions permuted."""
    return np.arange(math.prod(sizes)).reshape(sizes).transpose(order or None)


def _along_axes(message: Message) -> Groups:
    """Returns groups that are given as axes of a mesh, parts of axes included."""
    mesh = message.message(1)
    sizes = [axis.number(2) for axis in mesh.messages(1)]
    numbers = np.arange(math.prod(sizes))
    if devices := mesh.numbers(2):
        numbers = np.array(devices)
    elif 3 in mesh:
        tiled = mesh.message(3)
        numbers = _range(tiled.numbers(1), tiled.numbers(2)).reshape(-1)
    # By axis the parts that groups go along: where one begins, its size, its place in the order.
    parts: list[list[tuple[int, int, int]]] = [[] for _ in sizes]
    for order, axis in enumerate(message.messages(2)):
        place, part = axis.number(1), axis.message(2)
        first, inner = (part.number(1), part.number(2)) if 2 in axis else (1, sizes[place])
        parts[place].append((first, inner, order))
    # Each axis is cut into what a group goes along, with its place in the order, and the rest.
    dimensions: list[tuple[int, int | None]] = []
    for size, known in zip(sizes, parts, strict=True):
        at = 1
        for first, inner, order in sorted(known):
            dimensions += [(first // at, None), (inner, order)]
            at = first * inner
        dimensions.append((size // at, None))
    # Without those of size 1: NumPy has 64 dimensions at most.
    dimensions = [each for each in dimensions if each[0] > 1]
    array = numbers.reshape([size for size, _ in dimensions])
    within = [i for _, i in sorted((o, i) for i, (_, o) in enumerate(dimensions) if o is not None)]
    outside = [i for i, (_, order) in enumerate(dimensions) if order is None]
    width = math.prod(array.shape[i] for i in within)
    return _as_groups(array.transpose(outside + within).reshape(-1, width))


def _as_groups(array: np.ndarray[Any, Any]) -> Groups:
    return tuple(tuple(int(number) for number in row) for row in array)


def participants(
    groups: Groups, *, replicas: int, partitions: int, has_channel: bool, global_ids: bool,
    is_reduction: bool,
) -> Groups:  # fmt: skip
    """Returns groups of devices where an instruction lists replicas or partitions.

    JAX compiles for one replica of as many partitions as there are devices; then a number is a
    device, except without a channel: that joins replicas, and there is only one.
    ``GetCollectiveOpGroupMode`` of ``xla/service/collective_ops_utils`` has the rules.

    Args:
        groups: As they are listed.
        replicas: How many replicas the program has.
        partitions: How many partitions.
        has_channel: Whether the instruction has a ``channel_id``.
        global_ids: Whether it has ``use_global_device_ids``.
        is_reduction: All-reduce, all-gather or reduce-scatter; the others are either over
            replicas or over partitions.
    """
    if has_channel and global_ids:
        return groups
    if not has_channel:
        groups = tuple(tuple(n for n in group if n < replicas) for group in groups)
        return tuple(
            tuple(n * partitions + p for n in group) for group in groups for p in range(partitions)
        )
    if is_reduction:
        groups = tuple(tuple(n for n in group if n < replicas) for group in groups)
        return tuple(
            tuple(n * partitions + p for n in group for p in range(partitions)) for group in groups
        )
    return tuple(
        tuple(r * partitions + n for n in group) for group in groups for r in range(replicas)
    )


COLLECTIVES = frozenset(get_args(CollectiveKind))

CALLERS = frozenset({"call", "while", "conditional", "fusion", "custom-call"})
"""Opcodes that run other computations in which there may be collectives. What is left out calls
one for every element (reduce, sort …), where XLA allows none."""

_TYPES = (
    "invalid", "pred", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "f16", "f32", "f64",
    "tuple", "opaque", "c64", "bf16", "token", "c128", "f8e5m2", "f8e4m3fn", "s4", "u4",
    "f8e4m3b11fnuz", "f8e5m2fnuz", "f8e4m3fnuz", "s2", "u2", "f8e4m3", "f8e3m4", "s1", "u1",
    "f4e2m1fn", "f8e8m0fnu", "buffer", "f6e3m2fn", "f6e2m3fn",
)  # fmt: skip
"""XLA's types, in the order of their numbers."""

_DTYPES = {"pred": "bool", "bf": "bfloat", "s": "int", "u": "uint", "f": "float", "c": "complex"}

Shape = Part | tuple["Shape", ...]
"""An array, or a tuple of shapes."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction that is a collective, or calls computations.

    Attributes:
        name: What XLA calls it.
        opcode: E.g. ``"all-gather-start"``.
        shape: Of its result.
        called: The numbers of the computations that it calls; of a loop: body and condition.
        operation: What JAX calls it.
        source: The line that it comes from.
        groups: Of devices, as they are listed; none for all.
        pairs: Source and target of each transfer, of a permute.
        dimension: Along which devices' parts are put together, or the data cut; None if it
            works on all elements alike, or has an array for each device.
        has_channel: It joins partitions, too.
        global_ids: Its groups list devices.
        trip_count: How often a loop's body is run, if XLA has found out.
        wrapped: It stands for the ``async-start`` that it is wrapped in.
        taken: Of an all-reduce, for each array that it results in: what each device takes of it
            for itself; None for all, or if it is not known.
    """

    name: str
    opcode: str
    shape: Shape
    called: tuple[int, ...] = ()
    operation: str = ""
    source: SourceLine | None = None
    groups: Groups = ()
    pairs: tuple[tuple[int, int], ...] = ()
    dimension: int | None = None
    has_channel: bool = False
    global_ids: bool = False
    trip_count: int | None = None
    wrapped: bool = False
    taken: tuple[Taken | None, ...] = ()

    @property
    def kind(self) -> str | None:
        """Which collective it is, or begins; None for what is none, or ends one."""
        base = self.opcode.removesuffix("-start")
        return base if base in COLLECTIVES else None


@dataclass(frozen=True, slots=True)
class Program:
    """What XLA has compiled.

    Attributes:
        name: Its name.
        entry: The number of the computation that is run first.
        computations: By number, what of them matters, in the order in which it is run.
        replicas: How many replicas it is compiled for; JAX asks for one.
        partitions: How many parts each replica has: with JAX, one per device.
        arguments: What JAX calls the arguments: ``"params['w1']"``.
    """

    name: str
    entry: int
    computations: dict[int, list[Instruction]]
    replicas: int = 1
    partitions: int = 1
    arguments: tuple[str, ...] = ()


def read_program(serialized: bytes, moved: Mapping[Place, Place] = NOT_MOVED) -> Program:
    """Returns a serialized ``HloModuleProto`` as data.

    Args:
        serialized: The module.
        moved: Where its lines stand now, of ``moved_places``.

    Raises:
        ValueError: It is none.
    """
    module = Message(serialized)
    messages = {each.number(5): each for each in module.messages(3)}
    devices = module.message(15)
    uses = Uses(messages, devices.number(2) or 1)
    reader = _Reader(frames_of(module, moved), messages, uses)
    places, entry = _schedule(module), module.number(6)
    known = messages[entry].messages(2) if entry in messages else ()
    return Program(
        name=module.text(1),
        entry=entry,
        computations={number: reader.instructions(number, places) for number in reader.messages},
        replicas=devices.number(1) or 1,
        partitions=devices.number(2) or 1,
        arguments=tuple(each.message(7).text(2) for each in known if each.text(2) == "parameter"),
    )


def _schedule(module: Message) -> dict[int, int]:
    """Returns at which place of its computation each instruction is run, by its number."""
    places: dict[int, int] = {}
    for entry in module.message(7).messages(1):
        places |= {number: i for i, number in enumerate(entry.message(2).numbers(1))}
    return places


@dataclass(frozen=True)
class _Reader:
    """Reads a module's computations.

    Attributes:
        frames: Where its instructions come from.
        messages: Its computations, by number.
        uses: What becomes of results.
    """

    frames: Frames
    messages: dict[int, Message]
    uses: Uses

    def instructions(self, number: int, places: dict[int, int]) -> list[Instruction]:
        """Returns what matters of a computation, in the order in which it is run."""
        known = sorted(
            self.messages[number].messages(2), key=lambda each: places.get(each.number(35), 0)
        )
        return [found for each in known if (found := self._instruction(each, number)) is not None]

    def _instruction(self, message: Message, computation: int) -> Instruction | None:
        opcode = message.text(2)
        if opcode == "async-start":
            return self._wrapped(message)
        found = Instruction(message.text(1), opcode, ())
        if opcode not in CALLERS and found.kind is None:
            return None
        metadata = message.message(7)
        return replace(
            found,
            shape=_shape(message.message(3)),
            called=message.numbers(38),
            operation=metadata.text(2),
            source=self.frames.line(metadata.number(15), metadata.text(3), metadata.number(4)),
            groups=groups_of(message),
            pairs=tuple((pair.number(1), pair.number(2)) for pair in message.messages(52)),
            dimension=next(iter(message.numbers(14)), None),
            has_channel=message.number(26) > 0,
            global_ids=bool(message.number(71)),
            trip_count=_trip_count(message.text(43)) if opcode == "while" else None,
            taken=(self.uses.taken(computation, message) if found.kind == "all-reduce" else ()),
        )

    def _wrapped(self, start: Message) -> Instruction | None:
        """Returns the collective that an async pair wraps; the pair may have the metadata."""
        number = start.numbers(38)[0]
        computation = self.messages[number]
        root = computation.number(6)
        inner = next(each for each in computation.messages(2) if each.number(35) == root)
        found = self._instruction(inner, number)
        return found and replace(found, opcode=f"{found.opcode}-start", wrapped=True)


def _trip_count(config: str) -> int | None:
    try:
        found: Any = json.loads(config)
        return int(found["known_trip_count"]["n"])
    except (ValueError, KeyError, TypeError):  # not there, or not JSON
        return None


def _shape(message: Message) -> Shape:
    kind = message.number(2)
    name = _TYPES[kind] if kind < len(_TYPES) else f"type{kind}"
    if name == "tuple":
        return tuple(map(_shape, message.messages(4)))
    sizes = message.numbers(3)  # of a dynamic dimension: what there is room for
    return Part(dtype_name(name), sizes, math.ceil(math.prod(sizes) * _bits(name) / 8))


def arrays(shape: Shape) -> Iterator[Part]:
    """Returns the arrays of a shape, tuples flattened."""
    if isinstance(shape, Part):
        yield shape
    else:
        for part in shape:
            yield from arrays(part)


def dtype_name(name: str) -> str:
    """Returns the name that JAX has for a dtype of XLA: ``"s32"`` is ``"int32"``."""
    kind, bits, rest = re.fullmatch(r"([a-z]+)(\d*)(.*)", name).groups()  # type: ignore[union-attr]
    separator = "_" if rest else ""
    return f"{_DTYPES.get(kind, kind)}{bits}{separator}{rest}"


def _bits(dtype: str) -> int:
    if dtype == "pred":
        return 8
    found = re.match(r"(?!type)[a-z]+(\d+)", dtype)
    return int(found[1]) if found else 0  # a token, or a type that nobody here knows
