"""One file with the packed variables of one process: a header, pickles, and buffers beside them.

Buffers begin where a cache line does, so that JAX's CPU backend takes them as they are.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

from jaxnb.launch.lifeline import for_this_user
from jaxnb.recovery.fit_to_size import SavedArray

_MAGIC = b"jaxnb variables 2\n"
_ALIGNMENT = 64
_PREFIX = "process-"


class Contents(NamedTuple):
    """What is in a file.

    Attributes:
        names: The names of the pickles, and their sizes.
        pickle: The pickles, one after the other.
        buffers: What was left out of them: private to this process, and may be written to.
        arrays: The arrays over several processes in it, if they were listed.
    """

    names: dict[str, int]
    pickle: memoryview
    buffers: Sequence[memoryview]
    arrays: tuple[SavedArray, ...]


class _Copies(Sequence[memoryview]):
    """Buffers of a file, each read into memory of its own when it is asked for.

    Args:
        descriptor: The file's, which is closed with this.
        places: Where each buffer begins, and its size.
    """

    def __init__(self, descriptor: int, places: Sequence[tuple[int, int]]) -> None:
        self._descriptor, self._places = descriptor, places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: Any) -> Any:
        return _copy(self._descriptor, *self._places[number])

    def __del__(self) -> None:
        os.close(self._descriptor)


def _copy(descriptor: int, at: int, size: int) -> memoryview:
    room = np.empty(size + _ALIGNMENT, np.uint8)
    begin = -room.ctypes.data % _ALIGNMENT
    left = found = memoryview(room)[begin : begin + size]
    while left.nbytes:
        done = os.preadv(descriptor, [left], at + size - left.nbytes)
        if not done:
            raise EOFError("its file has been cut short meanwhile")
        left = left[done:]
    return found


def name_of(process_index: int) -> str:
    """Returns the name of a process's file in its directory."""
    return f"{_PREFIX}{process_index:05}"


def is_name(name: str) -> bool:
    """Whether a file is named as one of a process is."""
    return name.startswith(_PREFIX) and name.removeprefix(_PREFIX).isdigit()


def write(
    path: Path,
    names: Mapping[str, int],
    pickled: bytes,
    buffers: Iterable[Any],
    arrays: Iterable[SavedArray] = (),
) -> str:
    """Writes a file, readable by this user only, and waits until it is on the disk.

    Args:
        path: It must not be there.
        names: The names of the pickles, with their sizes.
        pickled: The pickles, one after the other.
        buffers: What was left out of them.
        arrays: The arrays over several processes in it.

    Returns:
        The digest of its bytes.

    Raises:
        OSError: There is no room, say. What was written is left.
    """
    parts = [memoryview(pickled), *(memoryview(each).cast("B") for each in buffers)]
    sizes, listed = [part.nbytes for part in parts], [each.plain for each in arrays]
    header = json.dumps({"names": names, "sizes": sizes, "arrays": listed}).encode()
    start = _MAGIC + len(header).to_bytes(8, "little") + header
    total = xxhash.xxh3_128()
    with open(path, "xb", buffering=0, opener=for_this_user) as file:
        for part in (memoryview(start), *parts):
            for piece in (part, memoryview(bytes(-part.nbytes % _ALIGNMENT))):
                _write_all(file, piece)
                total.update(piece)
        os.fsync(file.fileno())
    return total.hexdigest()


def _write_all(file: Any, data: memoryview) -> None:
    while data.nbytes:
        data = data[file.write(data) :]


def digest(path: Path) -> str:
    """Returns the digest of a file's bytes."""
    total = xxhash.xxh3_128()
    with path.open("rb") as file:
        while data := file.read(16 << 20):
            total.update(data)
    return total.hexdigest()


def read(path: Path, *, maps: bool = False) -> Contents:
    """Opens a file; nothing is unpickled.

    Args:
        path: The file.
        maps: Its buffers are views of it, mapped into memory. Only for files that nobody else
            writes to: who reads what was cut off is killed by SIGBUS. Else they are copies.

    Raises:
        ValueError: It is no such file, or one of another version.
    """
    with path.open("rb") as file:
        header = _header(file)
        at, places = file.tell(), []
        for size in header["sizes"]:
            at += -at % _ALIGNMENT
            places.append((at, size))
            at += size
        if maps:
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
            first, *buffers = (mapped[at : at + size] for at, size in places)
            return Contents(header["names"], first, buffers, _arrays(header))
        first = _copy(file.fileno(), *places[0])
        copies = _Copies(os.dup(file.fileno()), places[1:])
    return Contents(header["names"], first, copies, _arrays(header))


def arrays_in(path: Path) -> tuple[SavedArray, ...]:
    """Returns the arrays over several processes that are in a file.

    Raises:
        ValueError: It is no such file, or one of another version.
    """
    with path.open("rb") as file:
        return _arrays(_header(file))


def _header(file: Any) -> dict[str, Any]:
    if file.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("it has no variables that this version of jaxnb can read")
    found: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return found


def _arrays(header: Mapping[str, Any]) -> tuple[SavedArray, ...]:
    return tuple(map(SavedArray.from_plain, header["arrays"]))
