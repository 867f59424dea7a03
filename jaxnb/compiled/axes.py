"""Groups of devices to the mesh axes that they go along."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxnb.compat.xla_groups import Groups
from jaxnb.model.arrays import MeshInfo


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
