"""What processes saw of NaN, to where it appeared first."""

from __future__ import annotations

import pytest

from jaxnb.model.insight import NanFound, NanPlace
from jaxnb.pitfalls.findings import first_of

pytestmark = pytest.mark.unit

ALL = (0, 1, 2, 3)
PLACE = NanPlace(0, "float32[8]", "NaN", (3,), 1)


def seen(index: int, after: int, processes: tuple[int, ...] = ALL, **given: object) -> NanFound:
    number = after + 1 if len(processes) > 1 else 0
    fields = {"outputs": (PLACE,), "inputs": ()} | given
    return NanFound(index, "jit(f)", 5, processes, number, after, 1.0, **fields)  # type: ignore[arg-type]


def test_nothing_seen_is_nothing_said() -> None:
    assert first_of(1, []) is None


def test_dispatches_have_an_order_whatever_the_clocks_say() -> None:
    first = first_of(7, [seen(0, 4), seen(2, 1), seen(1, 1), seen(3, 2)])
    assert first is not None
    assert first.processes == (1, 2)
    assert tuple(first.later) == (3, 0)
    assert str(first) == (
        "The first NaN of cell [7] came out of jit(f) at line 5 (dispatch 2 over processes 0-3): "
        "output 0 float32[8] at [3] on processes 1-2. No argument had one: that computation made "
        "it. Later also on processes 0,3. The cell went on to its end on all processes."
    )


def test_what_a_process_computes_alone_comes_before_the_next_dispatch() -> None:
    first = first_of(7, [seen(0, 2), seen(3, 2, (3,)), seen(1, 2, (1,))])
    assert first is not None
    assert first.processes == (1, 3)
    assert "(of process 1 alone)" in str(first)
    assert "And of jit(f) at line 5 (of process 3 alone)" in str(first)


def test_an_argument_that_had_it_is_named() -> None:
    had = NanPlace(1, "float32[]", "NaN", (), 1)
    bound = NanPlace(0, "float32[8]", "NaN", (3,), 4, "loss")
    first = first_of(7, [seen(0, 0, inputs=(had,), outputs=(bound,))])
    assert (
        "`loss` float32[8] at [3] and 3 more, from argument leaf 1 float32[] on process 0"
        in str(first)
    )
    assert "from host data or from an earlier cell" in str(first)
