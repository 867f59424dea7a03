"""Reading arrays of a process that is about to be replaced: not all of them come, or are whole."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jaxnb.arrays.process_layouts import shards_of, unreduced_axes
from jaxnb.compat.jax_arrays import device_arrays
from jaxnb.labels import processes_label
from jaxnb.recovery.meter import Meter, seconds_without_processor
from jaxnb.recovery.process_arrays import PartLostError
from jaxnb.recovery.process_spread import is_known

IDLE_SECONDS = 1.0
"""What is pending ends within this time, unless this process computes meanwhile."""

PENDING_SECONDS = 30.0
"""So long at most it is waited for what is computed."""

DEAD_SECONDS = 1.0
"""What a dead process took part in ends within this time, or never: a thread of gloo's may spin for
its peer, and looks as if it computed. So long, too, it is waited for what the user has given up."""

LOOK_SECONDS = 0.01
"""How often it is asked whether an array is there: JAX offers no event for that."""

BUSY_SHARE = 0.3
"""Of a processor: what waits, and what is asked meanwhile, uses less."""


@dataclass(slots=True)
class Reader:
    """Looks whether arrays can be read: a :data:`~jaxnb.recovery.process_arrays.Check`.

    Attributes:
        dead: The processes whose parts of arrays are gone.
        is_given_up: The user has given up on what is still computed.
    """

    dead: frozenset[int]
    is_given_up: bool = False
    _gave_up: bool = field(default=False, init=False)

    def __call__(self, array: Any) -> list[jax.Array] | None:
        """Waits for an array as long as that is of use.

        Returns:
            See :data:`~jaxnb.recovery.process_arrays.Check`.

        Raises:
            pickle.PicklingError: It does not come, its computation failed, or parts of it are lost.
        """
        reason = self._why_not_there(array)
        whole = _from_replicas(array) if reason else None
        if reason and whole is None:
            raise pickle.PicklingError(reason)
        if self.dead and _loses_shards(array, self.dead):
            indices = (each.index for each in array.addressable_shards)
            parts = map(np.asarray, whole or device_arrays(array))
            raise PartLostError(
                _gone_text(array, self.dead), tuple(zip(indices, parts, strict=True))
            )
        return whole

    def _why_not_there(self, array: Any) -> str:
        if not (array.is_ready() or self._comes(array)):
            return "its computation had not ended"
        try:
            array.block_until_ready()
        except Exception as error:  # the computation's
            return f"its computation {_said(error)}"
        return ""

    def _comes(self, array: Any) -> bool:
        """Waits for an array as long as something is computed; on a GPU nothing tells of that."""
        started = time.monotonic()
        meter = Meter(BUSY_SHARE, started, _wanted_seconds())
        devices = array.sharding.device_set
        is_seen = next(iter(devices)).platform == "cpu"
        with_dead = any(device.process_index in self.dead for device in devices)
        most_seconds = DEAD_SECONDS if with_dead or self.is_given_up else PENDING_SECONDS
        while not array.is_ready():
            now = time.monotonic()
            is_idle = is_seen and meter.idle_seconds(now, _wanted_seconds()) > IDLE_SECONDS
            if self._gave_up or is_idle or now - started > most_seconds:
                self._gave_up = True
                return False
            time.sleep(LOOK_SECONDS)
        return True


def _wanted_seconds() -> float:
    """Returns how long this process has computed, or XLA's threads were ready to.

    Those of Python do not count for that: who looks and answers meanwhile waits for processors too.
    """
    of_python = [each.native_id for each in threading.enumerate() if each.native_id]
    return time.process_time() + seconds_without_processor(os.getpid(), but=of_python)


def _from_replicas(array: Any) -> list[jax.Array] | None:
    """Returns what each device would have, if devices on which a computation ended have replicas.

    It ends on each device by itself: where a process has died, it may have ended on some.

    Returns:
        Arrays of one device, in the order of the devices; None if a part is on no device.
    """
    if unreduced_axes(array.sharding):  # equal places, and a summand each
        return None
    parts = device_arrays(array)
    places = array.sharding.addressable_devices_indices_map(tuple(array.shape))
    boxes = [str(places[device]) for part in parts for device in part.sharding.device_set]
    there = {box: part for box, part in zip(boxes, parts, strict=True) if _is_there(part)}
    return [there[box] for box in boxes] if there.keys() >= {*boxes} else None


def _is_there(part: Any) -> bool:
    try:
        return bool(part.is_ready()) and part.block_until_ready() is part
    except Exception:  # the computation's
        return False


_TRACEBACK = "Traceback (most recent call last):"


def _said(error: Exception) -> str:
    """Returns what has become of a computation: what XLA says, said once."""
    lines = str(error).strip().splitlines() or [""]
    text = lines[0]
    if text.endswith(_TRACEBACK):  # of a callback
        text = text.removesuffix(_TRACEBACK) + lines[-1]
    if "onnection" in text:  # of gloo, with another address on each process
        return "was broken off"
    parts = text.split(": ")
    said = ": ".join(part for i, part in enumerate(parts) if part not in parts[:i])
    return f"failed: {said}"


def _loses_shards(array: jax.Array, dead: frozenset[int]) -> bool:
    """Whether dead processes had shards of an array that nobody else has."""
    sharding: Any = array.sharding
    if not is_known(sharding) or sharding.is_fully_addressable:
        return False
    found = shards_of(sharding, tuple(array.shape))
    gone = [shard for shard in found if shard.process_index in dead]
    if unreduced_axes(sharding):  # each device has a summand of its own
        return bool(gone)
    held = {shard.index for shard in found if shard.process_index not in dead}
    return any(each.index not in held and all(b > a for a, b in each.index) for each in gone)


def _gone_text(array: jax.Array, dead: Collection[int]) -> str:
    shards = shards_of(array.sharding, tuple(array.shape))
    gone = {shard.process_index for shard in shards} & set(dead)
    have = "has" if len(gone) == 1 else "have"
    return f"{processes_label(gone)} {have} died, and nobody else had a replica of the shards there"
