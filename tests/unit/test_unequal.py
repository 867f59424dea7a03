"""From digests of replicas to which inputs were unequal, and what is said of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jaxnb.arrays import unequal
from jaxnb.model.dispatches import DigestedArray, ReplicaPart, ReplicaTrail, UnequalInput

ALL = (0, 1, 2)


def array(*digests: str, first: int = 0, number: int = 1) -> DigestedArray:
    """An array of 2 × 3 as a process describes it whose devices have these digests."""
    held = tuple((first + i, digest) for i, digest in enumerate(digests))
    part = ReplicaPart(((4, 6), (0, 3)), ALL, held)
    return DigestedArray(
        ALL, number, 0, "jit(f)", 7, "p['w']", 9, "made", "float32[6,3]", "P()", (part,)
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
    ("axes", "said"),
    [
        (("x", "y"), "`check_vma=False` or a `pmap` with `out_axes=None`, called at line 7, "
         "declares what it returns equal over `x`, `y`, and nothing checks that. A reduction is "
         "probably missing: `jax.lax.psum` or `pmean` over that one of `x`, `y` over which"),
        ((), "jit(f) calls Python back"),
    ],
    ids=["shard_map", "callback"],
)  # fmt: skip
def test_a_result_is_explained_by_its_program_and_never_by_host_data(
    axes: tuple[str, ...], said: str
) -> None:
    of = replace(array("a"), role="result", axes=axes)
    found = UnequalInput(of, ((4, 6), (0, 3)), ((0,), (1,)))
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
