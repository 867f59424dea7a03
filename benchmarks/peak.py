"""Peak extra memory of a set of processes while something runs.

``python -m benchmarks.peak PID...`` samples until its standard input closes. It is a process of
its own, since a thread would be held up by the work that it watches.

Proportional set sizes are exact, but the kernel walks every page table for them: 50 ms for a
group at work. So they are read before and after, and in between what they are made of: the
processes' anonymous pages (theirs alone, but for what a fork shares, which is in the baseline)
and the machine's shared memory, mapped or not.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from benchmarks.processes import ROOT, pss_bytes

T = TypeVar("T")

INTERVAL_SECONDS = 0.002
SETTLE_SECONDS = 0.3
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
RESET_HIGH_WATER_MARK = "5"  # what /proc/PID/clear_refs takes for it, since Linux 4.0


@dataclass(frozen=True)
class Peak:
    """What the work needed on top of what was in use just before it.

    Attributes:
        peak_bytes: Highest sum of anonymous pages and shared memory, or ``left_pss_bytes`` if
            that is more. The machine's other users of shared memory are in it.
        left_bytes: The same sum at the end, with the work's result still there.
        left_pss_bytes: Sum of the proportional set sizes at the end.
        separate_bytes: Sum of every process's own highest resident size. No peak is too short
            for it, but it takes them as simultaneous and counts a shared page in each process.
        samples: Number of samples.
        longest_gap_seconds: Longest time between two samples.
    """

    peak_bytes: int
    left_bytes: int
    left_pss_bytes: int
    separate_bytes: int
    samples: int
    longest_gap_seconds: float


def available_bytes() -> int:
    """Memory that can be had without swapping."""
    available: int = psutil.virtual_memory().available
    return available


def peak_during(action: Callable[[], T], pids: list[int]) -> tuple[T, Peak]:
    """Run the action; return what it returns and the peak of the processes meanwhile."""
    command = [sys.executable, "-m", "benchmarks.peak", *map(str, pids)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as sampler:
        assert sampler.stdin is not None
        assert sampler.stdout is not None
        sampler.stdout.readline()  # It has its baseline.
        try:
            result = action()
        finally:
            sampler.stdin.close()
            report: dict[str, Any] = json.loads(sampler.stdout.read())
    return result, Peak(**report)


def _kilobytes(text: str, key: str) -> int:
    match = re.search(rf"^{key}:\s+(\d+) kB", text, re.MULTILINE)
    if match is None:
        raise RuntimeError(f"no {key} line")
    return int(match[1])


class _Sampler:
    """Files that stay open, so that a sample costs only its reads."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self._statm = [os.open(f"/proc/{pid}/statm", os.O_RDONLY) for pid in pids]
        self._meminfo = os.open("/proc/meminfo", os.O_RDONLY)

    def used(self) -> int:
        """Anonymous pages of the processes and shared memory of the machine."""
        pages = 0
        for fd in self._statm:
            with contextlib.suppress(ProcessLookupError):
                _, resident, shared, *_ = os.pread(fd, 256, 0).split()
                pages += int(resident) - int(shared)
        shmem = _kilobytes(os.pread(self._meminfo, 8192, 0).decode(), "Shmem")
        return pages * PAGE_BYTES + shmem * 1024

    def pss(self) -> int:
        """Sum of the proportional set sizes; a process that has ended counts nothing."""
        total = 0
        for pid in self._pids:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                total += pss_bytes(pid)
        return total

    def status(self, key: str) -> dict[int, int]:
        """Process to one of the sizes in its status file."""
        sizes = {}
        for pid in self._pids:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                sizes[pid] = _kilobytes(Path(f"/proc/{pid}/status").read_text(), key) * 1024
        return sizes

    def reset_high_water_marks(self) -> None:
        """Make every process's highest resident size its present one."""
        for pid in self._pids:
            Path(f"/proc/{pid}/clear_refs").write_text(RESET_HIGH_WATER_MARK)


def main() -> None:
    """Sample until standard input closes, then print the peak as JSON."""
    with contextlib.suppress(PermissionError):
        os.nice(-10)  # So that work on every core does not keep it from sampling.
    sampler = _Sampler([int(word) for word in sys.argv[1:]])
    time.sleep(SETTLE_SECONDS)  # What was freed just before is to be gone from the baseline.
    sampler.reset_high_water_marks()
    resident, pss = sampler.status("VmRSS"), sampler.pss()
    baseline = highest = sampler.used()
    samples, longest = 0, 0.0
    print("ready", flush=True)
    poll = select.poll()
    poll.register(sys.stdin, select.POLLIN | select.POLLHUP)
    last = time.perf_counter()
    while not poll.poll(INTERVAL_SECONDS * 1000):
        highest = max(highest, sampler.used())
        now = time.perf_counter()
        samples, longest, last = samples + 1, max(longest, now - last), now
    left, left_pss, after = sampler.used(), sampler.pss(), sampler.status("VmHWM")
    peak = Peak(
        peak_bytes=max(highest - baseline, left_pss - pss),
        left_bytes=left - baseline,
        left_pss_bytes=left_pss - pss,
        separate_bytes=sum(max(0, after[pid] - resident[pid]) for pid in after.keys() & resident),
        samples=samples,
        longest_gap_seconds=longest,
    )
    print(json.dumps(asdict(peak)))


if __name__ == "__main__":
    main()
