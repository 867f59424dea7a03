"""From digests of replicas to which inputs were unequal, and what is said of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxnb.arrays import unequal
from jaxnb.model.dispatches import DigestedArray, ReplicaPart, ReplicaTrail, UnequalInput

ALL = (0, 1, 2)


def array(*digests: str, first: int = 0, number: int = 1, dtype: str = "float32") -> DigestedArray:
    """An array of 2 × 3 as a process describes it whose devices have these digests."""
    held = tuple((first + i, digest) for i, digest in enumerate(digests))
    part = ReplicaPart(((4, 6), (0, 3)), ALL, held)
    kind = f"{dtype}[6,3]"
    return DigestedArray(
        ALL, number, 0, "jit(f)", 7, "p['w']", 9, "made", kind, dtype, "P()", (part,)
    )


def test_trails_that_are_equal_ask_nothing_more() -> None:
    trail = ReplicaTrail((0, 1), 3, 99)
    assert not unequal.differ({0: (trail,), 1: (trail,), 2: (ReplicaTrail((2, 3), 1, 5),)})
    assert unequal.differ({0: (trail,), 1: (replace(trail, digest=98),)})
    assert unequal.differ({0: (ReplicaTrail((0,), 1, 5),)})


def test_who_has_the_same_is_told_together() -> None:
    found = unequal.unequal_inputs(
        {0: [array("a")], 1: [array("b", first=1)], 2: [array("a", first=2)]}
    )
    assert [(each.groups, each.by_device) for each in found] == [(((0, 2), (1,)), False)]


def test_devices_of_one_process_are_told_as_devices() -> None:
    found = unequal.unequal_inputs({0: [array("a", "b")], 1: [array("a", "a", first=2)]})
    assert [(each.groups, each.by_device) for each in found] == [(((0, 2, 3), (1,)), True)]


def test_what_only_one_has_digested_is_not_compared() -> None:
    assert unequal.unequal_inputs({0: [array("a")], 1: [array("b", number=2)]}) == []


@pytest.mark.parametrize(
    ("dtype", "mine", "its", "said", "is_rounding"),
    [
        (np.float32, 1.0, 3.0, "1 element differs, by up to 2", False),
        (np.float32, 1.0, np.nextafter(np.float32(1), np.float32(2)), "1 unit in the last", True),
        (np.float64, -1.0, np.nextafter(-1.0, 0.0), "1 unit in the last place", True),
        (ml_dtypes.bfloat16, 1.0, 1.0078125, "(1 unit in the last place)", True),
        (np.float32, 0.0, -0.0, "in bits only", False),
        (np.float32, 0.0, np.nan, "1 element differs; 1 of them NaN on some", False),
        (np.int32, -5, 5, "by up to 10", False),
        (np.bool_, True, False, "1 element differs", False),
        (np.complex64, 1j, 2j, "by up to 1", False),
    ],
)
def test_where_and_how_far_they_differ(
    dtype: Any, mine: Any, its: Any, said: str, is_rounding: bool
) -> None:
    pair = np.ones((2, 6), dtype)
    pair[:, 4] = mine, its
    name = np.dtype(dtype).name
    found = UnequalInput(array("a", dtype=name), ((4, 6), (0, 3)), ((0, 1), (2,)))
    told = unequal.with_difference(found, 0, [each.tobytes() for each in pair], is_all=True)
    assert told.difference.startswith("first at [5, 1]: ")
    assert said in told.difference
    assert told.is_rounding == is_rounding
    text = unequal.describe([told], 3)
    assert "`p['w']`" in text
    assert "processes 0-1 ≠ process 2 in [4:6, 0:3]" in text


def test_the_first_piece_that_differs() -> None:
    assert unequal.first_difference([(64, ["a", "b"]), (64, ["a", "c"])]) == (64, 128)
    assert unequal.first_difference([(64, ["a", "b"])] * 2 + [(64, ["c", "b"])]) == (0, 64)
    assert unequal.first_difference([(0, []), (64, ["a"])]) is None


def test_all_replicas_are_looked_at() -> None:
    values = np.zeros((3, 8), np.float32)
    values[1, 0] = 1
    values[2, 1:6] = 1000
    found = UnequalInput(array("a"), ((0, 8),), ((0, 3), (1,), (2,)))
    told = unequal.with_difference(found, 0, [each.tobytes() for each in values], is_all=True)
    assert told.difference == (
        "first at [0]: 0.0 on processes 0,2-3, 1.0 on process 1; 6 elements differ, by up to 1000"
    )


def test_what_is_no_number_on_some_is_counted_by_itself() -> None:
    values = np.array([[1, 2, 3], [1, 5, np.nan]], np.float32)
    found = UnequalInput(array("a"), ((0, 3),), ((0,), (1,)), parts=2)
    told = unequal.with_difference(found, 0, [each.tobytes() for each in values], is_all=True)
    assert told.difference.endswith(
        "2 elements differ, by up to 3; 1 of them NaN on some, in this part"
    )


@pytest.mark.parametrize(
    ("axes", "is_rounding", "said"),
    [
        (("x", "y"), False, "`check_vma=False` or a `pmap` with `out_axes=None`, called at line 7, "
         "declares what it returns equal over `x`, `y`, and nothing checks that. A reduction is "
         "probably missing: `jax.lax.psum` or `pmean` over that one of `x`, `y` over which"),
        ((), False, "jit(f) calls Python back"),
        (("x",), True, "They differ by rounding: each device computed its own."),
    ],
    ids=["shard_map", "callback", "rounding"],
)  # fmt: skip
def test_a_result_is_explained_by_its_program_and_never_by_host_data(
    axes: tuple[str, ...], is_rounding: bool, said: str
) -> None:
    of = replace(array("a"), role="result", axes=axes)
    found = UnequalInput(of, ((4, 6), (0, 3)), ((0,), (1,)), is_rounding=is_rounding)
    text = unequal.describe([found], 3)
    assert text.startswith("Unequal result in cell [3]: `p['w']` ")
    assert said in text
    assert "same data" not in text


def test_a_result_of_one_device_is_not_blamed_on_what_was_called_back() -> None:
    layout = "GSPMDSharding({maximal device=0}, memory_kind=device)"
    of = replace(array("a"), role="result", axes=(), layout=layout)
    text = unequal.describe([UnequalInput(of, ((4, 6), (0, 3)), ((0,), (1,)))], 3)
    assert "for one device only" in text
    assert "something else" not in text


def test_of_many_devices_that_differ_some_are_named() -> None:
    found = UnequalInput(array("a"), ((0, 8),), tuple((i,) for i in range(12)), by_device=True)
    assert "device 7 ≠ 4 more in" in unequal.describe([found], 3)
