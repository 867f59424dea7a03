"""Statistics of this process and of its devices, in whatever state its main thread is."""

from __future__ import annotations

import ctypes
import heapq
import importlib
import math
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import jax
import psutil

from jaxnb.arrays import process_names
from jaxnb.arrays.process_describe import dtype_facts
from jaxnb.launch import process_join
from jaxnb.profile.statistics import MOST_LARGEST, DeviceStats, LargeArray
from jaxnb.wire.process_sentinel import ThisProcess

INSTALL = "Utilisation and temperature need nvidia-ml-py: `pip install nvidia-ml-py`."


@dataclass(frozen=True, slots=True)
class Reading:
    """What NVML says of one GPU; None is what it does not tell.

    Attributes:
        percent: How much of the last moments at least one kernel ran.
        celsius: Its temperature.
        note: Why something is missing.
    """

    percent: float | None
    celsius: int | None
    note: str = ""


def pci_bus_id(ordinal: int) -> str | None:
    """Asks the CUDA driver, which JAX has initialised, for a GPU's place on the bus.

    That is right whatever ``CUDA_VISIBLE_DEVICES`` and ``CUDA_DEVICE_ORDER`` say.

    Args:
        ordinal: CUDA's number of it in this process.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, text = ctypes.c_int(), ctypes.create_string_buffer(32)
    if cuda.cuDeviceGet(ctypes.byref(device), ordinal):
        return None
    if cuda.cuDeviceGetPCIBusId(text, len(text), device):
        return None
    return text.value.decode()


class Gpus:
    """The GPUs of this process, as NVML knows them.

    Nothing is loaded before the first question. What NVML cannot tell is None, with a note.

    Args:
        bus_id: Returns where on the bus CUDA's GPU of a number is; None if it does not tell.
        environment: The process's variables.
    """

    def __init__(
        self,
        bus_id: Callable[[int], str | None] = pci_bus_id,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._bus_id = bus_id
        self._environment = environment
        self._nvml: Any = None
        self._missing: str | None = None

    def reading(self, ordinal: int) -> Reading:
        """Returns how busy and how warm a GPU is.

        Args:
            ordinal: CUDA's number of it in this process: the first visible one is 0.
        """
        if self._missing is None:
            self._missing = self._load()
        if self._missing:
            return Reading(None, None, self._missing)
        nvml = self._nvml
        try:
            handle = self._handle(ordinal)
            if handle is None:
                note = "The CUDA driver does not say which of NVML's GPUs this is."
                return Reading(None, None, note)
            percent = float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
            celsius = int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        except nvml.NVMLError as error:  # a slice of a GPU (MIG) has no figures of its own
            return Reading(None, None, f"NVML says {error}.")
        return Reading(percent, celsius)

    def _load(self) -> str:
        """Starts NVML; returns why it cannot be used, or nothing."""
        try:
            self._nvml = importlib.import_module("pynvml")
        except ImportError:
            return INSTALL
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            return f"Utilisation and temperature are missing: NVML says {error}."
        return ""

    def _handle(self, ordinal: int) -> Any:
        visible = self._environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
        name = visible[ordinal].strip() if ordinal < len(visible) else ""
        # Numbers in it are counted in CUDA's own order, which need not be NVML's.
        if name.startswith("MIG-"):
            return self._nvml.nvmlDeviceGetHandleByUUID(name)
        bus_id = self._bus_id(ordinal)
        return bus_id and self._nvml.nvmlDeviceGetHandleByPciBusId(bus_id)


_lock = threading.RLock()


@contextmanager
def looking() -> Iterator[None]:
    """Waits until no other thread looks, and has others wait for the block.

    To look at a call or an array is to hold it, and what a call holds: until the look is over,
    what has ended meanwhile is not freed. Whoever adds up what is in use does it within the block
    too, so that it is not counted. A look takes microseconds, or 5 ms a switch between threads.
    """
    with _lock:
        yield


SWITCH_SECONDS = 1e-4
"""How long other threads of Python go on beside one that is to be quickly back."""


@contextmanager
def quickly_back() -> Iterator[None]:
    """Has this thread get the interpreter's lock back soon after each call of the system.

    Beside a main thread that computes in Python that takes 5 ms a call, and to look at 40
    threads is 200 calls.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _renew_in_child() -> None:
    """Who looked is not in a child of this process."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_in_child)


Place = tuple[int, int]
"""A buffer: its device's id and its address. Until that is known, minus the id of its array."""

MOST_ALIKE = 10_000
"""Of more equally large arrays than these, any are told."""

Buffers = dict[Place, tuple[int, list[Any]]]
"""Buffer to its bytes, and to the live arrays that share it."""


def bytes_in_use() -> Counter[int]:
    """Returns device id to the bytes of live arrays on it, each buffer counted once."""
    with looking():
        return _bytes_by_device(live_buffers())


def _bytes_by_device(buffers: Buffers) -> Counter[int]:
    found: Counter[int] = Counter()
    for (device, _), (nbytes, _) in buffers.items():
        found[device] += nbytes
    return found


