"""Which values are plain, and which of them are the same."""

from __future__ import annotations

from jaxnb.compiled.compiling import plain_text

SELF: list[object] = []
SELF.append(SELF)


OTHERS = [object(), len, range(3), [object()], {"a": len}, SELF, [0] * 20_000, 10**5000]


def test_others_have_no_text() -> None:
    assert {plain_text(value) for value in OTHERS} == {None}
    assert plain_text(type("Names", (list,), {})()) is None


def test_equal_ones_have_one_text() -> None:
    known = [1, True, 1.0, "1", b"1", None, (1,), [1], {1}, {1: 2}, {"a": [1, (2, {3})]}, "x" * 999]
    texts = [plain_text(value) for value in known]
    assert None not in texts
    assert len({*texts}) == len(known)
    assert plain_text({3, 1, 2}) == plain_text({2, 3, 1})
    assert plain_text("x" * 999) != plain_text("x" * 998 + "y")
    assert plain_text("\udcff" * 300) is not None
