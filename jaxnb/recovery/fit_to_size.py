"""What is known of a group whose variables are kept, and how they fit one of another size."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jaxnb.errors import UsageError
from jaxnb.labels import paths_label, plural, processes_label
from jaxnb.model.group import GroupInfo
from jaxnb.recovery.messages import Lost


@dataclass(frozen=True, slots=True)
class Facts:
    """What a saved state has to fit.

    Attributes:
        jax: The version of JAX.
        python: That of Python, without its last number.
        platform: Of the devices.
        num_processes: Size of the group.
        devices_per_process: Devices of each process.
    """

    jax: str
    python: str
    platform: str
    num_processes: int
    devices_per_process: int

    @property
    def size(self) -> tuple[int, int]:
        """Processes, and devices of each."""
        return self.num_processes, self.devices_per_process

    @property
    def num_devices(self) -> int:
        """Devices of the group."""
        return self.num_processes * self.devices_per_process

    @classmethod
    def of(cls, group: GroupInfo) -> Facts:
        """Returns those of a group."""
        python = ".".join(platform.python_version_tuple()[:2])
        devices = {len(process.devices) for process in group.processes}
        count = len(group.processes)
        return cls(group.jax_version, python, group.platform, count, max(devices))


def require_readable(path: Path, saved: Facts, now: Facts) -> tuple[str, ...]:
    """Returns what there is to say where it fits.

    Raises:
        UsageError: It does not fit.
    """
    for field, sentence in (
        ("python", "by Python {}; this is {}, which cannot read its functions' code"),
        ("platform", "on {} devices; these are {}"),
    ):
        before, after = getattr(saved, field), getattr(now, field)
        if before != after:
            raise UsageError(
                f"{path} was saved {sentence.format(before, after)}. Nothing was loaded. It fits a "
                f"group of `%spmd_start --platform {saved.platform}`, with Python {saved.python}."
            )
    if saved.jax == now.jax:
        return ()
    return (f"Saved with JAX {saved.jax}, loaded with {now.jax}.",)


def lost_here(lost: Iterable[Lost], before: int, now: int) -> list[Lost]:
    """Returns what processes have lost that take what others had packed.

    Args:
        lost: What those had not packed.
        before: How many there were.
        now: How many there are; further ones take what the first had.
    """
    found = []
    for each in lost:
        who = tuple(i for i in range(now) if (i if i < before else 0) in each.processes)
        if who:
            found.append(replace(each, processes=who))
    return found


def resized_notes(
    before: tuple[int, int], now: tuple[int, int], gone: str, differing: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Returns what there is to say of variables that come from a group of another size.

    Args:
        before: Its processes, and devices of each.
        now: Those of this group.
        gone: What becomes of what further processes had: ``"is not loaded"``.
        differing: The variables that differed by process; None if that is not known.
    """
    if before == now:
        return ()
    (had, each_had), (has, each_has) = before, now
    notes = [
        f"Arrays over several processes lie on {has} × {each_has} devices now, not on {had} × "
        f"{each_had}."
    ]
    if has == had or differing == []:
        return tuple(notes)
    others = processes_label(range(min(had, has), max(had, has)))
    if differing is not None:
        what = f"{paths_label(differing, what='part')} differed by process: those of"
        what += f" {others} are gone" if has < had else f" {others} are what process 0 had"
    elif has > had:
        what = f"Whatever else {others} {'holds' if has - had == 1 else 'hold'} is what process 0"
        what += " had"
    else:
        what = f"Whatever else {others} had {gone}"
    return (*notes, f"{what}.")


Box = tuple[tuple[int, int], ...]
"""A part of an array: where it starts and stops in each dimension."""


class MisfitError(Exception):
    """Something does not fit a group of this size; the text says why."""


@dataclass(frozen=True, slots=True)
class SavedPart:
    """What one device had of an array.

    Attributes:
        device: Its place among the devices of its process.
        box: Which part.
        dtype: Of its elements, in host memory.
        buffer: Which of the parts in the file it is.
    """

    device: int
    box: Box
    dtype: str
    buffer: int


