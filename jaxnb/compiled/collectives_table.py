"""The table of a program's collectives, and what they add up to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from jaxnb.compat.xla_groups import participants
from jaxnb.compat.xla_program import Instruction, Program, Shape, arrays
from jaxnb.compiled.axes import axes_of_groups, axes_of_pairs
from jaxnb.compiled.sent import sent_bytes
from jaxnb.model.arrays import MeshInfo
from jaxnb.model.compiled import AxisTotal, Collective, CollectiveKind, Part

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

    def times(self, factor: int | None) -> Times:
        """Returns this multiplied by ``factor``."""
        known = self.count is not None and factor is not None
        return Times(self.count * factor if known else None, self.at_most)  # type: ignore[operator]

    def plus(self, other: Times) -> Times:
        """Returns this and another, one after the other."""
        known = self.count is not None and other.count is not None
        total = self.count + other.count if known else None  # type: ignore[operator]
        return Times(total, self.at_most or other.at_most)


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
    seen: set[int] = set()

    def visit(number: int) -> None:
        if number in seen:
            return
        seen.add(number)
        for each in program.computations.get(number, ()):
            if each.kind is not None:
                found.append(_collective(program, each, times[number], assignment, meshes))
            for called, _ in _calls(each):
                visit(called)

    visit(program.entry)
    return tuple(found)


def executions(program: Program) -> dict[int, Times]:
    """Returns how often each computation is run that the entry reaches."""
    found: dict[int, Times] = {}

    def visit(number: int, times: Times) -> None:
        found[number] = found[number].plus(times) if number in found else times
        for instruction in program.computations.get(number, ()):
            for called, each in _calls(instruction):
                visit(called, Times(times.times(each.count).count, times.at_most or each.at_most))

    visit(program.entry, Times(1))
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


def totals(found: Iterable[Collective]) -> tuple[AxisTotal, ...]:
    """Returns what collectives move by the axes that they go along, the most first."""
    sums: dict[tuple[str, ...], AxisTotal] = {}
    for each in found:
        before = sums.get(each.axes, AxisTotal(each.axes, 0, 0))
        count = 1 if each.count is None else each.count
        sums[each.axes] = AxisTotal(
            each.axes,
            before.bytes + each.bytes * count,
            before.count + count,
            before.at_least or each.count is None,
            before.at_most or each.at_most,
        )
    return tuple(sorted(sums.values(), key=lambda total: -total.bytes))


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
        size, number = sum(source != target for source, target in instruction.pairs), 1
        sent = result_bytes if size else 0
    else:
        groups = _groups(program, instruction)
        along = axes_of_groups(groups, assignment, meshes)
        size, number = max(map(len, groups), default=1), len(groups)
        sent = sent_bytes(kind, result_bytes, size)
    return Collective(
        kind=kind,
        axes=along.axes if along else (),
        whole_axes=along is not None and along.whole,
        group_size=size,
        num_groups=number,
        parts=parts,
        bytes=sent,
        count=times.count,
        at_most=times.at_most,
        asynchronous=is_start,
        source=instruction.source,
        operation=instruction.operation,
        name=instruction.name,
    )


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
    if (
        is_start
        and instruction.kind != "all-reduce"
        and not isinstance(shape, Part)
        and len(shape) > 1
    ):
        shape = shape[1]
    return tuple(arrays(shape))
