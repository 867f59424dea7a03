"""What a call compiles to: what ``session.collectives`` and ``jaxnb.plan`` return."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from jaxnb.compat.xla import Groups, Instruction, Program, Shape, arrays, participants
from jaxnb.compat.xla_uses import Taken
from jaxnb.model.arrays import MeshInfo
from jaxnb.model.compiled import Collective, CollectiveKind, Part
from jaxnb.pictures.exchange import sent_bytes


@dataclass(frozen=True, slots=True)
class Along:
    """The axes that groups go along.

    Attributes:
        axes: In the order of the mesh.
        whole: Whether each group has all devices along them.
    """

    axes: tuple[str, ...]
    whole: bool = True


def axes_of_groups(
    groups: Groups, assignment: Sequence[int], meshes: Iterable[MeshInfo]
) -> Along | None:
    """Returns the axes that groups of devices go along.

    Args:
        groups: Places in the assignment.
        assignment: The program's devices, as ``Device.id``.
        meshes: The meshes to look at; the first that explains the groups counts.

    Returns:
        The axes; None where the groups go along no axis of any mesh. Groups of one device go
        along none, and need none: no axes, whole.
    """
    if all(len(group) < 2 for group in groups):
        return Along(())
    partly: Along | None = None
    for mesh in meshes:
        found = _in_mesh(groups, assignment, mesh)
        if found is not None and found.whole:
            return found
        partly = partly or found
    return partly


def axes_of_pairs(
    pairs: Sequence[tuple[int, int]], assignment: Sequence[int], meshes: Iterable[MeshInfo]
) -> Along | None:
    """Returns the axes along which senders and receivers differ, as :func:`axes_of_groups`."""
    moving = [pair for pair in pairs if pair[0] != pair[1]]
    if not moving:
        return Along(())
    for mesh in meshes:
        places = _places(moving, assignment, mesh)
        if places is None:
            continue
        differs = np.any(places[:, :, 0] != places[:, :, 1], axis=1)
        return Along(tuple(name for name, is_over in zip(mesh.axis_names, differs, strict=True)
                           if is_over))  # fmt: skip
    return None


def _places(
    groups: Sequence[Sequence[int]], assignment: Sequence[int], mesh: MeshInfo
) -> np.ndarray[Any, Any] | None:
    """Returns the place of each device in the mesh: by axis, group and member."""
    where = {device: place for place, device in enumerate(mesh.device_ids)}
    if any(number >= len(assignment) for group in groups for number in group):
        return None
    flat = [[where.get(assignment[number], -1) for number in group] for group in groups]
    if any(place < 0 for row in flat for place in row):
        return None
    return np.stack(np.unravel_index(np.array(flat), mesh.shape))


def _in_mesh(groups: Groups, assignment: Sequence[int], mesh: MeshInfo) -> Along | None:
    sizes = {len(group) for group in groups}
    if len(sizes) != 1:  # groups of different sizes go along no axis
        return None
    places = _places(groups, assignment, mesh)
    if places is None:
        return None
    varies = np.any(places != places[:, :, :1], axis=2)  # by axis and group
    over = np.any(varies, axis=1)
    axes = tuple(name for name, is_over in zip(mesh.axis_names, over, strict=True) if is_over)
    width = math.prod(size for size, is_over in zip(mesh.shape, over, strict=True) if is_over)
    # As many different devices as there are places along the axes: then it is all of them.
    if sizes == {width} and all(len(set(group)) == width for group in groups):
        return Along(axes)
    return Along(axes, whole=False) if len(axes) == 1 else None


_REDUCTIONS = ("all-reduce", "all-gather", "reduce-scatter")


@dataclass(frozen=True, slots=True)
class Times:
    """How often something is run.

    Attributes:
        count: How often; None if it is not known.
        at_most: It is an upper bound.
    """

    count: int | None
    at_most: bool = False


def collectives(
    program: Program, assignment: Sequence[int], meshes: Sequence[MeshInfo]
) -> tuple[Collective, ...]:
    """Returns the collectives of a program, in the order in which they stand in it.

    Args:
        program: The program, as compiled.
        assignment: Its devices, as ``Device.id``.
        meshes: The meshes whose axes the groups may go along.
    """
    times = executions(program)
    found: list[Collective] = []
    shared: dict[object, Any] = {}  # most have the same groups, of many devices perhaps
    seen: set[int] = set()

    def visit(number: int) -> None:
        if number in seen:
            return
        seen.add(number)
        for each in program.computations.get(number, ()):
            if each.kind is not None:
                made = _collective(program, each, times[number], assignment, meshes)
                groups = shared.setdefault(made.groups, made.groups)
                pairs = shared.setdefault(made.pairs, made.pairs)
                found.append(replace(made, groups=groups, pairs=pairs))
            for called, _ in _calls(each):
                visit(called)

    visit(program.entry)
    return tuple(found)


def executions(program: Program) -> dict[int, Times]:
    """Returns how often each computation is run that the entry reaches."""
    found: dict[int, Times] = {}

    def visit(number: int, count: int | None, at_most: bool) -> None:
        before = found.get(number, Times(0))
        total = None if before.count is None or count is None else before.count + count
        found[number] = Times(total, before.at_most or at_most)
        for instruction in program.computations.get(number, ()):
            for called, each in _calls(instruction):
                inner = None if count is None or each.count is None else count * each.count
                visit(called, inner, at_most or each.at_most)

    visit(program.entry, 1, False)
    return found


def _calls(instruction: Instruction) -> Iterator[tuple[int, Times]]:
    """Returns the computations that an instruction calls, and how often each time it is run."""
    if instruction.kind is not None:
        return  # a collective calls only its reduction of two numbers
    if instruction.opcode == "while":
        body, condition = instruction.called
        count = instruction.trip_count
        yield body, Times(count)
        yield condition, Times(None if count is None else count + 1)
        return
    for number in instruction.called:
        yield number, Times(1, at_most=instruction.opcode == "conditional")


def has_loops(program: Program) -> bool:
    """Whether a program has loops."""
    return any(each.opcode == "while" for known in program.computations.values() for each in known)


def _collective(
    program: Program,
    instruction: Instruction,
    times: Times,
    assignment: Sequence[int],
    meshes: Sequence[MeshInfo],
) -> Collective:
    kind = cast(CollectiveKind, instruction.kind)
    is_start = instruction.opcode.endswith("-start")
    parts = _parts(instruction, is_start=is_start and not instruction.wrapped)
    result_bytes = sum(part.nbytes for part in parts)
    if kind == "collective-permute":
        along = axes_of_pairs(instruction.pairs, assignment, meshes)
        groups = joined_by(instruction.pairs)
        sent = scattered = result_bytes if groups else 0
    else:
        groups = _groups(program, instruction)
        along = axes_of_groups(groups, assignment, meshes)
        size = max(map(len, groups), default=1)
        sent = sent_bytes(kind, result_bytes, size)
        scattered = _scatter_bytes(kind, parts, instruction.taken, groups)

    def devices(numbers: Sequence[int]) -> tuple[int, ...]:
        return tuple(assignment[n] if n < len(assignment) else n for n in numbers)

    return Collective(
        kind=kind,
        axes=along.axes if along else (),
        whole_axes=along is not None and along.whole,
        groups=tuple(map(devices, groups)),
        parts=parts,
        bytes=sent,
        scatter_bytes=scattered,
        count=times.count,
        at_most=times.at_most,
        asynchronous=is_start,
        source=instruction.source,
        operation=instruction.operation,
        name=instruction.name,
        pairs=tuple((source, target) for source, target in map(devices, instruction.pairs)),
        argument=instruction.operation if instruction.operation in program.arguments else "",
        dimension=instruction.dimension,
    )


def joined_by(pairs: Iterable[tuple[int, int]]) -> Groups:
    """Returns the groups that pairs join, in the order in which the first passes its data on."""
    follows = {source: target for source, target in pairs if source != target}
    groups: list[list[int]] = []
    # Each device sends once and receives once: pairs make chains, which have a first, and rings.
    for first in (*(follows.keys() - follows.values()), *follows):
        group = [first]
        while group[-1] in follows:
            group.append(follows.pop(group[-1]))
        if len(group) > 1:
            groups.append(group[:-1] if group[0] == group[-1] else group)
    return tuple(map(tuple, sorted(groups)))


def _scatter_bytes(
    kind: CollectiveKind, parts: Sequence[Part], taken: Sequence[Taken | None], groups: Groups
) -> int:
    """Returns what a device sends if all-reduces of which it takes its own part are scattered."""
    size = max(map(len, groups))

    def is_own(part: Part, own: Taken | None) -> bool:
        """Whether no two devices of a group take the same part."""
        if kind != "all-reduce" or own is None or own.elements * size > math.prod(part.shape):
            return False
        if max(map(max, groups)) >= len(own.parts):  # of replicas
            return False
        return all(len({own.parts[d] for d in group}) == len(group) for group in groups)

    pairs = zip(parts, taken or (None,) * len(parts), strict=True)
    scattered = sum(part.nbytes for part, own in pairs if is_own(part, own))
    others = sum(part.nbytes for part in parts) - scattered
    return sent_bytes("reduce-scatter", scattered // size, size) + sent_bytes(kind, others, size)


def _groups(program: Program, instruction: Instruction) -> tuple[tuple[int, ...], ...]:
    """Returns the groups of devices that a collective joins."""
    is_reduction = instruction.kind in _REDUCTIONS
    everyone = program.replicas * program.partitions
    if instruction.has_channel and not instruction.global_ids:
        everyone = program.replicas if is_reduction else program.partitions
    elif not instruction.has_channel:
        everyone = program.replicas
    return participants(
        instruction.groups or (tuple(range(everyone)),),
        replicas=program.replicas,
        partitions=program.partitions,
        has_channel=instruction.has_channel,
        global_ids=instruction.global_ids,
        is_reduction=is_reduction,
    )


def _parts(instruction: Instruction, *, is_start: bool) -> tuple[Part, ...]:
    """Returns the arrays that a collective results in.

    The start of an async pair results in a tuple: its operands, its results, and what the two
    halves need; except that of an all-reduce.
    """
    shape: Shape = instruction.shape
    has_results = is_start and instruction.kind != "all-reduce"
    if has_results and not isinstance(shape, Part) and len(shape) > 1:
        shape = shape[1]
    return tuple(arrays(shape))
