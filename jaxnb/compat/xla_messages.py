"""XLA's serialized programs, field by field, as Protocol Buffers write them.

The numbers of fields are those of XLA's ``hlo.proto`` and ``xla_data.proto``; they never change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxnb.model.compiled import SourceLine

_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5


class Message:
    """A message: numbers, texts and messages by the number of their field.

    What is not there reads as 0, empty text or an empty message, as Protocol Buffers have it.

    Args:
        data: Its bytes; they are not copied.

    Raises:
        ValueError: They are no message.
    """

    __slots__ = ("_found",)

    def __init__(self, data: bytes | memoryview) -> None:
        self._found: dict[int, list[int | memoryview]] = {}
        for number, value in _fields(memoryview(data)):
            self._found.setdefault(number, []).append(value)

    def __contains__(self, number: int) -> bool:
        return number in self._found

    def number(self, field: int) -> int:
        """Returns a whole number."""
        found = self._found.get(field)
        return found[-1] if found and isinstance(found[-1], int) else 0

    def numbers(self, field: int) -> tuple[int, ...]:
        """Returns a field of several whole numbers, packed or not."""
        found: list[int] = []
        for value in self._found.get(field, ()):
            if isinstance(value, int):
                found.append(value)
                continue
            place = 0
            while place < len(value):
                number, place = _varint(value, place)
                found.append(number)
        return tuple(found)

    def data(self, field: int) -> memoryview:
        """Returns the bytes of a field."""
        found = self._found.get(field)
        return found[-1] if found and isinstance(found[-1], memoryview) else memoryview(b"")

    def text(self, field: int) -> str:
        """Returns a field of text."""
        return bytes(self.data(field)).decode(errors="replace")

    def texts(self, field: int) -> list[str]:
        """Returns a field of several texts."""
        return [bytes(each).decode(errors="replace") for each in self._parts(field)]

    def message(self, field: int) -> Message:
        """Returns a message within this one."""
        return Message(self.data(field))

    def messages(self, field: int) -> Iterator[Message]:
        """Returns a field of several messages."""
        return map(Message, self._parts(field))

    def _parts(self, field: int) -> list[memoryview]:
        return [each for each in self._found.get(field, ()) if isinstance(each, memoryview)]


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            at += 8 if kind == _EIGHT_BYTES else 4
        elif kind == _LENGTH:
            length, at = _varint(message, at)
            yield number, message[at : at + length]
            at += length
        else:
            raise ValueError(f"no message of Protocol Buffers: wire type {kind} at byte {at}")


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """Returns the number that begins at a byte, and where the next thing begins."""
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value - (1 << 64) if value >> 63 else value, at
        shift += 7


Place = tuple[str, int, int]
"""A file, a line in it and a column."""

moved_places: dict[Any, Mapping[Place, Place]] = {}
"""By the fingerprint of an executable that was compiled where its lines stood elsewhere: where they
stand now."""

NOT_MOVED: Mapping[Place, Place] = {}

_NOT_THEIRS = ("/site-packages/", "/dist-packages/", "<frozen ")
_RUN_CELLS = re.compile(
    r"/(?:site|dist)-packages/(?:ipykernel|IPython|ipyparallel|jupyter_client|tornado|traitlets)/"
    r"|/python3\.\d+/(?:asyncio/|runpy\.py$)|^<frozen "
)
"""They run cells: their lines say nothing of the program."""
_OWN = f"{Path(__file__).parents[1]}/"
"""jaxnb's own frames say nothing: it calls JAX for the user."""


class Frames:
    """The stack frames in which a program's instructions were made.

    Args:
        frames: By number, from 1, the line of each frame and the number of its caller; 0 if it
            has none.
    """

    def __init__(self, frames: Mapping[int, tuple[SourceLine, int]]) -> None:
        self._frames = frames

    def line(self, frame: int, file: str = "", number: int = 0) -> SourceLine | None:
        """Returns the line that an instruction comes from.

        That is the innermost one of a cell; without one, the innermost that is not in an
        installed package; without one, the innermost but those of what runs cells.

        Args:
            frame: The number of its frame.
            file: Its file, where XLA writes that instead.
            number: The line in it.
        """
        stack = [SourceLine(file, number)] if file else list(self._stack(frame))
        chosen = _told([each.file for each in stack])
        return None if chosen is None else stack[chosen]

    def _stack(self, frame: int) -> Iterator[SourceLine]:
        seen: set[int] = set()
        while frame in self._frames and frame not in seen:
            seen.add(frame)
            line, frame = self._frames[frame]
            yield line


def frames_of(module: Message, moved: Mapping[Place, Place] = NOT_MOVED) -> Frames:
    """Returns the frames of a serialized module.

    Args:
        module: The module.
        moved: Where its lines stand now, of ``moved_places``.
    """
    tables = module.message(17)
    files, functions = ["", *tables.texts(1)], ["", *tables.texts(2)]
    places = [SourceLine("", 0)]
    for each in tables.messages(3):
        then = files[each.number(1)], each.number(3), each.number(4)
        file, line, _ = moved.get(then, then)
        places.append(SourceLine(file, line, functions[each.number(2)]))
    rows = enumerate(tables.messages(4), 1)
    return Frames({i: (places[row.number(1)], row.number(2)) for i, row in rows})


def told(stack: Sequence[Place]) -> Place | None:
    """Returns which of the lines of a stack is told, from the innermost, as :meth:`Frames.line`."""
    chosen = _told([file for file, _, _ in stack])
    return None if chosen is None else stack[chosen]


def _told(files: Sequence[str]) -> int | None:
    kept = [k for k, file in enumerate(files) if _is_told(file)]
    for wanted in (lambda f: f.startswith("<cell "),
                   lambda f: not any(part in f for part in _NOT_THEIRS)):  # fmt: skip
        for k in kept:
            if wanted(files[k]):
                return k
    return kept[0] if kept else None


def _is_told(file: str) -> bool:
    return bool(file) and not file.startswith(_OWN) and not _RUN_CELLS.search(file)
