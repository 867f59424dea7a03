"""Files that hold a process's variables, and the directories that hold those of all."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

from jaxnb.errors import JaxnbError, NotEnoughMemoryError, UsageError
from jaxnb.labels import format_bytes
from jaxnb.launch.folder import for_this_user
from jaxnb.recovery.fit_to_size import SavedArray

# Buffers begin where a cache line does, so that JAX's CPU backend takes them as they are.

_MAGIC = b"jaxnb variables 3\n"
_ALIGNMENT = 64
_PREFIX = "process-"


class Contents(NamedTuple):
    """What is in a file, or to be written to one.

    Attributes:
        names: The names, in order, and the sizes of their pickles in bytes.
        pickle: One pickle a name, one after the other: of the name and its value.
        buffers: What was left out of the pickles. To be written: the memory of what was packed, not
            a copy. From a file: private to this process, and may be written to.
        arrays: The arrays over several processes in it.
        parts: Their parts that this process has, which are left out too.
    """

    names: dict[str, int]
    pickle: Any
    buffers: Sequence[Any]
    arrays: tuple[SavedArray, ...]
    parts: Sequence[Any]


class _Copies(Sequence[memoryview]):
    """Buffers of a file, each read into memory of its own when it is asked for.

    Args:
        descriptor: The file's, of which this keeps a copy.
        places: Where each buffer begins, and its size.
    """

    def __init__(self, descriptor: int, places: Sequence[tuple[int, int]]) -> None:
        self._descriptor, self._places = os.dup(descriptor), places

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


def write(path: Path, contents: Contents) -> str:
    """Writes a file, readable by this user only, and waits until it is on the disk.

    Args:
        path: It must not be there.
        contents: What is to be in it.

    Returns:
        The digest of its bytes.

    Raises:
        OSError: There is no room, say. What was written is left.
    """
    held = contents.pickle, *contents.buffers, *contents.parts
    pieces = [memoryview(each).cast("B") for each in held]
    sizes, listed = [piece.nbytes for piece in pieces], [each.plain for each in contents.arrays]
    header = json.dumps({"names": contents.names, "sizes": sizes, "arrays": listed}).encode()
    start = _MAGIC + len(header).to_bytes(8, "little") + header
    total = xxhash.xxh3_128()
    with open(path, "xb", buffering=0, opener=for_this_user) as file:
        for piece in (memoryview(start), *pieces):
            for data in (piece, memoryview(bytes(-piece.nbytes % _ALIGNMENT))):
                total.update(data)
                left = data
                while left.nbytes:
                    left = left[file.write(left) :]
        os.fsync(file.fileno())
    return total.hexdigest()


def digest(path: Path) -> str:
    """Returns the digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


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
        arrays = _arrays(header)
        count = sum(len(each.parts) for each in arrays)
        own, apart = places[1 : len(places) - count], places[len(places) - count :]
        if maps:
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
            views = [mapped[at : at + size] for at, size in places]
            buffers, parts = views[1 : len(own) + 1], views[len(own) + 1 :]
            return Contents(header["names"], views[0], buffers, arrays, parts)
        pickled = _copy(file.fileno(), *places[0])
        copies = _Copies(file.fileno(), own), _Copies(file.fileno(), apart)
    return Contents(header["names"], pickled, copies[0], arrays, copies[1])


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


MANIFEST = "variables.json"
"""What tells of the files in a directory, for people too."""


def target_of(folder: str, *, overwrite: bool) -> Path:
    """Returns the directory that variables can be saved to.

    Raises:
        UsageError: They cannot.
    """
    target = Path(folder).expanduser().resolve()  # a link stays one
    if not target.parent.is_dir():
        raise UsageError(
            f"There is no directory {target.parent}. Nothing was saved. Make it: `!mkdir -p "
            f"{target.parent}`."
        )
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return target
    if not target.is_dir():
        raise UsageError(f"{target} is a file. Nothing was saved. Name a directory.")
    if not (target / MANIFEST).is_file():
        raise UsageError(
            f"{target} is there, and has no saved variables. Nothing was saved. Name a directory "
            "that is not there yet."
        )
    names = {each.name for each in target.iterdir()}
    if others := sorted(name for name in names - {MANIFEST} if not is_name(name)):
        raise UsageError(
            f"{target} has more than saved variables: {', '.join(others[:5])}"
            f"{' …' if len(others) > 5 else ''}. Nothing was saved, as to replace the directory "
            "would remove that too. Move it away, or name another directory."
        )
    if not overwrite:
        raise UsageError(
            f"{target} has saved variables already. Nothing was saved. Name another directory, or "
            "replace them: `%spmd_save --overwrite DIR`, `spmd.save(dir, overwrite=True)`."
        )
    return target


def require_room(folder: Path, nbytes: int) -> None:
    """Raises NotEnoughMemoryError where there is not so much room on the disk."""
    free = shutil.disk_usage(folder).free
    if nbytes > free:
        raise NotEnoughMemoryError(
            f"The variables of all processes take {format_bytes(nbytes)}, and {folder} has "
            f"{format_bytes(free)} free. Nothing was saved. Name the variables to save, or another "
            "directory."
        )


def put_in_place(partial: Path, target: Path) -> None:
    """Replaces a directory by another; where that fails, what was there before is there again.

    Raises:
        JaxnbError: It failed.
    """
    old = partial.with_name(f"{partial.name}-old")
    try:
        if target.exists():
            target.rename(old)
        partial.rename(target)
    except BaseException as error:  # an interrupt too
        if partial.exists():  # else it came after the last step
            _put_back(old, target, partial, error)
            shutil.rmtree(partial, ignore_errors=True)
            unchanged = f"Nothing was saved: {target} is as it was."
            if isinstance(error, OSError):
                why = f"{target} could not be replaced ({error.strerror}). {unchanged}"
                raise JaxnbError(why) from None
            error.add_note(unchanged)
        raise
    finally:
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)


def _put_back(old: Path, target: Path, partial: Path, error: BaseException) -> None:
    try:
        if old.exists():
            old.rename(target)
    except OSError as again:
        raise JaxnbError(
            f"{target} could not be replaced ({error}), and what was there not be put back "
            f"({again.strerror}). It is whole in {old}, and the new variables in {partial}. Choose "
            f"one: `!mv {old} {target}`, say, and remove the other."
        ) from error


def why_not_own(path: Path) -> str:
    """Returns why somebody else can have written a file; empty if nobody can have.

    What is in it is unpickled, and so run.
    """
    try:
        found = path.stat()
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"
    if found.st_uid not in (os.getuid(), 0) or found.st_mode & 0o022:
        return (
            f"{path} can be written by other users than you, and to load variables is to run code; "
            "if you trust it, make it yours: `chown`, `chmod go-w`"
        )
    return ""
