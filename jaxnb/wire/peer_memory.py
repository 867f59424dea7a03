"""Reading and writing the memory of a process on this host, without a copy in between.

Linux lets a process read and write the memory of another one of the same user
(``process_vm_readv(2)``), under the rules of debugging: with Yama's ``ptrace_scope`` 1 only of
its descendants, which the group's processes are. Nothing is shared and nothing is allocated
beside the two ends, so nothing stays behind when either is killed.

Measured on two cores for 256 MiB over 4 processes: 27 ms, as one copy within the notebook
takes 23 ms; through a memfd that all map it takes 165 ms, since its pages are small
(``shmem_enabled`` is ``never`` by default) and each has to be allocated and zeroed.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any

SWITCH = "JAXNB_DIRECT_MEMORY"
"""Environment variable; ``0`` sends all data through messages."""


class _IoVec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def _system_call(name: str) -> Callable[..., int] | None:
    if not sys.platform.startswith("linux"):
        return None
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is not None:
        vector = ctypes.POINTER(_IoVec)
        function.restype = ctypes.c_ssize_t
        function.argtypes = [
            ctypes.c_int, vector, ctypes.c_ulong, vector, ctypes.c_ulong, ctypes.c_ulong
        ]  # fmt: skip
    return function


_READ = _system_call("process_vm_readv")
_WRITE = _system_call("process_vm_writev")


def read(pid: int, address: int, target: Any) -> None:
    """Copies memory of another process into an array.

    Args:
        pid: The process.
        address: Where the bytes are in its memory.
        target: A C-contiguous NumPy array, filled whole.

    Raises:
        ValueError: The array is not contiguous, or not to be written to.
        OSError: The process is gone, or its memory is out of reach.
    """
    if not target.flags.writeable:  # the kernel would not ask
        raise ValueError("the array cannot be written to")
    assert _READ is not None
    _move(_READ, pid, address, target)


def write(pid: int, address: int, source: Any) -> None:
    """Copies a C-contiguous NumPy array into the memory of another process.

    Raises:
        ValueError: The array is not contiguous.
        OSError: The process is gone, or its memory is out of reach.
    """
    assert _WRITE is not None
    _move(_WRITE, pid, address, source)


def is_within_reach(pid: int, address: int, nonce: bytes) -> bool:
    """Whether this process can read the other's memory, and the pid means what it says.

    A process in another container, or on another host, has its pid from another table: here
    it may be nobody's, or somebody else's.
    """
    if _READ is None or _WRITE is None or os.environ.get(SWITCH) == "0":
        return False
    found = (ctypes.c_char * len(nonce))()
    try:
        _move_raw(_READ, pid, address, ctypes.addressof(found), len(nonce))
    except OSError:
        return False
    return found.raw == nonce


def _move(call: Callable[..., int], pid: int, address: int, array: Any) -> None:
    if not array.flags.c_contiguous:  # the bytes of something else lie in between
        raise ValueError("the array is not C-contiguous")
    _move_raw(call, pid, address, array.ctypes.data, array.nbytes)


def _move_raw(
    call: Callable[..., int], pid: int, address: int, own_address: int, nbytes: int
) -> None:
    moved = 0
    while moved < nbytes:  # the kernel moves at most 2 GiB at once
        here = _IoVec(own_address + moved, nbytes - moved)
        there = _IoVec(address + moved, nbytes - moved)
        count = call(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        if count <= 0:
            error = ctypes.get_errno() if count < 0 else 0
            raise OSError(error, f"the memory of process id {pid} cannot be reached: "
                                 f"{os.strerror(error)}")  # fmt: skip
        moved += count
