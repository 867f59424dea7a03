"""Packs this process's variables whatever its main thread does, for the process that replaces it.

The main thread may compute, or wait in C++ for ever. So a thread of its own packs, and the
sentinel's thread tells the notebook how far it is.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxnb.arrays.process_describe import shards_of, unreduced_axes
from jaxnb.compat.jax_arrays import device_arrays
from jaxnb.labels import processes_label
from jaxnb.lockstep.process_ask_conductor import Lockstep
from jaxnb.recovery import files, hooks, messages, process_variables
from jaxnb.recovery.fit_to_size import MisfitError, require_all_fit
from jaxnb.recovery.process_arrays import PartLostError, is_known
from jaxnb.recovery.process_pickling import PackedState, Steps, pack
from jaxnb.wire.process_sentinel import ThisProcess

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
        skips_unfinished: What is still computed is waited for only briefly, then left out.
    """

    dead: frozenset[int]
    skips_unfinished: bool = False
    _gave_up: bool = field(default=False, init=False)

    def __call__(self, array: Any) -> list[jax.Array] | None:
        """Waits for an array as long as that is of use.

        Returns:
            See :data:`~jaxnb.recovery.process_arrays.Check`.

        Raises:
            pickle.PicklingError: It does not come, its computation failed, or parts of it are lost.
        """
        reason = ""
        try:
            if array.is_ready() or self._comes(array):
                array.block_until_ready()
            else:
                reason = "its computation had not ended"
        except Exception as error:  # the computation's
            reason = f"its computation {_said(error)}"
        whole = _from_replicas(array) if reason else None
        if reason and whole is None:
            raise pickle.PicklingError(reason)
        if self.dead and (lost := _why_lost(array, self.dead)):
            indices = (each.index for each in array.addressable_shards)
            parts = map(np.asarray, whole or device_arrays(array))
            raise PartLostError(lost, tuple(zip(indices, parts, strict=True)))
        return whole

    def _comes(self, array: Any) -> bool:
        """Waits for an array as long as something is computed; on a GPU nothing tells of that."""
        started = time.monotonic()
        meter = messages.Meter(BUSY_SHARE, started, _wanted_seconds())
        devices = array.sharding.device_set
        is_seen = next(iter(devices)).platform == "cpu"
        with_dead = any(device.process_index in self.dead for device in devices)
        most_seconds = DEAD_SECONDS if with_dead or self.skips_unfinished else PENDING_SECONDS
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
    return time.process_time() + messages.seconds_without_processor(os.getpid(), but=of_python)


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


def _why_lost(array: jax.Array, dead: frozenset[int]) -> str:
    """Returns who has died that had shards of an array nobody else has; empty if nobody has."""
    sharding: Any = array.sharding
    if not is_known(sharding) or sharding.is_fully_addressable:
        return ""
    found = shards_of(sharding, tuple(array.shape))
    gone = [shard for shard in found if shard.process_index in dead]
    held = {shard.index for shard in found if shard.process_index not in dead}
    if unreduced_axes(sharding):  # each device has a summand of its own
        held.clear()
    if all(each.index in held or any(b <= a for a, b in each.index) for each in gone):
        return ""
    who = {shard.process_index for shard in gone}
    have = "has" if len(who) == 1 else "have"
    return f"{processes_label(who)} {have} died, and nobody else had a replica of the shards there"


COMPUTES = 0.1
"""Of a processor: who packs uses more, and who waits less."""

STUCK_SECONDS = 1.5
"""Code of the user's that computes nothing for so long while it is packed waits for something."""

SPIN_SECONDS = 20.0
"""So long at most one object may take to say how it is pickled, if it computes all the while."""


