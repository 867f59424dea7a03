"""A program is compiled once: the first process that needs it compiles it, the others load it.

What is compiled is written to a folder of the user's, by the program's key, and loaded from there,
tomorrow too. Who is to compile a program takes a lock of the group's for it; the kernel lets go of
it when its holder ends, in whatever way. So nobody relies on another process to come, to live or to
succeed: whoever gets the lock looks once more, and else compiles.

A thread that holds a lock waits for nothing, as XLA compiles without asking anybody; what a
signal's handler compiles meanwhile takes no lock: no two can wait for each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from jaxnb.compat.jax_compiling import (
    Compilation,
    Lines,
    has_lines_of,
    hook_compilations,
    serialized,
)
from jaxnb.launch.folder import for_this_user
from jaxnb.model.group import Compiling

ENTRY = b"jaxnb2\n"
"""How an entry begins: its form. A digest of the rest follows, the length of the lines, the lines,
the executable."""

LONGEST_SLEEP = 0.02
"""Between two looks at a lock, in seconds. To wait in ``flock`` would miss a signal that comes just
before, and could not be interrupted then."""

_ALONE = b"alone"
"""In a lock: what was compiled could not be kept, so nobody needs to wait for it."""


class Programs:
    """The compiled programs that this process shares with others.

    Args:
        folder: Where they are kept.
        locks: Where the group's locks are; only this user can enter it.
        index: This process's index.

    Attributes:
        loaded: How many programs this process has loaded.
        doing: What each of its threads compiles, or waits for, now.
    """

    def __init__(self, folder: Path, locks: Path, index: int) -> None:
        self._folder, self._locks, self._index = folder, locks, index
        self.loaded = 0
        self.doing: dict[int, Compiling] = {}
        self._counts = Counter[str]()

    def made(self, wanted: Compilation) -> Any:
        """Returns the executable of a program: loaded if it has been compiled, else compiled.

        Raises:
            Exception: What compiling it raises, or KeyboardInterrupt while another compiles it.
        """
        executable = self._loaded(wanted)
        if executable is None and threading.get_ident() in self.doing:
            return wanted.compile()  # a handler or finalizer: this thread may hold that very lock
        if executable is None:
            self._counts[wanted.program] += 1
            try:
                executable = self._first_to_compile(wanted) or self._loaded(wanted)
            finally:
                self.doing.pop(threading.get_ident(), None)
        return executable or wanted.compile()  # others compiled it, and could not keep it

    def _first_to_compile(self, wanted: Compilation) -> Any:
        """Compiles a program, unless another process does; returns None once that one has.

        None, too, where there can be no lock: no file can be made or opened.
        """
        try:
            lock = os.open(self._locks / wanted.key, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            return None
        try:
            self._wait_for(lock, wanted.program)
            if os.pread(lock, 16, 0) == _ALONE or (self._folder / wanted.key).exists():
                return None
            self.doing[threading.get_ident()] = self._compiling(wanted.program)
            _say(lock, str(self._index).encode())
            executable = wanted.compile()
            has_lines_of(executable, wanted.lines, wanted.lines)
            if not self._keep(wanted, executable):
                _say(lock, _ALONE)
            return executable
        finally:
            # First of all: no interrupt comes before. A child forked meanwhile has it open, too.
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)

    def _wait_for(self, lock: int, program: str) -> None:
        """Takes a lock, as soon as nobody else has it."""
        pause = 0.001
        while True:
            with contextlib.suppress(BlockingIOError):
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            holder = os.pread(lock, 16, 0)
            holding = int(holder) if holder.isdigit() else None
            self.doing[threading.get_ident()] = self._compiling(program, holding)
            time.sleep(pause)
            pause = min(1.5 * pause, LONGEST_SLEEP)

    def _compiling(self, program: str, holder: int | None = None) -> Compiling:
        return Compiling(program, holder, self._counts[program])

    def _loaded(self, wanted: Compilation) -> Any:
        """Returns the executable that is kept of a program; None if there is none to be used.

        What is damaged, or of no use to this program, is removed.
        """
        path = self._folder / wanted.key
        try:
            lines, data = _opened(path.read_bytes())
            executable = wanted.load(data)
            if has_lines_of(executable, lines, wanted.lines):
                with contextlib.suppress(OSError):  # a read-only file system
                    os.utime(path)  # what was not used for longest goes first
                self.loaded += 1
                return executable
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RuntimeError):
            pass
        with contextlib.suppress(OSError):
            path.unlink()
        return None

    def _keep(self, wanted: Compilation, executable: Any) -> bool:
        """Writes a program to the folder; returns whether others can load it."""
        path = self._folder / wanted.key
        partial = f"{path}-{os.getpid()}-{threading.get_ident()}"
        try:
            entry = _entry(wanted.lines, serialized(executable))
            with open(partial, "wb", opener=for_this_user) as file:
                file.write(entry)
            os.replace(partial, path)
        except (OSError, RuntimeError):  # the disk is full, or the backend cannot
            with contextlib.suppress(OSError):
                os.unlink(partial)
            return False
        return True


def _say(lock: int, text: bytes) -> None:
    with contextlib.suppress(OSError):  # the disk is full: then others wait for their turn
        os.ftruncate(lock, 0)
        os.pwrite(lock, text, 0)


def _entry(lines: Lines, data: bytes) -> bytes:
    places = {line: k for k, line in enumerate(dict.fromkeys(lines))}
    head = json.dumps([list(places), [places[line] for line in lines]]).encode()
    rest = len(head).to_bytes(8, "big") + head + data
    return ENTRY + hashlib.sha256(rest).digest() + rest


def _opened(entry: bytes) -> tuple[Lines, bytes]:
    """Returns the lines and the executable of an entry.

    Raises:
        ValueError: It is damaged.
    """
    view = memoryview(entry)[len(ENTRY) :]
    digest, rest = view[:32], view[32:]
    if not entry.startswith(ENTRY) or hashlib.sha256(rest).digest() != digest:
        raise ValueError("not what was written")
    start = 8 + int.from_bytes(rest[:8], "big")
    places, numbers = json.loads(bytes(rest[8:start]))
    told = [None if each is None else (each[0], each[1], each[2]) for each in places]
    return tuple(told[number] for number in numbers), bytes(rest[start:])


programs: Programs | None = None
"""Those of this process; None where it compiles by itself."""

_fault = ""


def install(folder: str, locks: str, index: int) -> None:
    """Has programs compiled once from now on, where this JAX lets that be.

    Args:
        folder: Where they are kept.
        locks: The group's folder for locks.
        index: This process's index.
    """
    global programs, _fault
    for each in (folder, locks):  # of several hosts one may not have it
        Path(each).mkdir(mode=0o700, exist_ok=True)
    shared = Programs(Path(folder), Path(locks), index)
    _fault = hook_compilations(shared.made)
    programs = None if _fault else shared


def main_thread_does() -> Compiling | None:
    """Returns what the main thread does about a program that is not compiled yet, if any."""
    main = threading.main_thread().ident
    return None if programs is None or main is None else programs.doing.get(main)


def reduced() -> tuple[str, ...]:
    """Returns why programs are not compiled once, as a sentence; nothing if they are."""
    return (f"each process compiles its programs by itself ({_fault}).",) if _fault else ()
