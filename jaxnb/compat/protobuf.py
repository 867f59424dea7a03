"""Messages of Protocol Buffers, read without their descriptions."""

from __future__ import annotations

from collections.abc import Iterator

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
