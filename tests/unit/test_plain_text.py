"""Text that JSON in UTF-8 has no place for."""

from __future__ import annotations

import pytest

from jaxnb.wire.messages import printable


@pytest.mark.parametrize(
    ("thing", "shown"),
    [
        ("plain", "plain"),
        ("é", "é"),
        ("a\udcff", "a\udcff"),
        ("a\ud800é", "a\\ud800é"),
        ({"k\ud800": ["\ud800", 1, None]}, {"k\\ud800": ["\\ud800", 1, None]}),
    ],
)
def test_lone_surrogates_are_escaped(thing: object, shown: object) -> None:
    assert printable(thing) == shown
