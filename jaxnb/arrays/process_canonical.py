"""Digests of pickles that are equal where the values are, and values whose pickles then are."""

from __future__ import annotations

import hashlib
import io
import pickle
import pickletools
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
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
            kind, of = met
            # Python does not write integers of more than 4 300 digits as decimal numbers.
            total.update(f"{kind} {hex(of) if type(of) is int else repr(of)};".encode())
    return total.digest()


_TEXTS = ("BINUNICODE", "BINUNICODE8", "BINBYTES", "BINBYTES8")


MAX_VISITED = 100_000
"""Of values with more parts, a set among them, nothing is compared: sorting them takes too long."""

_PLAIN = (int, str, bytes)
"""Elements that can be sorted as they are, if all are of one of these types."""


class TooManyError(Exception):
    """A value with sets has too many parts to be brought into one order."""


def _element_digest(element: Any) -> bytes:
    return canonical_digest(pickle.dumps(element, protocol=5))


def in_one_order(value: Any, as_bytes: Callable[[Any], bytes] = _element_digest) -> Any:
    """Returns a value whose pickle does not depend on the order in which sets were filled.

    The value itself if it has no set of several elements: in its lists, tuples, dicts, sets and
    named tuples, however deep. Else a copy in which the elements of sets stand
    sorted; dicts keep their order, which a user sees.

    Args:
        value: Any value.
        as_bytes: What elements of sets are sorted by.

    Raises:
        TooManyError: It has a set, and over :data:`MAX_VISITED` parts.
        Exception: An element cannot be pickled.
    """
    search = _Search(as_bytes)
    try:
        found = search.ordered(value)
    except RecursionError:  # it holds itself
        found = value
    if search.left < 0:
        if search.has_met_set:
            raise TooManyError
        return value
    return found


class _Search:
    def __init__(self, as_bytes: Callable[[Any], bytes]) -> None:
        self._bytes_of = as_bytes
        self.left = MAX_VISITED
        self.has_met_set = False

    def ordered(self, value: Any) -> Any:
        kind = type(value)
        if kind in (set, frozenset):
            return self._set(value, kind)
        if kind in (list, tuple) or (isinstance(value, tuple) and hasattr(value, "_fields")):
            self.left -= len(value)
            if self.left < 0:
                return value
            parts = [self.ordered(part) for part in value]
            return value if _are_the_same(parts, value) else (kind.__qualname__, parts)
        if kind in (dict, OrderedDict, defaultdict):
            self.left -= len(value)
            if self.left < 0:
                return value
            keys, values = map(list, (value, value.values()))
            new_keys, new = map(self.ordered, keys), [self.ordered(part) for part in values]
            ordered_keys = list(new_keys)
            if _are_the_same(new, values) and _are_the_same(ordered_keys, keys):
                return value
            return kind.__qualname__, ordered_keys, new
        return value

    def _set(self, value: Any, kind: type) -> Any:
        self.left -= len(value)
        self.has_met_set = self.has_met_set or len(value) > 1
        if len(value) < 2 or self.left < 0:
            return value
        kinds = set(map(type, value))
        if len(kinds) == 1 and kinds <= set(_PLAIN):
            return kind.__qualname__, sorted(value)
        return kind.__qualname__, sorted(map(self._as_bytes, value))

    def _as_bytes(self, element: Any) -> bytes:
        return self._bytes_of(self.ordered(element))


def _are_the_same(new: list[Any], old: Iterable[Any]) -> bool:
    return all(a is b for a, b in zip(new, old, strict=True))
