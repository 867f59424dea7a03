"""The constants of a compiled program, from its serialized form.

As text a constant takes some ten times its size, and seconds for 16 MB, with the interpreter's
lock held. The serialized form is about its size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from jaxnb.compat.xla_messages import Message

_FLOATS = {8: "<f4", 9: "<f8", 11: "<f2"}
"""Fields of a literal whose values stand there as in memory, and of what type they are."""

LARGE_BYTES = 40
"""A smaller constant stands in the program's text."""

SHOWN_VALUES = 4


def literals_digest(module: bytes) -> str:
    """Returns a digest of all constants of a serialized ``HloModuleProto``, in its order.

    Args:
        module: The serialized program.

    Raises:
        ValueError: It is not one.
    """
    digest = hashlib.blake2b(digest_size=16)
    for literal in _literals(module):
        digest.update(literal)
    return digest.hexdigest()


def literal_lines(module: bytes) -> list[str]:
    """Returns a line for each large constant of a serialized ``HloModuleProto``, in its order.

    It has the size, a digest and, of floats, the first values and the range.
    """
    return [_line(literal) for literal in _literals(module) if len(literal) > LARGE_BYTES]


def _literals(module: bytes) -> Iterator[memoryview]:
    for computation in Message(module).messages(3):
        for instruction in computation.messages(2):
            if literal := instruction.data(8):
                yield literal


def _line(literal: memoryview) -> str:
    digest = hashlib.blake2b(literal, digest_size=4).hexdigest()
    known = Message(literal)
    for number, kind in _FLOATS.items():
        if len(floats := np.frombuffer(known.data(number), kind)):
            first = ", ".join(f"{each:.9g}" for each in floats[:SHOWN_VALUES])
            least, most = f"{floats.min():.9g}", f"{floats.max():.9g}"
            return (
                f"large constant, digest {digest}, {len(floats)} values: {first} …, from {least} "
                f"to {most}, sum {floats.sum(dtype=np.float64):.9g}"
            )
    return f"large constant, digest {digest}, {len(literal)} B"
