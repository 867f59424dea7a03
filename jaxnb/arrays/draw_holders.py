"""Pure: says who holds a part of an array, in as much room as there is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxnb.arrays import Block
from jaxnb.labels import plural, processes_label, ranks_label
from jaxnb.model.arrays import ArrayInfo

_MAX_CHARS = 18

LEVELS = 5
"""How many forms :attr:`Holders.forms` has, the last of them empty."""


@dataclass(frozen=True, slots=True)
class Holders:
    """Who holds a part.

    Attributes:
        processes: Process indices, in order.
        devices: For each of them its devices that hold the part, in order.
        whole: Each of the processes holds it with all its devices that the array is on, so
            that ranges of both tell who has what.
    """

    processes: tuple[int, ...]
    devices: tuple[tuple[int, ...], ...]
    whole: bool

    @property
    def count(self) -> int:
        """On how many devices the part is."""
        return sum(map(len, self.devices))

    @property
    def pairs(self) -> list[str]:
        """``["P0 d0", "P1 d2-3"]``."""
        held = zip(self.processes, self.devices, strict=True)
        return [f"P{process} d{ranks_label(devices)}" for process, devices in held]

    @property
    def names(self) -> list[str]:
        """``["P0", "P1"]``; with their devices, if these are not all that they have."""
        return [f"P{process}" for process in self.processes] if self.whole else self.pairs

    @property
    def short(self) -> str:
        """``"P0 d0"``, ``"P0-1 d0-3 ×4"`` or ``"P0 d0, P1 d2 ×2"``."""
        times = f" ×{self.count}" if self.count > 1 else ""
        return (self._ranges if self.whole else ", ".join(self.pairs)) + times

    @property
    def long(self) -> str:
        """``"process 0 · device 0"`` or ``"×2: P0 d0, P1 d2"``, cut after sixteen processes."""
        if self.count == 1 or self.whole:
            times = f" · ×{self.count}" if self.count > 1 else ""
            return f"{processes_label(self.processes)} · {self._devices}{times}"
        return f"×{self.count}: {', '.join(_some(self.pairs, 16))}"

    @property
    def forms(self) -> list[tuple[str, ...]]:
        """The lines to write into a block, from the fullest form to none at all."""
        times = (f"×{self.count}",) if self.count > 1 else ()
        process = f"P{_or_count(ranks_label(self.processes), len(self.processes))}"
        if not self.whole:
            few = (", ".join(_some(self.pairs, 3)), *times)
            columns = [(*_some(self.pairs, most), *times) for most in (8, 4)]
            return [*columns, few, (process, *times), ()]
        flat = tuple(device for devices in self.devices for device in devices)
        device = f"d{_or_count(ranks_label(flat), len(flat))}"
        full = (self._processes, self._devices_label(flat), *times)
        return [
            full,
            (f"{process} {device}", *times),
            (process, device, *times),
            (process, *times),
            (),
        ]

    @property
    def _ranges(self) -> str:
        flat = [device for devices in self.devices for device in devices]
        return f"P{ranks_label(self.processes)} d{ranks_label(flat)}"

    @property
    def _processes(self) -> str:
        label = processes_label(self.processes)
        return label if len(label) <= _MAX_CHARS else plural(len(self.processes), "process")

    @property
    def _devices(self) -> str:
        flat = [device for devices in self.devices for device in devices]
        return f"device{'s' * (len(flat) > 1)} {ranks_label(flat)}"

    def _devices_label(self, flat: tuple[int, ...]) -> str:
        label = self._devices
        return label if len(label) <= _MAX_CHARS else plural(len(flat), "device")


def devices_by_process(array: ArrayInfo) -> dict[int, frozenset[int]]:
    """Returns which devices of each process the array is on."""
    found: dict[int, set[int]] = {}
    for shard in array.shards:
        found.setdefault(shard.process_index, set()).add(shard.device_id)
    return {process: frozenset(devices) for process, devices in found.items()}


def holders_of(part: Block, owned: Mapping[int, frozenset[int]]) -> Holders:
    """Returns who holds a part.

    Args:
        part: The part.
        owned: What :func:`devices_by_process` says of its array.
    """
    held: dict[int, set[int]] = {}
    for shard in part.shards:
        held.setdefault(shard.process_index, set()).add(shard.device_id)
    whole = len(held) == 1 or all(held[process] == owned[process] for process in held)
    processes = tuple(sorted(held))
    return Holders(processes, tuple(tuple(sorted(held[p])) for p in processes), whole)


def _some(texts: list[str], most: int) -> list[str]:
    if len(texts) <= most:
        return texts
    return [*texts[: most - 1], f"… {len(texts) - most + 1} more"]


def _or_count(label: str, count: int) -> str:
    """The label, or how many there are if it is too long to read."""
    return label if len(label) <= _MAX_CHARS else f"×{count}"