@dataclass(frozen=True, slots=True)
class SavedArray:
    """An array over several processes, as one of them has saved it.

    Attributes:
        name: The variable in which it was met.
        path: Where it is, as the user has it; empty if nothing leads there.
        origin: Where it comes from, in a form that is the same on all processes; empty if that is
            not known.
        shape: Its shape.
        dtype: Its dtype.
        mesh: The axes of its mesh, and their sizes; empty if it has no mesh, but devices.
        is_of_all: The mesh has all devices of the group. Else it stays where it is.
        needs: So many processes, and devices of each, there have to be for it to stay there.
        spec: For each dimension the axes that it is divided over.
        parts: What this process has of it.
        unreduced: Axes over which it has not been summed yet.
    """

    name: str
    path: str
    origin: str
    shape: tuple[int, ...]
    dtype: str
    mesh: Mapping[str, int]
    is_of_all: bool
    needs: tuple[int, int]
    spec: tuple[tuple[str, ...], ...]
    parts: tuple[SavedPart, ...]
    unreduced: tuple[str, ...] = ()

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> SavedArray:
        """Returns what JSON has made of one."""
        found = {name: _with_tuples(value) for name, value in plain.items()}
        return cls(**{**found, "parts": tuple(SavedPart(*each) for each in found["parts"])})

    @property
    def plain(self) -> dict[str, Any]:
        """What JSON can hold."""
        parts = [[each.device, each.box, each.dtype, each.buffer] for each in self.parts]
        kept = {name: getattr(self, name) for name in self.__slots__ if name != "parts"}
        return {**kept, "parts": parts}

    @property
    def key(self) -> tuple[object, ...]:
        """What parts of one array have in common, and those of others do not.

        Where it comes from, else where it is: the processes need not meet arrays in one order.
        """
        facts = self.shape, self.dtype, tuple(self.mesh.items()), self.spec, self.needs
        return (self.origin, "" if self.origin else self.path, *facts)

    def __str__(self) -> str:
        axes = ", ".join(f"{axis!r}: {size}" for axis, size in self.mesh.items())
        kind = f"{self.dtype}{[*self.shape]}"
        return f"`{self.path or self.name}` ({kind} over a mesh of {axes or 'no axes'})"


def _with_tuples(value: Any) -> Any:
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def resized(mesh: Mapping[str, int], num_devices: int) -> dict[str, int]:
    """Returns the sizes of a mesh's axes over another number of devices: the first axis changes.

    Raises:
        MisfitError: The other axes do not divide the number of devices.
    """
    first, *others = mesh
    rest = math.prod(mesh[axis] for axis in others)
    if num_devices % rest or not num_devices:
        sizes = " × ".join(f"{axis!r} ({mesh[axis]})" for axis in others)
        raise MisfitError(
            f"{sizes} does not divide {plural(num_devices, 'device')}, so axis {first!r} cannot "
            "take the rest"
        )
    return {**mesh, first: num_devices // rest}


def require_fit(array: SavedArray, mesh: Mapping[str, int]) -> None:
    """Looks whether an array of all devices can be laid out over a mesh.

    Args:
        array: The array.
        mesh: The axes of the mesh, and their sizes.

    Raises:
        MisfitError: It cannot; the message says which axis does not fit.
    """
    if array.unreduced:
        raise MisfitError(f"{array} has not been summed over {', '.join(array.unreduced)} yet")
    for dimension, axes in enumerate(array.spec):
        count = math.prod(mesh[axis] for axis in axes)
        if count and array.shape[dimension] % count:
            named = " × ".join(f"{axis!r}" for axis in axes)
            raise MisfitError(
                f"{array}: axis {named} would have {count} devices, which do not divide dimension "
                f"{dimension} ({array.shape[dimension]})"
            )


def require_all_fit(
    arrays: Iterable[SavedArray],
    size: tuple[int, int],
    sizes_of: Callable[[Mapping[str, int]], Mapping[str, int]] | None = None,
) -> None:
    """Looks whether arrays fit a group.

    Args:
        arrays: The arrays.
        size: The processes of the group, and the devices of each.
        sizes_of: Returns what the axes of a mesh of all devices become; by default those of a group
            that has no meshes of its own.

    Raises:
        MisfitError: One does not.
    """
    for array in arrays:
        if not array.is_of_all:
            (processes, devices), (needed, each) = size, array.needs
            if processes < needed or devices < each:
                raise MisfitError(
                    f"{array}: it is on some devices only, which need {plural(needed, 'process')} "
                    f"with {plural(each, 'device')} each"
                )
            continue
        try:
            mesh = sizes_of(array.mesh) if sizes_of else resized(array.mesh, math.prod(size))
        except MisfitError as error:
            raise MisfitError(f"{array}: {error}") from None
        require_fit(array, mesh)


def overlap(one: Box, other: Box) -> Box | None:
    """Returns what two parts of an array have in common; None if that is nothing."""
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return both if all(a < b for a, b in both) else None


def size_of(box: Box) -> int:
    """Returns how many elements a part has."""
    return math.prod(b - a for a, b in box)


def within(box: Box, outer: Sequence[tuple[int, int]]) -> tuple[slice, ...]:
    """Returns where a part is in a larger one."""
    return tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(box, outer, strict=True))
