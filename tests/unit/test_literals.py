"""The constants of a compiled program, by the wire format of Protocol Buffers."""

from __future__ import annotations

import pytest

from jaxnb.compat.jax_programs import literals_digest


def varint(number: int) -> bytes:
    found = b""
    while number > 0x7F:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def module(*literals: bytes, name: bytes = b"jit_f", others: bytes = b"") -> bytes:
    instructions = [
        field(2, field(1, b"constant.1") + others + field(8, each) + field(7, name))
        for each in literals
    ]
    return field(1, name) + field(3, field(1, b"main") + b"".join(instructions))


LARGE = bytes(1000)


def test_equal_constants_have_one_digest_whatever_is_beside_them() -> None:
    # A number, eight bytes and four bytes, which have no length.
    others = varint(35 << 3) + varint(1 << 40) + varint(51 << 3 | 1) + bytes(8)
    others += varint(60 << 3 | 5) + bytes(4)
    expected = literals_digest(module(LARGE, b"a"))
    assert literals_digest(module(LARGE, b"a", name=b"jit_g", others=others)) == expected


def test_other_constants_have_another() -> None:
    changed = LARGE[:500] + b"\x01" + LARGE[501:]
    made = [module(LARGE, b"a"), module(changed, b"a"), module(b"a", LARGE), module(LARGE)]
    assert len({literals_digest(each) for each in made}) == len(made)


def test_what_is_no_message_is_an_error() -> None:
    with pytest.raises(ValueError, match="wire type 3"):
        literals_digest(b"\x0b")
