"""The constants of a compiled program, from its serialized form.

As text a constant takes some ten times its size, and seconds for 16 MB, with the interpreter's
lock held. The serialized form is about its size. Its fields are XLA's ``hlo.proto``, read as
Protocol Buffers write them; their numbers never change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

_COMPUTATIONS, _INSTRUCTIONS, _LITERAL = 3, 2, 8
_FLOATS = {8: "<f4", 9: "<f8", 11: "<f2"}
"""Fields of a literal whose values stand there as in memory, and of what type they are."""

LARGE_BYTES = 40
"""A smaller constant stands in the program's text."""

SHOWN_VALUES = 4

_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5


def literals_digest(module: bytes) -> str:
    """Returns a digest of all constants of a serialized ``HloModuleProto``, in its order.

    Args:
        module: The serialized program.

    Raises:
        ValueError: It is not one.
    """
    digest = hashlib.blake2b(digest_size=16)
    for computation in _fields(memoryview(module), _COMPUTATIONS):
        for instruction in _fields(computation, _INSTRUCTIONS):
            for literal in _fields(instruction, _LITERAL):
                digest.update(literal)
    return digest.hexdigest()


def literal_lines(module: bytes) -> list[str]:
    """Returns a line for each large constant of a serialized ``HloModuleProto``, in its order.

    It has the size, a digest and, of floats, the first values and the range.
    """
    return [
        _line(literal)
        for computation in _fields(memoryview(module), _COMPUTATIONS)
        for instruction in _fields(computation, _INSTRUCTIONS)
        for literal in _fields(instruction, _LITERAL)
        if len(literal) > LARGE_BYTES
    ]


def _line(literal: memoryview) -> str:
    digest = hashlib.blake2b(literal, digest_size=4).hexdigest()
    for number, kind in _FLOATS.items():
        for values in _fields(literal, number):
            floats = np.frombuffer(values, kind)
            if not len(floats):
                continue
            first = ", ".join(f"{each:.9g}" for each in floats[:SHOWN_VALUES])
            least, most = f"{floats.min():.9g}", f"{floats.max():.9g}"
            return (
                f"large constant, digest {digest}, {len(floats)} values: {first} …, from {least} "
                f"to {most}, sum {floats.sum(dtype=np.float64):.9g}"
            )
    return f"large constant, digest {digest}, {len(literal)} B"


def _fields(message: memoryview, number: int) -> Iterator[memoryview]:
    """Yields the contents of a field that has a length, each time it occurs."""
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            _, at = _varint(message, at)
        elif kind == _EIGHT_BYTES:
            at += 8
        elif kind == _FOUR_BYTES:
            at += 4
        elif kind == _LENGTH:
            length, at = _varint(message, at)
            if tag >> 3 == number:
                yield message[at : at + length]
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
            return value, at
        shift += 7