class _Packing:
    """Packs once; what waits for ever is left out, and the rest packed in another thread.

    Args:
        shell: The kernel's.
        attempt: See :func:`packed`.
    """

    def __init__(self, shell: Any, attempt: dict[str, Any]) -> None:
        self.attempt, self._shell = attempt, shell
        self._values: process_variables.Values | None = None
        self._packed: PackedState | None = None
        self._written: messages.StateFile | None = None
        self._is_writing = False
        self._failed = ""
        self._begin(Steps())

    def told(self) -> messages.Measured | messages.Refused | None:
        """Returns what was packed; None as long as it packs."""
        if self._failed:
            return messages.Refused(self._failed)
        if self._packed is None or self._values is None:
            self._leave_out_what_waits()
            return None
        lost = process_variables.own_losses(self._packed.lost)
        lost += process_variables.not_carried(self._shell)
        return messages.Measured(self._values.texts, self._packed.nbytes, lost)

    def written(self, path: Path) -> messages.StateFile | messages.Refused | None:
        """Begins to write, at the first call; tells of the file once it is there."""
        if not self._is_writing:
            self._is_writing = True
            self._in_thread(lambda: self._write(self._packed, path), self._steps)
        return messages.Refused(self._failed) if self._failed else self._written

    def _begin(self, steps: Steps) -> None:
        self._steps, self._count, self._counted_at = steps, -1, time.monotonic()
        self._meter = messages.Meter(COMPUTES, self._counted_at, 0.0)
        self._thread = self._in_thread(lambda: self._pack(steps), steps)

    def _in_thread(self, what: Callable[[], None], steps: Steps) -> threading.Thread:
        def run() -> None:
            try:
                what()
            except BaseException as error:  # no memory, say: the notebook is told
                if steps is self._steps:  # else another thread has taken its place
                    self._failed = f"{type(error).__name__}: {error}"

        thread = threading.Thread(target=run, name="jaxnb-packer", daemon=True)
        thread.start()
        return thread

    def _pack(self, steps: Steps) -> None:
        if self._values is None:
            self._values = process_variables.to_carry(self._shell)
        reader = Reader(frozenset(self.attempt["dead"]), self.attempt["skips_unfinished"])
        packed = pack(self._values.values, reader, steps)
        if steps is self._steps:
            self._packed = packed

    def _write(self, packed: Any, path: Path) -> None:
        self._written = packed.write(path)

    def _leave_out_what_waits(self) -> None:
        steps, values, now = self._steps, self._values, time.monotonic()
        asked, name = steps.asked, steps.name  # the thread goes on meanwhile
        cpu_seconds = _wanted_seconds_of(self._thread)
        if steps.count != self._count or steps.reads:
            self._count, self._counted_at = steps.count, now
            self._meter.note(now, cpu_seconds)
        if _asks(self._thread):  # of the others some may pack more slowly
            self._meter.note(now, cpu_seconds)
        if self._meter.idle_seconds(now, cpu_seconds) > STUCK_SECONDS:
            reason = "pickling it does not end: its own code is waiting"
        elif now - self._counted_at > SPIN_SECONDS:
            reason = "to pickle it takes too long"
        else:
            return
        if values is not None and name in values.values:
            value = asked if asked is not None else values.values[name]
            self._begin(Steps(gone=[*steps.gone, (value, name, reason)]))


def _asks(thread: threading.Thread) -> bool:
    """Whether a thread waits for other processes to agree on what it is about to dispatch."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_code is not Lockstep.agree.__code__:
        frame = frame.f_back
    return frame is not None


def _wanted_seconds_of(thread: threading.Thread) -> float:
    """Returns how long a thread has computed, or was ready to; it may have ended."""
    assert thread.ident is not None  # it was started
    assert thread.native_id is not None
    waited = messages.seconds_without_processor(os.getpid(), [thread.native_id])
    with contextlib.suppress(OSError):
        return waited + time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    return waited


_packing: _Packing | None = None


def packed(process: ThisProcess, **attempt: Any) -> messages.Measured | messages.Refused | None:
    """Begins to pack, at the first call of an attempt; tells how far it has come.

    Args:
        process: This process.
        attempt: ``name`` tells it from others; of the processes in ``dead`` the parts of arrays
            are gone; with ``skips_unfinished`` what is still computed is waited for only briefly.

    Returns:
        None as long as it packs.
    """
    global _packing
    if _packing is None or _packing.attempt != attempt:
        _packing = _Packing(process.shell, attempt)
    return _packing.told()


def written(process: ThisProcess, *, folder: str) -> messages.StateFile | messages.Refused | None:
    """Begins to write what was packed to a file; tells of it once it is there.

    Args:
        process: This process.
        folder: The directory on its host.
    """
    assert _packing is not None
    return _packing.written(Path(folder) / files.name_of(process.index))


def drop(process: ThisProcess) -> None:
    """Drops what was packed."""
    global _packing
    _packing = None


def misfit(process: ThisProcess, *, path: str, size: Sequence[int]) -> str:
    """Returns which array of this process's file a group of another size cannot lay out, and why.

    Args:
        process: This process.
        path: The file.
        size: The processes of that group, and the devices of each.
    """
    num_processes, devices_per_process = size
    try:
        require_all_fit(files.arrays_in(Path(path)), (num_processes, devices_per_process))
    except MisfitError as error:
        return str(error)
    return ""


def call_hooks(process: ThisProcess) -> messages.CalledHooks:
    """Calls what :func:`jaxnb.on_recover` was given, in the order in which it was given.

    A function that raises does not keep the others from being called. What they print comes back:
    no cell runs that would show it.
    """
    raised, printed = [], io.StringIO()
    namespace = vars(sys.modules["__main__"])
    before = dict(namespace)
    for function in hooks.functions():
        try:
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                function()
        except (Exception, SystemExit) as error:  # a user's function may raise anything
            name = getattr(function, "__qualname__", repr(function))
            raised.append(f"`{name}` raised {type(error).__name__}: {error}")
    bound = frozenset(n for n, v in namespace.items() if n not in before or before[n] is not v)
    return messages.CalledHooks(tuple(raised), printed.getvalue(), bound)
