"""Digests of pickles that are equal where the values are."""

from __future__ import annotations

import hashlib
import io
import pickletools
from typing import Any

MAX_CANONICAL_BYTES = 4 << 20
"""Of longer pickles the bytes are compared: to read all their opcodes would take seconds."""


def canonical_digest(stream: bytes) -> bytes:
    """Digests pickles, but for how often they write a text.

    A text that is met twice is written once if it is one object, and twice if it is two: which
    of them depends on where it came from, a constant of a cell or another pickle.
    """
    if len(stream) > MAX_CANONICAL_BYTES:
        return hashlib.blake2b(stream, digest_size=16).digest()
    total = hashlib.blake2b(digest_size=16)
    memo: list[tuple[str, Any]] = []
    objects = 0
    file = io.BytesIO(stream)
    while file.tell() < len(stream):
        met: tuple[str, Any] = ("", None)
        for opcode, argument, _ in pickletools.genops(file):
            name = opcode.name
            if name in ("FRAME", "PROTO"):
                continue
            if name == "MEMOIZE":
                is_text = met[0] == "TEXT"
                memo.append(met if is_text else ("GET", objects))
                objects += not is_text
                continue
            if name in ("BINGET", "LONG_BINGET"):
                met = memo[int(argument or 0)]
            else:
                met = ("TEXT" if name.endswith(_TEXTS) else name, argument)
            total.update(repr(met).encode())
    return total.digest()


_TEXTS = ("BINUNICODE", "BINUNICODE8", "BINBYTES", "BINBYTES8")
