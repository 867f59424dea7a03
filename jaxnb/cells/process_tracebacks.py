"""Tracebacks in IPython's form, made without reading the libraries' sources."""

from __future__ import annotations

import inspect
import linecache
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any

from IPython.utils.path import compress_user

from jaxnb.compat import ipython_shell
from jaxnb.compat.ipython_shell import LibraryFrame, Records

_LIBRARIES = tuple(
    f"{path}/"
    for path in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *(path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")),
    }
)
"""Where installed modules are."""

_LEFT_OUT = ("IPython", "jaxnb", "bdb", "pdb", "cmd")
_JAXNB = f"{Path(__file__).parents[1]}/"
_TRACEBACK = "Traceback (most recent call last):\n"
_FRAME = re.compile(r'  File "([^"]*)", line \d+')

ANSI = re.compile(r"\x1b\[[0-9;]*m")
"""What colours text."""


def has_group(error: BaseException | None) -> bool:
    """Whether an error is an exception group, or came while one was handled."""
    while error is not None and not isinstance(error, BaseExceptionGroup):
        error = error.__context__
    return error is not None


def install(shell: Any) -> None:
    """Has a shell format the frames of installed modules by file, line, name and source line.

    IPython parses every module that a traceback goes through, to mark what was evaluated, and
    highlights lines around. With JAX's modules, which no user has written, that takes 1.5 s of
    processor time at a process's first error and 0.5 s at each other, on every process. Frames
    of cells and of users' modules stay as IPython shows them; and after ``%xmode Verbose`` in a
    cell, which asks for the variables of all, so do all.

    Args:
        shell: The kernel's shell.
    """
    ipython_shell.format_frames(shell, _records, _format_library_frame)


def python_lines(error: BaseException) -> list[str]:
    """Returns a traceback as Python writes it, without the frames of IPython and jaxnb."""
    chain: list[BaseException | None] = [error]
    while (each := chain[-1]) is not None:
        each.__traceback__ = without_ours(each.__traceback__)
        if notes := getattr(each, "__notes__", None):  # JAX's on the frames that it has left out
            each.__notes__ = [note for note in notes if not note.startswith("-----")]
        following = each.__cause__ or each.__context__
        chain.append(None if following in chain else following)
    return "".join(traceback.format_exception(error)).splitlines()


def _records(etb: TracebackType, own: Records) -> list[Any]:
    found: list[Any] = []
    for is_library, group in groupby(_entries(etb), key=_is_of_library):
        entries = list(group)
        if is_library:
            found.extend(LibraryFrame(e.tb_frame, e.tb_lineno) for e in entries)
        else:
            _tell_modules(entries)
            found.extend(own(_chained(entries)))
    return found


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    """Yields a traceback's entries, without those of IPython, of jaxnb and of a debugger."""
    while traceback is not None:
        frame = traceback.tb_frame
        module = str(frame.f_globals.get("__name__"))
        # Frames that JAX makes to show where something was traced have a file, and no module.
        is_ours = frame.f_code.co_filename.startswith(_JAXNB)
        if not is_ours and module.partition(".")[0] not in _LEFT_OUT:
            yield traceback
        traceback = traceback.tb_next


def without_ours(traceback: TracebackType | None) -> TracebackType | None:
    """Returns a traceback without the frames of IPython and jaxnb."""
    return _chained(list(_entries(traceback)))


def _is_of_library(entry: TracebackType) -> bool:
    return entry.tb_frame.f_code.co_filename.startswith(_LIBRARIES)


def _tell_modules(entries: list[TracebackType]) -> None:
    """Tells `inspect` whose files these are.

    IPython asks it, and for a file that it does not know it resolves the paths of all modules that
    are loaded: 0.1 s at a process's first error.
    """
    for each in entries:
        file = each.tb_frame.f_code.co_filename
        for path in (file, os.path.abspath(file)):  # as inspect has it
            inspect.modulesbyfile.setdefault(path, each.tb_frame.f_globals.get("__name__"))


def _chained(entries: list[TracebackType]) -> TracebackType | None:
    """Returns a traceback of these entries only."""
    chained: TracebackType | None = None
    for each in reversed(entries):
        chained = TracebackType(chained, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return chained


class LibraryText(str):
    """How a frame of an installed module is shown."""

    __slots__ = ()


def cause_first(message: str) -> str:
    """Returns what XLA says of a callback that has raised, with what that was in its first line.

    XLA puts the whole traceback into its message. Of its frames those are left out that are not of
    cells or of the user's modules. Other messages are returned as they are.
    """
    head, mark, rest = message.partition(_TRACEBACK)
    if not mark or "callback" not in head:
        return message
    lines = rest.rstrip("\n").splitlines()
    own: list[str] = []
    is_own = False
    for line in lines:
        if (frame := _FRAME.match(line)) is not None:
            is_own = not frame[1].startswith((*_LIBRARIES, _JAXNB, "<frozen"))
        elif not line.startswith(" "):
            break  # what was raised
        own += [line] * is_own
    raised = lines[-1] if lines else ""
    return "\n".join([f"{head}{raised}", _TRACEBACK.rstrip("\n"), *own, raised])


def _format_library_frame(frame: LibraryFrame) -> LibraryText:
    source = linecache.getline(frame.filename, frame.lineno, frame.frame.f_globals).strip()
    file = compress_user(frame.filename)
    said = f"File {file}:{frame.lineno}, in {frame.code.co_qualname}\n"
    return LibraryText(f"{said}----> {frame.lineno} {source}\n" if source else said)
