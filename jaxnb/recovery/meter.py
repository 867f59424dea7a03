"""Whether something computes, or would if it had a processor, as the system counts its time."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path


def seconds_without_processor(
    pid: int, threads: Collection[int] | None = None, *, but: Collection[int] = ()
) -> float:
    """Returns for how long threads were ready to run while others had the processors.

    On a busy machine who waits for a processor looks like who waits for ever, but for that.

    Args:
        pid: The process.
        threads: Those of its threads, as the system numbers them; all by default.
        but: Those that do not count.

    Returns:
        The sum over the threads; 0 where the system does not tell.
    """
    found, tasks = 0, Path(f"/proc/{pid}/task")
    with contextlib.suppress(OSError, ValueError, IndexError):
        counted = {int(each.name) for each in tasks.iterdir()} if threads is None else {*threads}
        for thread in counted.difference(but):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                found += int((tasks / str(thread) / "schedstat").read_text().split()[1])
    return found / 1e9


class Meter:
    """Tells for how long something has used less than a share of a processor.

    Args:
        share: Who computes uses more; what waits, and is looked at meanwhile, uses less.
        now: The time.
        cpu_seconds: The processor time that it has used so far.
    """

    def __init__(self, share: float, now: float, cpu_seconds: float) -> None:
        self._share = share
        self.note(now, cpu_seconds)

    def note(self, now: float, cpu_seconds: float) -> None:
        """Takes it for at work now, whatever it has used."""
        self._at, self._cpu_seconds = now, cpu_seconds

    def idle_seconds(self, now: float, cpu_seconds: float) -> float:
        """Returns for how long it has not computed; to be asked often.

        Args:
            now: The time.
            cpu_seconds: The processor time that it has used so far.
        """
        if cpu_seconds - self._cpu_seconds > self._share * (now - self._at):
            self.note(now, cpu_seconds)
        return now - self._at
