"""Which devices a collective joins: the notations that XLA prints, as lists of device numbers.

The numbers are places in the program's device assignment, not ``Device.id``. The notations are
those of ``xla/hlo/ir/replica_group.cc`` and ``mesh_and_axis.cc``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

Groups = tuple[tuple[int, ...], ...]

_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"(?:@?\w+)?mesh\[(?P<axes>[^\]]*)\](?:, device_ids=\((?P<ids>.*?)\))? \{(?P<over>[^}]*)\}"
)
_MESH_AXIS = re.compile(r"'([^']*)'=(\d+)")
_GROUP_AXIS = re.compile(r"'([^']*)'(?::\((\d+)\)(\d+))?")


def read_groups(text: str, num_devices: int) -> Groups | None:
    """Returns the groups that an attribute ``replica_groups`` lists.

    Args:
        text: ``{{0,1},{2,3}}``, ``[2,4]<=[8]``, ``[4,2]<=[2,4]T(1,0)`` or
            ``mesh['a'=2,'b'=4] {'b'}``; ``{}`` or nothing for one group of all.
        num_devices: How many devices the program runs on.

    Returns:
        The groups; None for a notation that is not known.
    """
    text = text.strip()
    if text in ("", "{}"):
        return (tuple(range(num_devices)),)
    if text.startswith("{"):
        return tuple(map(_numbers, re.findall(r"\{([\d,\s]*)\}", text)))
    if found := _IOTA.fullmatch(text):
        array = _iota(_numbers(found[2]), found[3]).reshape(_numbers(found[1]))
        return _as_groups(array.reshape(array.shape[0], -1))
    if found := _MESH.fullmatch(text):
        return _mesh_groups(found["axes"], found["ids"], found["over"])
    return None


def read_pairs(text: str) -> tuple[tuple[int, int], ...]:
    """Returns the pairs that an attribute ``source_target_pairs`` lists."""
    pairs = map(_numbers, re.findall(r"\{([\d,\s]*)\}", text))
    return tuple((pair[0], pair[1]) for pair in pairs if len(pair) == 2)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part.strip())


def _iota(shape: Sequence[int], transposed: str | None) -> np.ndarray[Any, Any]:
    """Returns device numbers in order, in a shape, its dimensions permuted."""
    array = np.arange(math.prod(shape)).reshape(shape)
    return array.transpose(_numbers(transposed)) if transposed else array


def _mesh_groups(axes: str, ids: str | None, over: str) -> Groups | None:
    """Returns groups that are given as axes of a mesh of XLA's own, parts of axes included."""
    sizes = {name: int(size) for name, size in _MESH_AXIS.findall(axes)}
    numbers = _mesh_devices(math.prod(sizes.values()), ids)
    # Each axis is split into what is before, in and behind the part that a group goes along.
    cut = {name: [(1, False), (size, False), (1, False)] for name, size in sizes.items()}
    for name, before, part in _GROUP_AXIS.findall(over):
        if name not in cut:
            return None
        size = sizes[name]
        first, inner = (int(before), int(part)) if part else (1, size)
        cut[name] = [(first, False), (inner, True), (size // (first * inner), False)]
    dimensions = [piece for pieces in cut.values() for piece in pieces]
    array = numbers.reshape([size for size, _ in dimensions])
    within = [i for i, (_, is_in) in enumerate(dimensions) if is_in]
    outside = [i for i, (_, is_in) in enumerate(dimensions) if not is_in]
    grouped = array.transpose(outside + within)
    width = math.prod(array.shape[i] for i in within)
    return _as_groups(grouped.reshape(-1, width))


def _mesh_devices(count: int, ids: str | None) -> np.ndarray[Any, Any]:
    if not ids:
        return np.arange(count)
    found = re.fullmatch(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", ids)
    if found is None:
        return np.array(_numbers(ids))
    return _iota(_numbers(found[1]), found[2]).reshape(-1)


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
