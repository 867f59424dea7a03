"""What differs between processes: inputs, settings, and what has failed on some only."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnb.arrays import unequal
from jaxnb.lockstep.messages import NONE, Failures, apart
from jaxnb.lockstep.settings import KnownSettings, as_pitfalls, differences, refusal
from jaxnb.model.cells import CellReply
from jaxnb.model.dispatches import DigestedArray, ReplicaPart, ReplicaTrail, UnequalInput
from jaxnb.model.group import ProcessReport

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


@pytest.mark.parametrize(
    ("told", "groups", "by_device"),
    [
        ({0: array("a"), 1: array("b", first=1), 2: array("a", first=2)}, ((0, 2), (1,)), False),
        ({0: array("a", "b"), 1: array("a", "a", first=2)}, ((0, 2, 3), (1,)), True),
        ({0: array("a"), 1: array("b", number=2)}, None, False),  # which only one has digested
    ],
)
def test_who_has_the_same_is_told_together(
    told: dict[int, DigestedArray], groups: tuple[tuple[int, ...], ...] | None, by_device: bool
) -> None:
    found = unequal.unequal_inputs({i: [each] for i, each in told.items()})
    expected = [] if groups is None else [(groups, by_device)]
    assert [(each.groups, each.by_device) for each in found] == expected


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
    layout = "GSPMDSharding({maximal device=0}, memory_kind=device)"
    alone = replace(found, array=replace(of, axes=(), layout=layout))
    assert "for one device only" in unequal.describe([alone], 3)


# ---------------------------------------------------------------------- settings


X64 = "jax_enable_x64"


def test_what_is_equal_or_not_known_everywhere_does_not_differ() -> None:
    assert differences({0: {X64: "True", "a": "1"}, 1: {X64: "True"}}) == []
    assert differences({}) == []


def test_the_value_of_most_is_what_mends() -> None:
    (found,) = differences({0: {X64: "True"}, 1: {X64: "False"}, 2: {X64: "False"}})
    assert found.values == (("False", (1, 2)), ("True", (0,)))
    assert str(found) == "`jax_enable_x64` is False on processes 1-2, True on process 0"
    assert found.mend == "Type `%spmd jax.config.update('jax_enable_x64', False)`."
    text = refusal([found], "jit(f)")
    assert str(found) in text
    assert found.mend in text


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("jax_default_prng_impl", "rbg", "update('jax_default_prng_impl', 'rbg')"),
        ("jax_exec_time_optimization_effort", "0.5", "effort', 0.5)"),
        ("XLA_FLAGS", "--xla_x", "the same environment"),
        ("version of numpy", "2.1", "the same packages"),
    ],
)
def test_what_to_type(name: str, value: str, said: str) -> None:
    (found,) = differences({0: {name: value}, 1: {name: "other"}})
    assert said in found.mend
    (pitfall,) = as_pitfalls([found])
    assert pitfall.kind == "settings"
    assert name in pitfall.message


def report(index: int, pid: int, **settings: str) -> ProcessReport:
    fields: dict[str, Any] = dict.fromkeys(
        (f.name for f in dataclasses.fields(ProcessReport) if f.default is dataclasses.MISSING), 0
    )
    known = {"process_index": index, "pid": pid, "settings": tuple(settings.items())}
    return ProcessReport(**(fields | known))


def reply(index: int, **settings: str) -> CellReply:
    return CellReply(index, None, None, 0.0, 0.0, 0, settings=tuple(settings.items()))


def test_a_process_that_is_replaced_has_forgotten_what_was_set() -> None:
    known = KnownSettings()
    known.joined([report(0, 1, **{X64: "False"}), report(1, 2, **{X64: "False"})])
    known.replied({0: reply(0), 1: reply(1, **{X64: "True"})}, silent=())
    assert [each.name for each in known.differences()] == [X64]
    known.replied(
        {1: reply(1)}, silent=[1]
    )  # what stands for the reply of a silent one says nothing
    assert known.differences()
    known.joined([report(0, 1, **{X64: "False"}), report(1, 3, **{X64: "False"})])
    assert known.differences() == []


# ----------------------------------------------------------- what has failed on some processes only


ONE = NONE.with_one(17, "`jit(f)`")
TWO = ONE.with_one(18, "`jit(g)`")


@pytest.mark.parametrize(
    ("told", "what", "failed", "others"),
    [
        ({0: {ALL: ONE}, 1: {}, 2: {}}, "`jit(f)`", [0], [1, 2]),
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
    if found.others == [1, 2]:
        assert str(found) == (
            "Process 0 failed in `jit(f)`, which processes 1-2 had begun, too: if they were to "
            "meet in it after that, processes 1-2 wait for ever"
        )


@pytest.mark.parametrize(
    "told",
    [
        {},
        {0: {ALL: TWO}, 1: {ALL: TWO}, 2: {ALL: TWO}},
        {0: {(0, 1): ONE}, 1: {(0, 1): ONE}, 2: {}},  # 2 has no part in it
        {0: {ALL: ONE}},  # of the others nothing is known
    ],
)
def test_what_all_have_that_tell_is_no_matter(
    told: dict[int, dict[tuple[int, ...], Failures]],
) -> None:
    assert apart(told) is None


@given(st.lists(st.integers(0, (1 << 61) - 1), max_size=5).flatmap(
    lambda keys: st.tuples(st.just(keys), st.permutations(keys))
))  # fmt: skip
def test_threads_may_fail_in_another_order(orders: tuple[list[int], list[int]]) -> None:
    found = []
    for keys in orders:
        failures = NONE
        for key in keys:
            failures = failures.with_one(key, "").with_one(key, "")  # as an interrupt may do
        found.append(failures)
    assert found[0] == found[1]
