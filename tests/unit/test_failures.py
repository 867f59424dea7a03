"""What has failed on some processes only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnb.lockstep.messages import NONE, Failures, apart

ALL = (0, 1, 2)
ONE = NONE.with_one(17, "`jit(f)`")
TWO = ONE.with_one(18, "`jit(g)`")


@pytest.mark.parametrize(
    ("told", "what", "failed", "others"),
    [
        ({0: {ALL: ONE}, 1: {}, 2: {}}, "`jit(f)`", [0], [1, 2]),
        ({0: {ALL: ONE}, 1: {ALL: ONE}, 2: {}}, "`jit(f)`", [0, 1], [2]),
        ({0: {ALL: ONE}, 1: {ALL: TWO}, 2: {ALL: TWO}}, "`jit(g)`", [1, 2], [0]),
        ({0: {(0, 1): ONE}, 1: {}, 2: {}}, "`jit(f)`", [0], [1]),
    ],
)
def test_what_only_some_have_is_told(
    told: dict[int, dict[tuple[int, ...], Failures]],
    what: str,
    failed: list[int],
    others: list[int],
) -> None:
    found = apart(told)
    assert found == (what, failed, others)


@pytest.mark.parametrize(
    "told",
    [
        {},
        {0: {}, 1: {}},
        {0: {ALL: TWO}, 1: {ALL: TWO}, 2: {ALL: TWO}},
        {0: {(0, 1): ONE}, 1: {(0, 1): ONE}, 2: {}},  # 2 has no part in it
        {0: {ALL: ONE}},  # of the others nothing is known
    ],
)
def test_what_all_have_that_tell_is_no_matter(
    told: dict[int, dict[tuple[int, ...], Failures]],
) -> None:
    assert apart(told) is None


def test_one_counts_once() -> None:
    """An interrupt may have it noted again."""
    assert TWO.with_one(17, "`jit(f)`") == TWO


@given(st.lists(st.integers(0, (1 << 61) - 1), max_size=5).flatmap(
    lambda keys: st.tuples(st.just(keys), st.permutations(keys))
))  # fmt: skip
def test_threads_may_fail_in_another_order(orders: tuple[list[int], list[int]]) -> None:
    found = []
    for keys in orders:
        failures = NONE
        for key in keys:
            failures = failures.with_one(key, "")
        found.append(failures)
    assert found[0] == found[1]


def test_it_is_said_who_may_wait() -> None:
    assert str(apart({0: {ALL: ONE}, 1: {}, 2: {}})) == (
        "Process 0 failed in `jit(f)`, which processes 1-2 had begun, too: if they were to meet in "
        "it after that, processes 1-2 wait for ever"
    )
