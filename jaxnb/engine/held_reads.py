"""Reads ``/proc`` without letting go of the interpreter's lock.

Python lets go of its lock around each call of the operating system, and a thread beside one that
computes in Python gets it back 5 ms later: to look at 40 threads took the sentinel a second.
With the lock held it takes a millisecond.

For files that answer at once: whatever a call waits for here, all of Python waits for.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

_BYTES = 1 << 16
_ENTRY = struct.Struct("=QqHB")
"""What getdents64 puts before each name: inode, offset, bytes of the entry, type."""


@cache
def _library() -> ctypes.PyDLL:
    library = ctypes.PyDLL(None)  # unlike those of CDLL, its functions keep the lock
    for call in (library.read, library.getdents64):
        call.restype = ctypes.c_ssize_t
        call.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
    return library


@contextmanager
def _opened(path: str, flags: int = 0) -> Iterator[int]:
    descriptor = _library().open(os.fsencode(path), os.O_RDONLY | os.O_CLOEXEC | flags)
    if descriptor < 0:
        raise FileNotFoundError(path)
    try:
        yield descriptor
    finally:
        _library().close(descriptor)


def text(path: str) -> str:
    """Returns the first 64 KiB of a file.

    Raises:
        OSError: It cannot be read.
    """
    buffer = ctypes.create_string_buffer(_BYTES)
    with _opened(path) as descriptor:
        size = _library().read(descriptor, buffer, _BYTES)
    if size < 0:  # of a thread, say, that has ended since it was opened
        raise ProcessLookupError(path)
    return buffer.raw[:size].decode(errors="replace")


def names(path: str) -> list[str]:
    """Returns the names in a folder.

    Raises:
        OSError: It cannot be read.
    """
    buffer = ctypes.create_string_buffer(_BYTES)
    found = []
    with _opened(path, os.O_DIRECTORY) as descriptor:
        while (size := _library().getdents64(descriptor, buffer, _BYTES)) > 0:
            entries = buffer.raw[:size]
            at = 0
            while at < size:
                length = _ENTRY.unpack_from(entries, at)[2]
                name = entries[at + _ENTRY.size : at + length].split(b"\0", 1)[0]
                found.append(os.fsdecode(name))
                at += length
    if size < 0:
        raise NotADirectoryError(path)
    return found
