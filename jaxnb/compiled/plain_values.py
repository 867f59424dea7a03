"""Pure: plain values (numbers, texts, and containers of them) as text that tells them apart."""

from __future__ import annotations

import hashlib

MAX_PARTS = 10_000
MAX_DEPTH = 20
MAX_CHARS = 200

_SINGLE = (bool, int, float, complex, str, bytes, type(None))


def plain_text(value: object) -> str | None:
    """Returns a text that is equal for equal plain values; None for values of other kinds.

    It is the value's ``repr``, or for a long one its beginning and a digest.
    """
    left = [MAX_PARTS]
    try:
        text = _text(value, left, MAX_DEPTH)
    except ValueError:  # it is none, has too many parts, or an integer has too many digits
        return None
    if len(text) <= MAX_CHARS:
        return text
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()
    return f"{text[:MAX_CHARS]}… ({digest})"


def _text(value: object, left: list[int], depth: int) -> str:
    left[0] -= 1
    kind = type(value)
    if left[0] < 0 or depth < 0:
        raise ValueError
    if kind in _SINGLE:
        return repr(value)
    if isinstance(value, list | tuple | set | frozenset) and kind.__module__ == "builtins":
        parts = [_text(each, left, depth - 1) for each in list(value)]
        inside = sorted(parts) if isinstance(value, set | frozenset) else parts
        return f"{kind.__name__}({', '.join(inside)})"
    if kind is dict and isinstance(value, dict):
        pairs = [
            f"{_text(k, left, depth - 1)}: {_text(v, left, depth - 1)}"
            for k, v in value.copy().items()
        ]
        return f"{{{', '.join(pairs)}}}"
    raise ValueError
