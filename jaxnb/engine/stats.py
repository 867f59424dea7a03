"""Memory of this process and of its devices."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import jax
import psutil

from jaxnb.engine.bootstrap import device_info
from jaxnb.model import DeviceStats


def device_stats() -> list[DeviceStats]:
    """Returns one row per addressable device of this process.

    ``memory_stats()`` where the backend has it. XLA's CPU backend has none: there the bytes of
    the live arrays' shards are added up, each device buffer once, however many arrays share
    it.
    """
    live = _live_bytes()
    rss = psutil.Process().memory_info().rss
    pss = _pss_bytes()
    rows = []
    for device in jax.local_devices():
        stats = device.memory_stats()
        count, nbytes = live.get(device.id, (0, 0))
        rows.append(
            DeviceStats(
                device=device_info(device),
                host=socket.gethostname(),
                pid=os.getpid(),
                bytes_in_use=stats["bytes_in_use"] if stats else nbytes,
                peak_bytes=stats.get("peak_bytes_in_use") if stats else None,
                limit_bytes=stats.get("bytes_limit") if stats else None,
                source="memory_stats" if stats else "live_arrays",
                live_arrays=count,
                process_rss_bytes=rss,
                process_pss_bytes=pss,
            )
        )
    return rows


def _live_bytes() -> dict[int, tuple[int, int]]:
    """Device id to (number of live arrays, bytes of their distinct buffers) on it."""
    # Touching `shard.data` makes a new array for each shard, and jax.live_arrays() counts
    # those too from then on; they share the buffer, so buffers are counted, by address.
    seen: set[tuple[int, int]] = set()
    result: dict[int, tuple[int, int]] = {}
    for array in jax.live_arrays():
        if array.is_deleted():
            continue
        for shard in array.addressable_shards:
            data = shard.data
            if data is None or data.is_deleted():
                continue
            key = (shard.device.id, data.unsafe_buffer_pointer())
            if key in seen:
                continue
            seen.add(key)
            count, nbytes = result.get(shard.device.id, (0, 0))
            result[shard.device.id] = (count + 1, nbytes + data.nbytes)
    return result


def _pss_bytes() -> int | None:
    try:
        text = Path("/proc/self/smaps_rollup").read_text()
    except OSError:
        return None
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else None
