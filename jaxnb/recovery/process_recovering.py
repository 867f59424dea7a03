"""Packs this process's variables whatever its main thread does, for the process that replaces it.

The main thread may compute, or wait in C++ for ever. So a thread of its own packs, and the
sentinel's thread tells the notebook how far it is.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxnb.lockstep.process_ask_conductor import Lockstep
from jaxnb.recovery import files, process_variables
from jaxnb.recovery.messages import Attempt, Measured, Refused, StateFile
from jaxnb.recovery.meter import Meter, seconds_without_processor
from jaxnb.recovery.process_listing import Listing
from jaxnb.recovery.process_pickling import PackedState, Steps, pack
from jaxnb.recovery.process_reading import Reader
from jaxnb.wire.process_sentinel import ThisProcess

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
        attempt: This attempt.
    """

    def __init__(self, shell: Any, attempt: Attempt) -> None:
        self.attempt, self._shell = attempt, shell
        self._values: process_variables.Values | None = None
        self._packed: PackedState | None = None
        self._written: StateFile | None = None
        self._is_writing = False
        self._failed = ""
        self._begin(Steps())

    def told(self) -> Measured | Refused | None:
        """Returns what was packed; None as long as it packs."""
        if self._failed:
            return Refused(self._failed)
        if self._packed is None or self._values is None:
            self._leave_out_what_waits()
            return None
        lost = process_variables.own_losses(self._packed.lost)
        lost += process_variables.not_carried(self._shell)
        return Measured(self._values.texts, self._packed.nbytes, lost)

    def written(self, path: Path) -> StateFile | Refused | None:
        """Begins to write, at the first call; tells of the file once it is there."""
        if not self._is_writing:
            self._is_writing = True
            self._in_thread(lambda: self._write(path), self._steps)
        return Refused(self._failed) if self._failed else self._written

    def _begin(self, steps: Steps) -> None:
        self._steps = steps
        self._pace = _Pace(time.monotonic())
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
        listing = Listing() if self.attempt.is_resized else None
        reader = Reader(frozenset(self.attempt.dead), self.attempt.is_given_up)
        packed = pack(self._values.values, reader, steps, listing=listing)
        if steps is self._steps:
            self._packed = packed

    def _write(self, path: Path) -> None:
        assert self._packed is not None
        packed = self._packed
        digest = files.write(path, packed.names, packed.pickle, packed.buffers, packed.arrays)
        self._written = StateFile(path.name, path.stat().st_size, digest)

    def _leave_out_what_waits(self) -> None:
        steps, values = self._steps, self._values
        asked, name = steps.asked, steps.name  # the thread goes on meanwhile
        assert self._thread.native_id is not None  # it was started
        waited = seconds_without_processor(os.getpid(), [self._thread.native_id])
        cpu_seconds = _cpu_seconds(self._thread) + waited
        reason = self._pace.standstill(
            time.monotonic(), steps.count, cpu_seconds, reads=steps.reads, asks=_asks(self._thread)
        )
        if reason and values is not None and name in values.values:
            value = asked if asked is not None else values.values[name]
            self._begin(Steps(gone=[*steps.gone, (value, name, reason)]))


class _Pace:
    """Tells whether a packing still comes forward."""

    def __init__(self, now: float) -> None:
        self._count, self._counted_at = -1, now
        self._meter = Meter(COMPUTES, now, 0.0)

    def standstill(
        self, now: float, count: int, cpu_seconds: float, *, reads: bool, asks: bool
    ) -> str:
        """Returns why it does not any more; empty if it does.

        Args:
            now: The time.
            count: How many objects have been packed.
            cpu_seconds: What the thread that packs has computed.
            reads: Whether it reads an array.
            asks: Whether what it packs computes over several processes, of which others may pack
                more slowly.
        """
        if count != self._count or reads:
            self._count, self._counted_at = count, now
            self._meter.note(now, cpu_seconds)
        if asks:
            self._meter.note(now, cpu_seconds)
        if self._meter.idle_seconds(now, cpu_seconds) > STUCK_SECONDS:
            return "pickling it does not end: its own code is waiting"
        if now - self._counted_at > SPIN_SECONDS:
            return "to pickle it takes too long"
        return ""


def _asks(thread: threading.Thread) -> bool:
    """Whether a thread waits for other processes to agree on what it is about to dispatch."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_code is not Lockstep.agree.__code__:
        frame = frame.f_back
    return frame is not None


def _cpu_seconds(thread: threading.Thread) -> float:
    """Returns what a thread has computed; it may have ended."""
    try:
        assert thread.ident is not None
        return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    except OSError:
        return 0.0


_packing: _Packing | None = None


def packed(process: ThisProcess, **attempt: Any) -> Measured | Refused | None:
    """Begins to pack, at the first call of an attempt; tells how far it has come.

    Args:
        process: This process.
        attempt: The fields of the :class:`Attempt`.

    Returns:
        None as long as it packs.
    """
    global _packing
    asked = Attempt(**attempt)
    if _packing is None or _packing.attempt != asked:
        _packing = _Packing(process.shell, asked)
    return _packing.told()


def written(process: ThisProcess, *, folder: str) -> StateFile | Refused | None:
    """Begins to write what was packed to a file in a directory; tells of it once it is there."""
    assert _packing is not None
    return _packing.written(Path(folder) / files.name_of(process.index))


def drop(process: ThisProcess) -> None:
    """Drops what was packed."""
    global _packing
    _packing = None
