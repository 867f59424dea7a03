"""One file with the packed variables of one process: a header, pickles, and buffers beside them.

Buffers begin where a cache line does, so that JAX's CPU backend takes them as they are mapped.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from jaxnb.launch.folder import for_this_user
from jaxnb.recovery.fit_to_size import SavedArray

_MAGIC = b"jaxnb variables 2\n"
_ALIGNMENT = 64


class Contents(NamedTuple):
    """What is in a file.

    Attributes:
        names: The names of the pickles, and their sizes.
        pickle: The pickles, one after the other.
        buffers: What was left out of them. All are views of the mapped file: private to this
            process, and may be written to.
        arrays: The arrays over several processes in it, if they were listed.
    """

    names: dict[str, int]
    pickle: memoryview
    buffers: tuple[memoryview, ...]
    arrays: tuple[SavedArray, ...]


def name_of(process_index: int) -> str:
    """Returns the name of a process's file in its directory."""
    return f"process-{process_index:05}"


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


def read(path: Path) -> Contents:
    """Maps a file into memory; nothing is copied, and nothing unpickled.

    Raises:
        ValueError: It is no such file, or one of another version.
    """
    with path.open("rb") as file:
        header = _header(file)
        at = file.tell()
        mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    parts = []
    for size in header["sizes"]:
        at += -at % _ALIGNMENT
        parts.append(mapped[at : at + size])
        at += size
    return Contents(header["names"], parts[0], tuple(parts[1:]), _arrays(header))


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
