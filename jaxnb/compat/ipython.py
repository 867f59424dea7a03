"""IPython's own names: errors, names of cells, what they print; completion outside of a request."""

from __future__ import annotations

import functools
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import CodeType, FrameType, MethodType, TracebackType
from typing import Any

from IPython.core.oinspect import Inspector


@dataclass(frozen=True, slots=True)
class LibraryFrame:
    """What IPython asks of a frame, for one that it does not format itself.

    Attributes:
        frame: The frame.
        lineno: The line that it was at.
        left_out: How many frames before it are not shown.
        is_shown: Whether it is; else it is the last of those.
    """

    frame: FrameType
    lineno: int
    left_out: int = 0
    is_shown: bool = True
    _sd: None = None

    @property
    def code(self) -> CodeType:
        """The code that it runs."""
        return self.frame.f_code

    @property
    def filename(self) -> str:
        """The file of the code."""
        return self.code.co_filename


Records = Callable[[TracebackType | None], list[Any]]
"""Returns IPython's records of a traceback's frames."""


def format_frames(
    shell: Any,
    records_of: Callable[[TracebackType, Records], list[Any]],
    format_frame: Callable[[LibraryFrame], str],
) -> None:
    """Has a shell's tracebacks made of other records than IPython's.

    After ``%xmode Verbose`` in a cell, which asks for the variables of all frames, they are
    IPython's own.

    Args:
        shell: The shell.
        records_of: Returns the records of a traceback, each IPython's own or a
            :class:`LibraryFrame`; is given what returns IPython's own.
        format_frame: Formats those that are not IPython's.
    """
    formatter = shell.InteractiveTB
    records, record = formatter.get_records, formatter.format_record

    def get_records(self: Any, etb: TracebackType, context: int, tb_offset: int) -> list[Any]:
        if self.include_vars:
            return list(records(etb, context, tb_offset))
        # The offset is for IPython's own frames: some versions take it for so many of any kind.
        return records_of(etb, lambda traceback: list(records(traceback, context, 0)))

    def format_record(self: Any, frame_info: Any) -> str:
        if isinstance(frame_info, LibraryFrame):
            return format_frame(frame_info)
        return str(record(frame_info))

    formatter.get_records = MethodType(get_records, formatter)
    formatter.format_record = MethodType(format_record, formatter)


def keep_tracebacks(
    shell: Any, keep: Callable[[type[BaseException], Any, list[str]], None]
) -> None:
    """Has a shell's errors taken by a function, in the place of being shown.

    IPython documents ``_showtraceback`` as the method to replace for that; ipykernel's publishes
    an error, which would show it beside jaxnb's own. And it warns after a SystemExit that ``exit``
    ends a shell: here it ends none.
    """

    def keep_one(kind: type[BaseException], error: Any, lines: list[str]) -> None:
        if issubclass(kind, SystemExit):  # at each: code may reset the filters
            warnings.filterwarnings("ignore", "To exit: use 'exit'")
        keep(kind, error, lines)

    shell._showtraceback = keep_one


def note_traceback(shell: Any, lines: list[str]) -> None:
    """Has a shell remember the lines of its last error, for ``%tb``."""
    shell._last_traceback = lines


def name_cells(shell: Any, name: Callable[[], str]) -> None:
    """Has a shell's cells compiled under a name, as the file of their code.

    ipykernel's has the pid in it, so no two processes' tracebacks would be equal.
    """
    shell.compile.get_code_name = lambda raw, transformed, number: name()


def is_outermost(shell: Any) -> bool:
    """Whether the cell itself is run, and nothing that its code runs as IPython would a cell."""
    code, found = type(shell).run_code.__code__, 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found += frame.f_code is code
        frame = frame.f_back
    return found == 1


class _Forgetful(defaultdict[int, list[Any]]):
    """Takes entries and keeps none."""

    def __missing__(self, key: int) -> list[Any]:
        return []


def forget_output(shell: Any) -> None:
    """Keeps IPython from keeping all that cells print, for good, piece by piece.

    IPython 9 does that for ``%notebook``, which saves the history of a terminal. It has no
    setting for it: of the two names replaced here one is its own.
    """
    if hasattr(shell, "_tee"):
        shell._tee = lambda channel: nullcontext()
    if hasattr(shell.history_manager, "outputs"):  # IPython 9.0 has none
        shell.history_manager.outputs = _Forgetful(list)


def reloads_modules(shell: Any) -> bool:
    """Whether IPython's autoreload is on in a shell."""
    magics = shell.magics_manager.registry.get("AutoreloadMagics")
    return bool(getattr(getattr(magics, "_reloader", None), "enabled", False))


def matches(completer: Any, code: str, offset: int) -> dict[Any, Any]:
    """Returns what each matcher of a completer finds at a place of the code.

    ``completions()`` does no more, and warns: what becomes of warnings is a setting of all threads.
    """
    before = code[:offset].split("\n")
    found: dict[Any, Any] = completer._complete(
        full_text=code, cursor_line=len(before) - 1, cursor_pos=len(before[-1])
    )
    return found


def found_object(shell: Any, name: str) -> Any:
    """Returns what a shell knows of a name: its ``found``, and the object as ``obj``."""
    return shell._object_find(name)


def described(shell: Any, name: str, info: Any, detail: int, str_detail: int) -> dict[str, Any]:
    """Returns the documentation of an object, by MIME type.

    Args:
        shell: The shell, whose colours are used.
        name: The object's name.
        info: What :func:`found_object` has returned.
        detail: 1 for its source, too.
        str_detail: From which detail on the object is printed.
    """
    inspector = Inspector(theme_name=shell.inspector._theme_name, str_detail_level=str_detail)
    bundle: dict[str, Any] = inspector._get_info(info.obj, name, info=info, detail_level=detail)
    return bundle


TESTED: Mapping[str, str] = {
    "JAX": "0.12.0.1",
    "ipykernel": "7.4.0",
    "IPython": "9.18.1",
    "ipyparallel": "9.2.0",
}
"""The newest of each in ``constraints/``."""


@functools.cache
def installed() -> dict[str, str]:
    """Returns the installed versions of those in :data:`TESTED`; none of one that has no record."""
    found = {}
    for name in TESTED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def newer_than_tested(versions: Mapping[str, str]) -> tuple[str, ...]:
    """Returns a sentence for each package that is newer than the newest that is tested.

    Only what comes before the second dot counts: other releases mend faults, and move no names.
    """
    return tuple(
        f"{name} {versions[name]} is newer than {tested}, the newest that jaxnb is tested with."
        for name, tested in TESTED.items()
        if name in versions and _feature_release(versions[name]) > _feature_release(tested)
    )


def _feature_release(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:2]))
