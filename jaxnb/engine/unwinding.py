"""Finds who has called a function of a C library, by the tables with which C++ unwinds its stack.

A stack holds return addresses of earlier calls too, where a frame has not been written to since:
which of its words is the return address stands in the library's ``.eh_frame``, and nowhere else.
Only what the C library of Linux on x86-64 is seen to use of these tables is understood.

Source: Linux Standard Base Core 5.0, 10.6 "Exception Frames"; DWARF 5, 6.4.2.
"""

from __future__ import annotations

import functools
import mmap
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path

STACK_POINTER = 7
"""DWARF's number of the register, on x86-64."""

_RETURN_ADDRESS = 16
_LOAD, _GNU_EH_FRAME = 1, 0x6474E550
_FORM = (1, 0x1B, 0x03, 0x3B)  # the version; a relative address, a count, a sorted table
_RELATIVE = 0x1B  # to the place where it stands; 4 bytes, signed


class UnknownFrameError(Exception):
    """The tables do not tell, or in a form that is not understood."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Where the frame of the caller begins, and where the return address lies in this one.

    Attributes:
        register: What the beginning is counted from; -1 if it is an expression.
        offset: How many bytes it lies above that.
        return_offset: How many bytes from the beginning the return address lies.
    """

    register: int = -1
    offset: int = 0
    return_offset: int = 0


class FrameTables:
    """The tables of one library.

    Args:
        path: Its file.

    Raises:
        OSError: It cannot be read.
        UnknownFrameError: It has no tables, or in another form.
    """

    def __init__(self, path: str) -> None:
        with Path(path).open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if self._data[:6] != b"\x7fELF\x02\x01":
            raise UnknownFrameError(f"{path} is not a little-endian library of 64 bits")
        self._segments: list[tuple[int, int, int]] = []
        self._header = self._read_program_headers()
        start = self._offset_of(self._header)
        if tuple(self._data[start : start + 4]) != _FORM:
            raise UnknownFrameError(f"{path}: the tables have another form")
        (self._count,) = struct.unpack_from("<I", self._data, start + 8)
        self._table = start + 12

    def rules_at(self, offset: int) -> Rules:
        """Returns the rules for the frame of a function that has come to an instruction.

        Args:
            offset: Where the instruction stands in the file.

        Raises:
            UnknownFrameError: They are not known.
        """
        try:
            return self._rules_at(self._address_of(offset))
        except (struct.error, IndexError) as error:
            raise UnknownFrameError(str(error)) from error

    def _read_program_headers(self) -> int:
        (at,) = struct.unpack_from("<Q", self._data, 32)
        size, count = struct.unpack_from("<HH", self._data, 54)
        header = 0
        for start in range(at, at + size * count, size):
            kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", self._data, start)
            if kind == _LOAD:
                self._segments.append((offset, address, length))
            elif kind == _GNU_EH_FRAME:
                header = address
        return header

    def _offset_of(self, address: int) -> int:
        for offset, start, length in self._segments:
            if start <= address < start + length:
                return address - start + offset
        raise UnknownFrameError(f"nothing is loaded to {address:#x}")

    def _address_of(self, offset: int) -> int:
        for start, address, length in self._segments:
            if start <= offset < start + length:
                return offset - start + address
        raise UnknownFrameError(f"nothing is loaded from {offset:#x}")

    def _rules_at(self, address: int) -> Rules:
        entry = self._entry_of(address)
        length, back = struct.unpack_from("<II", self._data, entry)
        common = _Common.read(self._data, entry + 4 - back)
        begin, size = struct.unpack_from("<iI", self._data, entry + 8)
        begin += self._address_of(entry + 8)
        if not begin <= address < begin + size:
            raise UnknownFrameError(f"no function is known at {address:#x}")
        more, at = _unsigned(self._data, entry + 16)
        program = _Program(self._data, common)
        program.run(common.begin, common.end, begin, address)
        program.first = program.rules
        program.run(at + more, entry + 4 + length, begin, address)
        return program.rules

    def _entry_of(self, address: int) -> int:
        """Returns where the entry stands of the function that begins last before an address."""
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            (begin,) = struct.unpack_from("<i", self._data, self._table + 8 * middle)
            low, high = (middle + 1, high) if self._header + begin <= address else (low, middle)
        if low == 0:
            raise UnknownFrameError(f"no function is known at {address:#x}")
        (entry,) = struct.unpack_from("<i", self._data, self._table + 8 * (low - 1) + 4)
        return self._offset_of(self._header + entry)


@functools.cache
def tables_of(path: str) -> FrameTables | None:
    """Returns the tables of a library, which are read once; None if it has none that are known."""
    try:
        return FrameTables(path)
    except (OSError, ValueError, struct.error, UnknownFrameError):
        return None


