"""Which devices a collective joins: the notations of XLA, as lists of device numbers.

The numbers are places in the program's device assignment, not ``Device.id``. The notations are
those of ``xla/hlo/ir/replica_group.cc`` and ``mesh_and_axis.cc``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxnb.compat.xla_messages import Message

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
    # Each axis is split into what is before, in and behind the part that a group goes along.
    cut = [[(1, False), (size, False), (1, False)] for size in sizes]
    for axis in message.messages(2):
        place, part = axis.number(1), axis.message(2)
        first, inner = (part.number(1), part.number(2)) if 2 in axis else (1, sizes[place])
        cut[place] = [(first, False), (inner, True), (sizes[place] // (first * inner), False)]
    dimensions = [piece for pieces in cut for piece in pieces]
    array = numbers.reshape([size for size, _ in dimensions])
    within = [i for i, (_, is_in) in enumerate(dimensions) if is_in]
    outside = [i for i, (_, is_in) in enumerate(dimensions) if not is_in]
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
