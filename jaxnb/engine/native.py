"""Which C or C++ library the main thread waits in, looked at from another thread.

Python's stack ends where C begins: a wait in a collective, in a lock and in a user's C code look
the same in it. The innermost return address on the thread's native stack that is not of the C
library tells them apart. Linux only; elsewhere nothing is known.
"""

from __future__ import annotations

import bisect
import os
import re
import struct
from pathlib import Path

STACK_BYTES = 4096
"""How much of the stack is looked at, from its innermost end."""

_C_LIBRARY = re.compile(r"(libc|libpthread|ld-linux[^/]*|ld-musl[^/]*|libc-[^/]*)\.so")


def library_waited_in() -> str:
    """Returns the path of the library whose code the main thread waits in; empty if unknown.

    The C library is left out: it waits for whoever calls it.
    """
    try:
        pointer = _stack_pointer()
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            memory.seek(pointer)
            stack = memory.read(STACK_BYTES)
        starts, ends, paths = _executable_mappings()
    except (OSError, ValueError):  # the system does not tell; or it runs
        return ""
    for (word,) in struct.iter_unpack("@P", stack[: len(stack) // 8 * 8]):
        i = bisect.bisect_right(starts, word) - 1
        if i >= 0 and word < ends[i] and not _C_LIBRARY.match(os.path.basename(paths[i])):
            return paths[i]
    return ""


def _stack_pointer() -> int:
    *_, pointer, _ = Path(f"/proc/self/task/{os.getpid()}/syscall").read_text().split()
    return int(pointer, 16)


def _executable_mappings() -> tuple[list[int], list[int], list[str]]:
    starts, ends, paths = [], [], []
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(None, 5)
        if "x" in fields[1] and len(fields) == 6 and fields[5].startswith("/"):
            start, end = fields[0].split("-")
            starts.append(int(start, 16))
            ends.append(int(end, 16))
            paths.append(fields[5])
    return starts, ends, paths
