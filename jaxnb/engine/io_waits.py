"""Which input or output a thread of this process waits in, as the system tells.

Python's stack says which line it is; the system call that the thread is in, and what its file
descriptor stands for, say that it reads a FIFO, or waits for a child process. Linux only, and of
the processors x86-64 and 64-bit ARM; elsewhere nothing is known.
"""

from __future__ import annotations

import os
import platform
import re
import struct
from pathlib import Path

from jaxnb.engine.native import library_waited_in
from jaxnb.model import is_jax_library

MOST_CHARS = 120
"""Of a longer path the end is told."""

_LARGEST_PATH = 4096

# Numbers of the system calls, by architecture.
_CALLS = {
    "x86_64": {
        "reading": (0, 17, 19, 45, 47, 295, 299, 327),
        "writing": (1, 18, 20, 40, 44, 46, 74, 75, 275, 296, 307, 328),
        "opening": (2, 257),
        "polling": (7, 271),
        "selecting": (23, 270),
        "epolling": (232, 281, 441),
        "accepting": (43, 288),
        "connecting": (42,),
        "child": (61, 247),
        "locking": (73,),
        "controlling": (72,),
    },
    "aarch64": {
        "reading": (63, 65, 67, 69, 207, 212, 243, 286),
        "writing": (64, 66, 68, 70, 71, 76, 82, 83, 206, 211, 269, 287),
        "opening": (56,),
        "polling": (73,),
        "selecting": (72,),
        "epolling": (22, 441),
        "accepting": (202, 242),
        "connecting": (203,),
        "child": (95, 260),
        "locking": (32,),
        "controlling": (25,),
    },
}

_KINDS = {
    machine: {number: kind for kind, numbers in calls.items() for number in numbers}
    for machine, calls in _CALLS.items()
}

_OPENAT = {"x86_64": 257, "aarch64": 56}
_WAITID = {"x86_64": 247, "aarch64": 95}

_F_SETLKW, _F_OFD_SETLKW = 7, 38

_P_PID = 1


def io_waited_in(thread: int | None = None) -> str:
    """Returns what input or output a thread waits in: ``"reading /tmp/fifo"``; empty if none.

    That is a wait for a file, a FIFO, a pipe, a socket, a lock on a file or a child process; not
    for what JAX itself reads and writes. What a thread waits in for a moment only looks the same.

    Args:
        thread: The thread's number; the main thread's by default.
    """
    machine = platform.machine()
    thread = thread or os.getpid()
    try:
        fields = Path(f"/proc/self/task/{thread}/syscall").read_text().split()
        number, arguments = int(fields[0]), [int(each, 16) for each in fields[1:7]]
        kind = _KINDS.get(machine, {}).get(number, "")
        said = _describe(kind, number, arguments, machine) if kind else ""
    except (OSError, ValueError, IndexError, struct.error):  # it runs, or the system does not tell
        return ""
    return "" if said and is_jax_library(library_waited_in(thread)) else said


def _describe(kind: str, number: int, arguments: list[int], machine: str) -> str:
    match kind:
        case "reading" | "writing":
            return f"{kind} {_target(arguments[0])}"
        case "opening":
            return f"opening {_path(arguments[number == _OPENAT[machine]])}"
        case "polling":
            return _polled(*arguments[:2])
        case "selecting":  # of nothing it is a way to sleep
            return "waiting for files, pipes or sockets" if arguments[0] else ""
        case "epolling":
            return "waiting for files, pipes or sockets"
        case "accepting":
            return "waiting for a connection to a socket"
        case "connecting":
            return "connecting a socket"
        case "child":
            return _child(number == _WAITID[machine], *arguments[:2])
        case "locking":
            return f"waiting for a lock on {_target(arguments[0])}"
        case _:  # of fcntl's, what waits
            is_lock = arguments[1] in (_F_SETLKW, _F_OFD_SETLKW)
            return f"waiting for a lock on {_target(arguments[0])}" if is_lock else ""


def _target(descriptor: int) -> str:
    """Returns what a file descriptor stands for: its path, or ``"a pipe"``."""
    try:
        name = os.readlink(f"/proc/self/fd/{_signed(descriptor)}")
    except OSError:
        return "a file"
    kind = re.match(r"(pipe|socket|anon_inode):", name)
    if kind is None:
        return _shortened(name)
    return {"pipe": "a pipe", "socket": "a socket"}.get(kind[1], "an event")


def _path(address: int) -> str:
    """Returns the path at an address; the thread that has put it there waits."""
    try:
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            # Up to the end of its page: the next one may not be mapped.
            size = min(_LARGEST_PATH, -address % os.sysconf("SC_PAGE_SIZE") or _LARGEST_PATH)
            memory.seek(address)
            path, end, _ = memory.read(size).partition(b"\0")
    except (OSError, OverflowError):
        return "a file"
    return _shortened(os.fsdecode(path)) if end and path else "a file"


def _polled(address: int, count: int) -> str:
    """Returns what ``poll`` waits for; empty if for nothing but time."""
    if not count:
        return ""
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        (first,) = struct.unpack("<i", memory.read(4))
    more = f" and {count - 1} more" if count > 1 else ""
    return f"waiting for {_target(first)}{more}"


def _child(is_waitid: bool, first: int, second: int) -> str:
    """Returns for which child process one waits, if for a certain one."""
    named = second if is_waitid and first == _P_PID else 0
    pid = named if is_waitid else _signed(first)
    if pid <= 0:
        return "waiting for a child process"
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return f"waiting for child process {pid}"
    return f"waiting for child process {pid} ({name})"


def _signed(value: int) -> int:
    """Returns an ``int`` of C's, of which the system shows the register."""
    low = value & 0xFFFFFFFF
    return low - (1 << 32) if low >> 31 else low


def _shortened(path: str) -> str:
    return path if len(path) <= MOST_CHARS else f"…{path[-MOST_CHARS:]}"
