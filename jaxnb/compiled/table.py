"""The table of a program's collectives, and what they add up to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from jaxnb.compat.xla_frames import Frames
from jaxnb.compat.xla_groups import participants, read_groups, read_pairs
from jaxnb.compat.xla_instructions import Instruction, Shape, arrays, read
from jaxnb.compat.xla_program import Line, Program, Times, executions, kind_of
from jaxnb.compiled.axes import Along, axes_of_groups, axes_of_pairs
from jaxnb.compiled.sent import sent_bytes
from jaxnb.model.collectives import AxisTotal, Collective, CollectiveKind, Part
from jaxnb.model.layout import MeshInfo

_REDUCTIONS = ("all-reduce", "all-gather", "reduce-scatter")


def collectives(
    program: Program, assignment: Sequence[int], meshes: Sequence[MeshInfo]
) -> tuple[Collective, ...]:
    """Returns the collectives of a program, in the order in which they stand in it.

    Args:
        program: The program, as compiled.
        assignment: Its devices, as ``Device.id``.
        meshes: The meshes whose axes the groups may go along.
    """
    reader = _Reader(program, assignment, meshes)
    times = executions(program, reader.calls)
    found: list[Collective] = []
    seen: set[str] = set()

    def visit(name: str) -> None:
        if name in seen:
            return
        seen.add(name)
        for line in program.computations.get(name, ()):
            collective = reader.collective(line, times[name])
            if collective is not None:
                found.append(collective)
            for called, _ in reader.calls(line):
                visit(called)

    visit(program.entry)
    return tuple(found)


def has_loops(program: Program) -> bool:
    """Whether a program has loops."""
    return any(line.opcode == "while" for lines in program.computations.values() for line in lines)


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


class _Reader:
    """Reads a program's lines.

    Args:
        program: The program.
        assignment: Its devices.
        meshes: The meshes.
    """

    def __init__(
        self, program: Program, assignment: Sequence[int], meshes: Sequence[MeshInfo]
    ) -> None:
        self._program = program
        self._assignment = assignment
        self._meshes = meshes
        self._frames = Frames(program.header)

    def calls(self, line: Line) -> Iterator[tuple[str, Times]]:
        """Returns the computations that a line calls, and how often each time it is run."""
        instruction = read(line.text)
        if instruction is None or kind_of(line.opcode) is not None:
            return  # what a collective calls adds two numbers
        if line.opcode == "while":
            count = instruction.trip_count
            for key, times in (
                ("body", count),
                ("condition", None if count is None else count + 1),
            ):
                yield instruction.attributes.get(key, "").lstrip("%"), Times(times)
            return
        for name in instruction.called:
            yield name, Times(1, at_most=line.opcode == "conditional")

    def collective(self, line: Line, times: Times) -> Collective | None:
        """Returns the collective that a line is; None for what is none."""
        kind = cast(CollectiveKind | None, kind_of(line.opcode))
        instruction = read(line.text)
        if kind is None or instruction is None:
            return None
        parts = _parts(instruction, is_start=line.opcode.endswith("-start") and not line.wrapped)
        result_bytes = sum(part.nbytes for part in parts)
        if kind == "collective-permute":
            along, size, number = self._pairs(instruction)
            sent = result_bytes if size else 0
        else:
            along, size, number = self._groups(kind, instruction)
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
            asynchronous=line.wrapped or line.opcode.endswith("-start"),
            source=self._frames.line(instruction.metadata),
            operation=instruction.metadata.get("op_name", ""),
            name=instruction.name,
        )

    def _pairs(self, instruction: Instruction) -> tuple[Along | None, int, int]:
        pairs = read_pairs(instruction.attributes.get("source_target_pairs", ""))
        senders = sum(source != target for source, target in pairs)
        return axes_of_pairs(pairs, self._assignment, self._meshes), senders, 1

    def _groups(
        self, kind: CollectiveKind, instruction: Instruction
    ) -> tuple[Along | None, int, int]:
        text = instruction.attributes.get("replica_groups", "")
        has_channel = "channel_id" in instruction.attributes
        global_ids = instruction.attributes.get("use_global_device_ids") == "true"
        program = self._program
        everyone = program.replicas * program.partitions
        if has_channel and not global_ids:
            everyone = program.replicas if kind in _REDUCTIONS else program.partitions
        elif not has_channel:
            everyone = program.replicas
        groups = read_groups(text, everyone)
        if groups is None:  # a notation that is not known: as if over all, along no axis
            return None, program.replicas * program.partitions, 1
        groups = participants(
            groups,
            replicas=program.replicas,
            partitions=program.partitions,
            has_channel=has_channel,
            global_ids=global_ids,
            is_reduction=kind in _REDUCTIONS,
        )
        along = axes_of_groups(groups, self._assignment, self._meshes)
        return along, max(map(len, groups), default=1), len(groups)


def _parts(instruction: Instruction, *, is_start: bool) -> tuple[Part, ...]:
    """Returns the arrays that a collective results in.

    The start of an async pair results in a tuple: its operands, its results, and what the two
    halves need; except that of an all-reduce.
    """
    shape: Shape = instruction.shape
    kind = instruction.opcode.removesuffix("-start")
    if is_start and kind != "all-reduce" and not isinstance(shape, Part) and len(shape) > 1:
        shape = shape[1]
    return tuple(arrays(shape))
