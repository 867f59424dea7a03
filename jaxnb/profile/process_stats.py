"""Statistics of this process and of its devices, in whatever state its main thread is."""

from __future__ import annotations

import heapq
import math
import os
import socket
import sys
import threading
import time
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import psutil

from jaxnb.arrays import process_names
from jaxnb.arrays.process_describe import dtype_facts
from jaxnb.launch import process_bootstrap
from jaxnb.profile.process_nvml import Gpus, Reading
from jaxnb.profile.statistics import MOST_LARGEST, DeviceStats, LargeArray
from jaxnb.wire.process_sentinel import ThisProcess

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

Size = tuple[int, int]
"""A device's id, and bytes."""

MOST_ALIKE = 10_000
"""Of more equally large arrays than these, any are told."""

Shards = tuple[Any, tuple[int, ...], int]
"""A sharding, the devices of this process that hold a part of an array, and a part's bytes."""


class _Ref(weakref.ref[Any]):
    __slots__ = ("key",)
    key: int


class LiveArrays:
    """Knows the live arrays as they were at the last :meth:`update`.

    What does not change costs next to nothing: arrays are remembered weakly. JAX puts new ones
    first, and tells none that was deleted or donated.

    Waits for nothing: an array that is not computed yet counts with the bytes that it will have.
    Not safe to use from several threads at a time; each has one of its own.
    """

    # By array, its key being its id; few objects each, or collecting garbage would cost most.

    def __init__(self) -> None:
        self._refs: dict[int, _Ref] = {}
        self._places: dict[int, tuple[Place, ...]] = {}
        self._nbytes: dict[int, int] = {}  # of each part; views of one buffer may differ
        # By buffer.
        self._bytes: dict[Place, int] = {}
        self._holders: dict[Place, tuple[int, ...]] = {}
        # By device.
        self._totals: Counter[int] = Counter()
        self._counts: Counter[int] = Counter()
        # Arrays on one device, and those in parts on several, of which these may be the parts.
        self._singles: Counter[Size] = Counter()
        self._spread: defaultdict[Size, set[int]] = defaultdict(set)
        self._unsettled: set[int] = set()
        # Refs whose arrays are gone; filled by whichever thread drops an array.
        self._gone: deque[_Ref] = deque()

    def update(self) -> None:
        """Looks at what has changed."""
        try:
            with looking():
                self._update()
        except BaseException:  # an interrupt, mostly: what is half noted would stay wrong
            self.__init__()  # type: ignore[misc]
            raise

    def _update(self) -> None:
        # Taken first: what is in it cannot go away, so no id in it can be an old one's.
        live = jax.live_arrays()
        while self._gone:
            ref = self._gone.popleft()
            if self._refs.get(ref.key) is ref:
                self._forget(ref.key)
        shards: dict[Any, Shards] = {}
        for array in live:
            if id(array) in self._refs:
                break
            self._add(array, shards)
        if len(self._refs) != len(live):  # some were deleted, or the new ones are not first
            keys = {id(array) for array in live}
            for key in [key for key in self._refs if key not in keys]:
                self._forget(key)
            for array in live:
                if id(array) not in self._refs:
                    self._add(array, shards)
        for key in tuple(self._unsettled):
            self._settle(key)

    def bytes_by_device(self) -> dict[int, int]:
        """Returns device id to the bytes of live arrays on it."""
        return dict(self._totals)

    def counts_by_device(self) -> dict[int, int]:
        """Returns device id to the number of buffers of live arrays on it."""
        return dict(self._counts)

    def largest(self, device: int, count: int) -> list[tuple[int, list[Any]]]:
        """Returns the largest buffers on a device: bytes, and the arrays that share each.

        More than ``count`` where several are as large as the last, up to :data:`MOST_ALIKE`.
        """
        on_device = [(n, place) for place, n in self._bytes.items() if place[0] == device]
        top = heapq.nlargest(count, on_device)
        least = top[-1][0] if top else 0
        alike = [pair for pair in on_device if pair[0] == least]
        found = []
        for nbytes, place in [pair for pair in top if pair[0] > least] + alike[:MOST_ALIKE]:
            arrays = [self._refs[key]() for key in self._holders[place]]
            found.append((nbytes, [array for array in arrays if array is not None]))
        return [(nbytes, arrays) for nbytes, arrays in found if arrays]

    def _add(self, array: Any, shards: dict[Any, Shards]) -> None:
        key = id(array)
        ref = self._refs[key] = _Ref(array, self._gone.append)
        ref.key = key
        self._places[key] = ()
        try:
            _, devices, nbytes = _shards_of(array, shards)
            places = _place_of(array, devices) or tuple((device, -key) for device in devices)
        except Exception:  # it was deleted meanwhile
            return
        self._nbytes[key] = nbytes
        self._put(key, places)
        if len(devices) == 1:
            size = (devices[0], nbytes)
            self._singles[size] += 1
            if places[0][1] < 0:
                self._unsettled.add(key)
            if size in self._spread:
                self._unsettled |= self._spread[size]
        for size in [(device, nbytes) for device in devices] if len(devices) > 1 else ():
            self._spread[size].add(key)
            # Where an array's parts are, only arrays for each part tell. JAX would keep those as
            # long as the array, so they are not asked for unless somebody may have them already.
            if self._singles.get(size):
                self._unsettled.add(key)

    def _settle(self, key: int) -> None:
        """Finds the addresses of an array's buffers, once it has them."""
        array, old = self._refs[key](), self._places[key]
        is_settled = True
        try:
            if array is None:
                return
            shards = array.addressable_shards if len(old) > 1 else ()
            parts = [(s.device.id, s.data) for s in shards] or [(old[0][0], array)]
            # Part by part: one that was read is there while the others are still computed.
            ready = [data.is_ready() for _, data in parts]
            places = tuple(
                (device, data.unsafe_buffer_pointer() if is_there else -key)
                for (device, data), is_there in zip(parts, ready, strict=True)
            )
            is_settled = all(ready)
        except Exception:  # deleted meanwhile, or what computes it has failed: it has none
            places = old
        if is_settled:
            self._unsettled.discard(key)
            self._drop_spread(key)
        self._take_out(key)
        self._put(key, places)

    def _put(self, key: int, places: tuple[Place, ...]) -> None:
        self._places[key], nbytes = places, self._nbytes[key]
        for place in places:
            if place not in self._bytes:
                self._bytes[place] = nbytes
                self._totals[place[0]] += nbytes
                self._counts[place[0]] += 1
            self._holders[place] = (*self._holders.get(place, ()), key)

    def _take_out(self, key: int) -> None:
        for place in self._places[key]:
            left = tuple(each for each in self._holders[place] if each != key)
            if left:
                self._holders[place] = left
            else:
                del self._holders[place]
                self._totals[place[0]] -= self._bytes.pop(place)
                self._counts[place[0]] -= 1

    def _drop_spread(self, key: int) -> None:
        places, nbytes = self._places[key], self._nbytes[key]
        for size in [(device, nbytes) for device, _ in places] if len(places) > 1 else ():
            if size in self._spread:
                self._spread[size].discard(key)
                if not self._spread[size]:
                    del self._spread[size]

    def _forget(self, key: int) -> None:
        places = self._places[key]
        if places:
            self._drop_spread(key)
            if len(places) == 1:
                self._singles[places[0][0], self._nbytes[key]] -= 1
            self._take_out(key)
        self._unsettled.discard(key)
        del self._refs[key], self._places[key]
        self._nbytes.pop(key, None)


def _shards_of(array: Any, known: dict[Any, Shards]) -> Shards:
    sharding, shape, bits = array.sharding, array.shape, dtype_facts(array.dtype).itemsize_bits
    key = (id(sharding), shape, bits)
    if key not in known:
        devices = tuple(device.id for device in sharding.addressable_devices)
        # The sharding is kept, so that its id stays its own.
        known[key] = sharding, devices, -(-math.prod(sharding.shard_shape(shape)) * bits // 8)
    return known[key]


def _place_of(array: Any, devices: tuple[int, ...]) -> tuple[Place, ...]:
    """Returns where an array is, if it is on one device and computed."""
    if len(devices) != 1 or not array.is_ready():
        return ()
    return ((devices[0], array.unsafe_buffer_pointer()),)


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
