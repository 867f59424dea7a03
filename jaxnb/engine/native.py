"""Which C or C++ library a thread waits in, looked at from another thread.

Python's stack ends where C begins: a wait in a collective, in a lock and in a user's C code look
the same in it. Who has called the C library's function that waits tells them apart. Linux on
x86-64 only; elsewhere nothing is known.
"""

from __future__ import annotations

import bisect
import os
import platform
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from jaxnb.engine.unwinding import STACK_POINTER, Rules, UnknownFrameError, tables_of

STACK_BYTES = 4096
"""How much of the stack is looked at, from its innermost end: the C library takes less."""

MOST_FRAMES = 16
"""How many calls within the C library are gone through, at most."""

_C_LIBRARY = re.compile(r"(libc|libpthread|ld-linux[^/]*|libc-[^/]*)\.so")


@dataclass(frozen=True, slots=True)
class _Mapping:
    """A part of a library that is executed."""

    start: int
    end: int
    offset: int
    path: str


def library_waited_in(thread: int | None = None) -> str:
    """Returns the path of the library whose code a thread waits in; empty if unknown.

    The C library is left out: it waits for whoever calls it.

    Args:
        thread: The thread's number; the main thread's by default.
    """
    if platform.machine() != "x86_64":
        return ""
    try:
        pointer, address = _registers(thread or os.getpid())
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            memory.seek(pointer)
            stack = memory.read(STACK_BYTES)
        return _caller(_executable_mappings(), stack, address)
    # The system does not tell, the thread runs, or a function has a frame of an unknown form.
    except (OSError, ValueError, struct.error, UnknownFrameError):
        return ""


def _caller(mappings: list[_Mapping], stack: bytes, address: int) -> str:
    """Returns the path of the innermost library but the C library.

    Args:
        mappings: What is executed in this process, sorted.
        stack: The innermost part of the stack.
        address: The instruction that the thread has come to.
    """
    at = 0
    for depth in range(MOST_FRAMES):
        mapping = _mapping_of(mappings, address)
        if not _C_LIBRARY.match(os.path.basename(mapping.path)):
            return mapping.path
        # A return address is that of the next instruction, which may be another function's.
        rules = _rules(mapping, address - (depth > 0))
        at += rules.offset
        (address,) = struct.unpack_from("<Q", stack, at + rules.return_offset)
    return ""


def _rules(mapping: _Mapping, address: int) -> Rules:
    tables = tables_of(mapping.path)
    if tables is None:
        raise UnknownFrameError(f"{mapping.path} has no tables")
    rules = tables.rules_at(address - mapping.start + mapping.offset)
    if rules.register != STACK_POINTER:
        raise UnknownFrameError("the frame is found by a register that is not known")
    return rules


def _mapping_of(mappings: list[_Mapping], address: int) -> _Mapping:
    i = bisect.bisect_right(mappings, address, key=lambda each: each.start) - 1
    if i < 0 or address >= mappings[i].end:
        raise UnknownFrameError(f"no library is at {address:#x}")
    return mappings[i]


def _registers(thread: int) -> tuple[int, int]:
    """Returns a thread's stack pointer and the address that it has come to."""
    *_, pointer, address = Path(f"/proc/self/task/{thread}/syscall").read_text().split()
    return int(pointer, 16), int(address, 16)


def _executable_mappings() -> list[_Mapping]:
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(None, 5)
        if "x" in fields[1] and len(fields) == 6 and fields[5].startswith("/"):
            start, end = (int(each, 16) for each in fields[0].split("-"))
            found.append(_Mapping(start, end, int(fields[2], 16), fields[5]))
    return found