def live_buffers() -> Buffers:
    """Returns the buffers of the live arrays on this process's devices.

    Waits for nothing: an array that is not computed yet counts with the bytes that it will have.
    Where an array's parts are, only arrays for each part tell. JAX would keep those as long as the
    array, so they are not asked for unless somebody may have them already.
    """
    found: Buffers = {}
    shards: dict[Any, Shards] = {}
    spread: list[tuple[Any, tuple[int, ...], int]] = []
    sizes: set[tuple[int, int]] = set()  # of arrays on one device: its id, and bytes
    for array in jax.live_arrays():
        try:
            devices, nbytes = _shards_of(array, shards)
            if len(devices) == 1:
                sizes.add((devices[0], nbytes))
                _put(found, (devices[0], _address(array, array)), nbytes, array)
            else:
                spread.append((array, devices, nbytes))
        except Exception:  # it was deleted meanwhile
            continue
    for array, devices, nbytes in spread:
        addresses = dict.fromkeys(devices, -id(array))
        if any((device, nbytes) in sizes for device in devices):
            with suppress(Exception):
                for part in array.addressable_shards:
                    addresses[part.device.id] = _address(part.data, array)
        for place in addresses.items():
            _put(found, place, nbytes, array)
    return found


def _put(found: Buffers, place: Place, nbytes: int, array: Any) -> None:
    found.setdefault(place, (nbytes, []))[1].append(array)


def _address(part: Any, array: Any) -> int:
    return int(part.unsafe_buffer_pointer()) if part.is_ready() else -id(array)


def largest_of(buffers: Buffers, device: int, count: int) -> list[tuple[int, list[Any]]]:
    """Returns the largest buffers on a device: bytes, and the arrays that share each.

    More than ``count`` where several are as large as the last, up to :data:`MOST_ALIKE`.
    """
    on_device = [each for (where, _), each in buffers.items() if where == device]
    top = heapq.nlargest(count, on_device, key=lambda each: each[0])
    least = top[-1][0] if top else 0
    alike = [each for each in on_device if each[0] == least]
    return [each for each in top if each[0] > least] + alike[:MOST_ALIKE]


Shards = tuple[tuple[int, ...], int]
"""The devices of this process that hold a part of an array, and a part's bytes."""


_SHARDS = "_jaxnb_shards"
"""An attribute of arrays: a cell asks twice for those of each array that lives."""


def _shards_of(array: Any, known: dict[Any, Shards]) -> Shards:
    found: Shards | None = array.__dict__.get(_SHARDS)
    if found is not None:
        return found
    key = sharding, shape, dtype = array.sharding, array.shape, array.dtype
    found = known.get(key)
    if found is None:
        devices = tuple(device.id for device in sharding.addressable_devices)
        bits = dtype_facts(dtype).itemsize_bits
        found = known[key] = devices, -(-math.prod(sharding.shard_shape(shape)) * bits // 8)
    array.__dict__[_SHARDS] = found
    return found


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
        self._gpus = Gpus()

    def collect(self, brief: bool = False) -> list[DeviceStats]:
        """Returns a row per addressable device.

        ``memory_stats()`` where the backend has it. XLA's CPU backend has none: there the bytes
        of the live arrays' shards are added up, each device buffer once, however many arrays
        share it.

        Args:
            brief: Leave out what takes milliseconds: the largest arrays, and PSS.
        """
        devices = jax.local_devices()
        with looking():
            buffers = live_buffers()
            live, counts = _bytes_by_device(buffers), Counter(device for device, _ in buffers)
            looked_at = () if brief else devices
            tops = {each.id: largest_of(buffers, each.id, MOST_LARGEST) for each in looked_at}
            del buffers
        largest = self._largest(tops) if tops else {}
        pss = None if brief else pss_bytes()
        rss = int(psutil.Process().memory_info().rss)
        cpu_seconds, now = time.process_time(), time.monotonic()
        rows = []
        for device in devices:
            stats = device.memory_stats() or {}
            gpu = Reading(None, None)
            if device.platform == "gpu":
                gpu = self._gpus.reading(getattr(device, "local_hardware_id", None) or 0)
            rows.append(
                DeviceStats(
                    device=process_join.device_info(device),
                    host=socket.gethostname(),
                    pid=os.getpid(),
                    bytes_in_use=stats["bytes_in_use"] if stats else live[device.id],
                    peak_bytes=stats.get("peak_bytes_in_use"),
                    limit_bytes=stats.get("bytes_limit"),
                    source="memory_stats" if stats else "live_arrays",
                    live_arrays=counts[device.id],
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

    def _largest(
        self, tops: dict[int, list[tuple[int, list[Any]]]]
    ) -> dict[int, tuple[LargeArray, ...]]:
        wanted = {id(a) for top in tops.values() for _, arrays in top for a in arrays}
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


def pss_bytes() -> int | None:
    """Returns resident memory with shared pages divided among those who share them, or None."""
    try:
        return getattr(psutil.Process().memory_full_info(), "pss", None)  # of Linux only
    except psutil.AccessDenied:
        return None
