"""What a cell changes: the bytes in use on each device, and their peak."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any

import jax

from jaxnb.compat.jax_runtime import is_ready
from jaxnb.model.cells import CellMemory
from jaxnb.profile.process_stats import bytes_in_use
from jaxnb.wire.process_features import CellHere, Feature

RESIDENT_NOISE_BYTES = 64 << 20
"""A process's resident memory grows by less when it imports or compiles something: not told."""

MOST_ARRAYS = 200
"""So many of the newest arrays are looked at, whether they are computed."""


class MemoryOfCells(Feature):
    """Measures memory before and after each cell; for the main thread.

    Where the backend has ``memory_stats()``, its figures. Else the bytes of live arrays, and of
    the process's resident memory the highest that it was in the cell: Linux is told to forget
    the highest so far as a cell begins.
    """

    def __init__(self) -> None:
        self._before: dict[int, tuple[int, int | None]] = {}
        self._resident = _resident()
        self._at_begin: int | None = None
        self._peak: int | None = None

    def begin(self, _: CellHere) -> None:
        """Notes what is in use as a cell begins."""
        self._before = self._in_use()
        self._at_begin = self._peak = None
        if self._resident and any(peak is None for _, peak in self._before.values()):
            self._at_begin = self._resident.forget_highest()

    def over(self, _: CellHere) -> None:
        """Notes the highest so far, as the code has ended: what follows is not the cell's."""
        if self._resident and self._at_begin is not None:
            self._peak = self._resident.highest()

    def told(self, _: CellHere) -> dict[str, Any]:
        """Returns what the cell has changed on each device, and whether one still computes.

        After what the cell shows was computed: before that nobody knows which arrays share memory.
        """
        late = any(not is_ready(array) for array in jax.live_arrays()[:MOST_ARRAYS])
        return {"memory": self._changes(), "computes": late}

    def _changes(self) -> tuple[CellMemory, ...]:
        after = self._in_use()
        highest = self._peak
        if highest is not None and highest - (self._at_begin or 0) < RESIDENT_NOISE_BYTES:
            highest = None
        found = []
        for device, (used, peak) in after.items():
            before, earlier = self._before.get(device, (0, None))
            if peak is None:  # of one process's devices nobody knows whose it was
                found.append(CellMemory(device, before, used, highest, "process"))
            else:
                highest_ever = peak if peak != earlier else None
                found.append(CellMemory(device, before, used, highest_ever))
        has_changed = any(m.change_bytes or m.peak_bytes is not None for m in found)
        return tuple(found) if has_changed else ()

    def _in_use(self) -> dict[int, tuple[int, int | None]]:
        """Returns device id to the bytes in use, and to the peak if the backend tells."""
        found: dict[int, tuple[int, int | None]] = {}
        silent = []
        for device in jax.local_devices():
            stats = device.memory_stats()
            if stats:
                found[device.id] = stats["bytes_in_use"], stats.get("peak_bytes_in_use", 0)
            else:
                silent.append(device.id)
        if silent:
            totals = bytes_in_use()
            found |= {device: (totals[device], None) for device in silent}
        return found


class _Resident:
    """The process's resident memory, as Linux tells of it; for processes that are not forked.

    Files stay open, as they are read in each cell.
    """

    def __init__(self) -> None:
        self._forget = os.open("/proc/self/clear_refs", os.O_WRONLY)
        self._status = os.open("/proc/self/status", os.O_RDONLY)

    def forget_highest(self) -> int | None:
        """Has Linux forget the most so far; returns what it is now."""
        os.pwrite(self._forget, b"5", 0)
        return self.highest()

    def highest(self) -> int | None:
        """Returns the most since Linux was told to forget it.

        ``getrusage`` tells of a process that was started by exec no less than its parent had.
        """
        found = re.search(rb"^VmHWM:\s+(\d+) kB", os.pread(self._status, 1 << 14, 0), re.MULTILINE)
        return None if found is None else int(found[1]) * 1024


def _resident() -> _Resident | None:
    """Returns it; None where the system has none, or does not allow it."""
    with contextlib.suppress(OSError):
        return _Resident()
    return None