@dataclass(frozen=True, slots=True)
class _Common:
    """What the entries of functions share."""

    code_factor: int
    data_factor: int
    begin: int
    end: int

    @classmethod
    def read(cls, data: mmap.mmap, at: int) -> _Common:
        (length,) = struct.unpack_from("<I", data, at)
        text_end = data.find(b"\0", at + 9)
        letters = data[at + 9 : text_end]
        code_factor, after = _unsigned(data, text_end + 1)
        data_factor, after = _signed(data, after)
        register, after = _unsigned(data, after)
        size, begin = _unsigned(data, after)
        if data[at + 8] != 1 or register != _RETURN_ADDRESS or not letters.startswith(b"z"):
            raise UnknownFrameError("the entries have another form")
        if _form_of_addresses(letters[1:], data[begin : begin + size]) != _RELATIVE:
            raise UnknownFrameError("the entries tell addresses in another form")
        return cls(code_factor, data_factor, begin + size, at + 4 + length)


def _form_of_addresses(letters: bytes, values: bytes) -> int:
    at = 0
    for letter in letters.decode():
        if letter == "R":
            return values[at]
        # The form of a function's address, and that address, in 4 bytes as libraries have it.
        at += {"L": 1, "P": 5}.get(letter, 0)
    return -1


@dataclass
class _Program:
    """Runs the instructions of an entry, up to those for a given address."""

    data: mmap.mmap
    common: _Common
    rules: Rules = Rules()
    first: Rules = Rules()
    kept: list[Rules] = field(default_factory=list)
    at: int = 0

    def run(self, begin: int, end: int, location: int, address: int) -> None:
        """Runs what holds for ``address``; the first instructions hold from ``location`` on."""
        self.at = begin
        while self.at < end and location <= address:
            code = self.data[self.at]
            self.at += 1
            high, low = code & 0xC0, code & 0x3F
            if high == 0x40:
                location += low * self.common.code_factor
            elif high == 0x80:
                self._set_offset(low)
            elif high == 0xC0:
                self._restore(low)
            elif code in (2, 3, 4):
                size = {2: 1, 3: 2, 4: 4}[code]
                moved = int.from_bytes(self.data[self.at : self.at + size], "little")
                self.at += size
                location += moved * self.common.code_factor
            else:
                self._do(code)

    def _do(self, code: int) -> None:
        match code:
            case 0x00:  # nothing
                pass
            case 0x05:  # offset_extended
                self._set_offset(self._unsigned())
            case 0x06:  # restore_extended
                self._restore(self._unsigned())
            case 0x07 | 0x08:  # undefined, same_value
                self._forget(self._unsigned())
            case 0x09:  # register
                self._forget(self._unsigned())
                self._unsigned()
            case 0x0A:
                self.kept.append(self.rules)
            case 0x0B:
                self.rules = self.kept.pop()
            case 0x0C:
                self.rules = replace(self.rules, register=self._unsigned(), offset=self._unsigned())
            case 0x0D:
                self.rules = replace(self.rules, register=self._unsigned())
            case 0x0E:
                self.rules = replace(self.rules, offset=self._unsigned())
            case 0x0F:  # an expression
                self.rules = replace(self.rules, register=-1)
                self._skip()
            case 0x10 | 0x16:  # a register, by an expression
                self._forget(self._unsigned())
                self._skip()
            case 0x2E:  # the size of the arguments
                self._unsigned()
            case _:
                raise UnknownFrameError(f"instruction {code:#x}")

    def _set_offset(self, register: int) -> None:
        offset = self._unsigned() * self.common.data_factor
        if register == _RETURN_ADDRESS:
            self.rules = replace(self.rules, return_offset=offset)

    def _restore(self, register: int) -> None:
        if register == _RETURN_ADDRESS:
            self.rules = replace(self.rules, return_offset=self.first.return_offset)

    def _forget(self, register: int) -> None:
        if register == _RETURN_ADDRESS:
            raise UnknownFrameError("the return address is not on the stack")

    def _skip(self) -> None:
        size = self._unsigned()
        self.at += size

    def _unsigned(self) -> int:
        value, self.at = _unsigned(self.data, self.at)
        return value


def _unsigned(data: mmap.mmap, at: int) -> tuple[int, int]:
    """Reads a number (LEB128); returns it, and where the next begins."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _signed(data: mmap.mmap, at: int) -> tuple[int, int]:
    value, after = _unsigned(data, at)
    bits = 7 * (after - at)
    return value - (1 << bits) if value >> (bits - 1) else value, after
