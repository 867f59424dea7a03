"""Statistics of this process and of its devices, in whatever state its main thread is."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from typing import Any

import jax
import psutil

from jaxnb.arrays import process_names
from jaxnb.launch import process_bootstrap
from jaxnb.profile.process_live_arrays import LiveArrays
from jaxnb.profile.process_looks import quickly_back
from jaxnb.profile.process_nvml import Gpus, Reading
from jaxnb.profile.statistics import MOST_LARGEST, DeviceStats, LargeArray
from jaxnb.wire.process_sentinel import ThisProcess

MOST_OBJECTS = 100_000
"""How many objects are looked at for the names of the largest arrays."""


@quickly_back()
def statistics(process: ThisProcess, brief: bool) -> list[DeviceStats]:
    """Returns a row for each device; brief ones lack what takes milliseconds."""
    return process.statistics.collect(brief)


class Statistics:
    """Takes the statistics of this process: for one thread, which need not be the main one.

    Runs no code of the user's, and waits neither for computations nor for cells.

    Args:
        shell: The shell whose namespace holds the user's variables.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._live = LiveArrays()
        self._gpus = Gpus()

    def collect(self, brief: bool = False) -> list[DeviceStats]:
        """Returns a row per addressable device.

        ``memory_stats()`` where the backend has it. XLA's CPU backend has none: there the bytes
        of the live arrays' shards are added up, each device buffer once, however many arrays
        share it.

        Args:
            brief: Leave out what takes milliseconds: the largest arrays, and PSS.
        """
        self._live.update()
        devices = jax.local_devices()
        largest = {} if brief else self._largest([device.id for device in devices])
        return self._rows(devices, largest, None if brief else pss_bytes())

    def _rows(
        self, devices: list[Any], largest: dict[int, tuple[LargeArray, ...]], pss: int | None
    ) -> list[DeviceStats]:
        rss, cpu_seconds, now = rss_bytes(), time.process_time(), time.monotonic()
        live, counts = self._live.bytes_by_device(), self._live.counts_by_device()
        rows = []
        for device in devices:
            stats = device.memory_stats() or {}
            gpu = self._reading(device)
            rows.append(
                DeviceStats(
                    device=process_bootstrap.device_info(device),
                    host=socket.gethostname(),
                    pid=os.getpid(),
                    bytes_in_use=stats["bytes_in_use"] if stats else live.get(device.id, 0),
                    peak_bytes=stats.get("peak_bytes_in_use"),
                    limit_bytes=stats.get("bytes_limit"),
                    source="memory_stats" if stats else "live_arrays",
                    live_arrays=counts.get(device.id, 0),
                    process_rss_bytes=rss,
                    process_pss_bytes=pss,
                    largest=largest.get(device.id, ()),
                    utilization_percent=gpu.percent,
                    temperature_celsius=gpu.celsius,
                    gpu_note=gpu.note,
                    process_cpu_seconds=cpu_seconds,
                    at_seconds=now,
                )
            )
        return rows

    def _reading(self, device: Any) -> Reading:
        if device.platform != "gpu":
            return Reading(None, None)
        return self._gpus.reading(getattr(device, "local_hardware_id", None) or 0)

    def _largest(self, devices: list[int]) -> dict[int, tuple[LargeArray, ...]]:
        tops = {device: self._live.largest(device, MOST_LARGEST) for device in devices}
        wanted = process_names.ids_of([arrays for top in tops.values() for _, arrays in top])
        shell, search = self._shell, process_names.Names(MOST_OBJECTS)
        names = search.find(shell.user_ns, shell.user_ns_hidden, wanted) if wanted else {}
        unknown = None if search.gave_up else ""

        def ranked(top: list[tuple[int, list[Any]]]) -> list[tuple[int, str | None, list[Any]]]:
            found = [
                (nbytes, process_names.first_of(arrays, names), arrays) for nbytes, arrays in top
            ]
            # Of equally large ones all processes tell the same.
            return sorted(found, key=lambda each: (-each[0], not each[1], each[1] or ""))

        return {
            device: tuple(
                _large_array(nbytes, name, arrays, names, unknown)
                for nbytes, name, arrays in ranked(top)[:MOST_LARGEST]
            )
            for device, top in tops.items()
        }


def _large_array(
    nbytes: int,
    name: str | None,
    arrays: list[Any],
    names: dict[int, str],
    unknown: str | None,
) -> LargeArray:
    named = [array for array in arrays if name is not None and names.get(id(array)) == name]
    # Without a name the whole array tells more than one that was made for a part of it.
    array = max(named or arrays, key=lambda array: array.size)
    devices = _as_ranges(device.id for device in array.sharding.device_set)
    if name is None:
        name = unknown
    else:
        alike = [each for each in arrays if (each.shape, each.dtype) == (array.shape, array.dtype)]
        all_names = {names[id(each)] for each in alike if id(each) in names}
        name = ", ".join(sorted(all_names, key=lambda each: (len(each), each)))
    return LargeArray(name, nbytes, array.shape, str(array.dtype), devices)


def _as_ranges(ids: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Returns numbers as pairs of the first and the last of those that follow each other."""
    ranges: list[tuple[int, int]] = []
    for each in sorted(ids):
        if ranges and each == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], each)
        else:
            ranges.append((each, each))
    return tuple(ranges)


def rss_bytes() -> int:
    """Returns this process's resident memory."""
    return int(psutil.Process().memory_info().rss)


def pss_bytes() -> int | None:
    """Returns the same with shared pages divided among those who share them, or None."""
    try:
        return getattr(psutil.Process().memory_full_info(), "pss", None)  # of Linux only
    except psutil.AccessDenied:
        return None
