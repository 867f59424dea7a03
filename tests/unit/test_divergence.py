"""Recordings that part, and the words for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnb.divergence import agree, cause_of, compare, describe, disagreement, is_mismatch, sides
from jaxnb.model import Dispatch, Recording, Trail

ALL = (0, 1, 2)


def dispatch(number: int, fingerprint: int, line: int = 1, **more: object) -> Dispatch:
    made = Dispatch(
        number=number,
        name=f"jit(f{fingerprint})",
        fingerprint=fingerprint,
        shapes="float32[8] -> float32[]",
        processes=ALL,
        line=line,
        seconds=number / 10,
        collectives=True,
    )
    return replace(made, **more)  # type: ignore[arg-type]


def recording(index: int, made: Sequence[Dispatch], kept: int = 100) -> Recording:
    counts = {p: sum(d.processes == p for d in made) for p in {d.processes for d in made}}
    trails = tuple(
        Trail(p, n, hash(tuple((d.fingerprint, d.inputs, d.end) for d in made if d.processes == p)))
        for p, n in sorted(counts.items())
    )
    return Recording(index, trails, tuple(made[-kept:]))


def recordings(*made: Sequence[int]) -> dict[int, Recording]:
    """Each process's dispatches, by fingerprint; a line is ten times that."""
    return {
        i: recording(i, [dispatch(n, f, 10 * f) for n, f in enumerate(each, 1)])
        for i, each in enumerate(made)
    }


def test_those_who_did_the_same_agree() -> None:
    found = recordings([1, 2, 1], [1, 2, 1], [1, 2, 1])
    assert agree({i: each.trails for i, each in found.items()})
    assert compare(7, found, {}) is None
    assert agree({0: (), 1: (), 2: ()})
    assert compare(7, {}, {}) is None


@pytest.mark.parametrize(
    ("made", "number", "kind", "who"),
    [
        (([1, 2], [2, 1], [1, 2]), 1, "order", [(0, 2), (1,)]),
        (([1, 2], [1, 3], [1, 2]), 2, "computation", [(0, 2), (1,)]),
        (([1, 2], [1], [1, 2]), 2, "missing", [(0, 2), (1,)]),
        (([1, 2, 2], [1, 2], [1, 2]), 3, "missing", [(0,), (1, 2)]),
        (([], [], [4]), 1, "missing", [(2,), (0, 1)]),
    ],
)
def test_the_first_that_differs_is_named(
    made: Sequence[Sequence[int]], number: int, kind: str, who: list[tuple[int, ...]]
) -> None:
    found = recordings(*made)
    assert not agree({i: each.trails for i, each in found.items()})
    parted = compare(7, found, {})
    assert parted is not None
    assert (parted.cell, parted.number, parted.kind, parted.pending) == (7, number, kind, True)
    assert [side.processes for side in parted.sides] == who
    text = describe(parted)
    assert f"The processes parted in cell [7], at dispatch {number} over processes 0-2: " in text
    assert "cannot be trusted" in text


def test_one_name_with_other_shapes() -> None:
    made = {
        i: [dispatch(1, i == 1, name="jit(f)", shapes="f[9]" if i == 1 else "f[8]")] for i in ALL
    }
    parted = compare(7, {i: recording(i, each) for i, each in made.items()}, {})
    assert parted is not None
    assert parted.kind == "shapes"
    assert "process 1 dispatched jit(f) f[9] at line 1" in describe(parted)


def test_other_inputs_leave_nothing_pending() -> None:
    found = {i: recording(i, [dispatch(1, 5, inputs=i)]) for i in ALL}
    parted = compare(7, found, {})
    assert parted is not None
    assert (parted.kind, parted.pending) == ("inputs", False)
    assert "all dispatched jit(f5) float32[8] -> float32[] at line 1, with other inputs on" in (
        describe(parted)
    )


def test_without_collectives_nothing_is_pending() -> None:
    made = [[dispatch(1, 1, collectives=False)], [], [dispatch(1, 1, collectives=False)]]
    parted = compare(7, {i: recording(i, each) for i, each in enumerate(made)}, {})
    assert parted is not None
    assert (parted.kind, parted.pending) == ("missing", False)


def test_after_an_interrupt_in_a_dispatch_nobody_knows() -> None:
    """All may have been struck alike: each one may run or not."""
    found = {i: recording(i, [dispatch(1, 1, end="interrupted")]) for i in ALL}
    parted = compare(7, found, {})
    assert parted is not None
    assert (parted.kind, parted.pending) == ("failed", True)


def test_all_may_fail_alike() -> None:
    found = {i: recording(i, [dispatch(1, 1, end="failed")]) for i in ALL}
    assert compare(7, found, {}) is None
    found[1] = recording(1, [dispatch(1, 1)])
    parted = compare(7, found, {})
    assert parted is not None
    assert parted.kind == "failed"


def test_notes_say_why_a_process_made_none() -> None:
    found = recordings([1], [], [1])
    del found[2]
    parted = compare(7, found, {1: "raised ValueError at line 3", 2: "was not asked"})
    assert parted is not None
    assert "process 1 dispatched nothing (raised ValueError at line 3)" in describe(parted)
    assert "process 2 dispatched nothing (was not asked)" in describe(parted)


def test_computations_over_some_are_compared_among_those() -> None:
    pair, other = (0, 1), (1, 2)
    made = [
        [dispatch(1, 1, processes=pair)],
        [dispatch(1, 2, processes=other), dispatch(1, 1, processes=pair)],
        [dispatch(1, 2, processes=other)],
    ]
    found = {i: recording(i, each) for i, each in enumerate(made)}
    assert agree({i: each.trails for i, each in found.items()})
    assert compare(7, found, {}) is None
    found[2] = recording(2, [])
    parted = compare(7, found, {})
    assert parted is not None
    assert [side.processes for side in parted.sides] == [(1,), (2,)]


def test_what_is_no_longer_remembered_is_said() -> None:
    made = {i: [dispatch(n, i == 1 and n > 5) for n in range(1, 2000)] for i in ALL}
    found = {i: recording(i, each, kept=100) for i, each in made.items()}
    parted = compare(7, found, {})
    assert parted is not None
    assert parted.number == 0
    assert "that are no longer remembered" in describe(parted)


def test_what_parted_before_anything_remembered_is_not_lost() -> None:
    made = {i: [dispatch(n, i == 1 and n == 5) for n in range(1, 2000)] for i in ALL}
    found = {i: recording(i, each, kept=100) for i, each in made.items()}
    parted = compare(7, found, {})
    assert parted is not None
    assert (parted.number, parted.pending) == (0, True)
    assert describe(parted).startswith(
        "The processes parted in cell [7], so early that the dispatch is no longer remembered: "
        "processes 0,2 (1999 in all) apart from process 1 (1999 in all)."
    )
    nothing = {i: replace(each, dispatches=()) for i, each in found.items()}
    assert compare(7, nothing, {}) == parted


@given(st.lists(st.lists(st.integers(1, 3), max_size=6), min_size=3, max_size=3))
def test_trails_and_recordings_agree_on_whether_they_agree(made: list[list[int]]) -> None:
    found = recordings(*made)
    parted = compare(7, found, {})
    assert (parted is None) == agree({i: each.trails for i, each in found.items()})
    if parted is not None:
        prefix = parted.number - 1
        assert len({tuple(each[:prefix]) for each in made}) == 1
        assert len({tuple(each[: prefix + 1]) for each in made}) > 1


def test_of_the_dead_nothing_is_known() -> None:
    found = recordings([1, 2], [2, 1], [])
    assert compare(7, recordings([1, 2], [1, 2], []), {}, {2}) is None
    parted = compare(7, found, {}, {2})
    assert parted is not None
    assert (parted.kind, [side.processes for side in parted.sides]) == ("order", [(0,), (1,)])
    assert "at dispatch 1 over processes 0-2: process 0 dispatched" in describe(parted)
    assert compare(7, found, {}, {1, 2}) is None
    assert compare(7, found, {}, ALL) is None


def test_where_processes_were_stopped_only_what_differs_is_a_mismatch() -> None:
    further = compare(7, recordings([1, 2], [1], [1]), {})
    assert further is not None
    assert not is_mismatch(further)
    struck = [dispatch(1, 1, end="interrupted" if i else "") for i in ALL]
    stopped = compare(7, {i: recording(i, [each]) for i, each in enumerate(struck)}, {})
    assert stopped is not None
    assert not is_mismatch(stopped)
    struck[1] = dispatch(1, 2, end="interrupted")
    other = compare(7, {i: recording(i, [each]) for i, each in enumerate(struck)}, {})
    assert other is not None
    assert other.kind == "computation"
    assert is_mismatch(other)
    swapped = compare(7, recordings([1, 2, 3], [2, 1], [1]), {})
    assert swapped is not None
    assert is_mismatch(swapped)


def test_a_mismatch_comes_first_of_who_was_stopped() -> None:
    pair = (0, 1)
    later = [replace(dispatch(1, f, processes=pair), seconds=9.0) for f in (1, 2)]
    made = [[dispatch(1, 1), later[0]], [later[1]], [dispatch(1, 1)]]
    found = {i: recording(i, each) for i, each in enumerate(made)}
    first, cut = compare(7, found, {}), compare(7, found, {}, was_cut=True)
    assert first is not None
    assert cut is not None
    assert (first.kind, cut.kind) == ("missing", "computation")


def test_what_parted_long_ago_is_a_mismatch_if_all_came_as_far() -> None:
    made = {i: [dispatch(n, i == 1 and n == 5) for n in range(1, 2000)] for i in ALL}
    found = {i: recording(i, each, kept=100) for i, each in made.items()}
    parted = compare(7, found, {}, was_cut=True)
    assert parted is not None
    assert is_mismatch(parted)


def test_an_interrupt_long_ago_is_no_mismatch() -> None:
    made = {i: [dispatch(n, 1) for n in range(1, 200)] for i in ALL}
    found = {i: recording(i, each, kept=100) for i, each in made.items()}
    for i, each in found.items():
        found[i] = replace(each, trails=(replace(each.trails[0], struck=1),))
    assert not agree({i: each.trails for i, each in found.items()})
    parted = compare(7, found, {})
    assert parted is not None
    assert (parted.number, parted.kind, parted.pending) == (0, "failed", True)
    assert not is_mismatch(parted)


def test_strict_mode_says_that_nothing_has_run() -> None:
    at = {0: dispatch(3, 1, 4), 1: None, 2: dispatch(3, 1, 4)}
    text = disagreement(sides(at, {1: "raised ValueError at line 2"}), dispatch(3, 1, 4))
    assert "do not agree on dispatch 3 over processes 0-2: processes 0,2: was to dispatch" in text
    assert "process 1: raised ValueError at line 2. Nothing of it has run" in text
    assert "can be trusted" in text


def test_strict_mode_says_once_what_all_were_to_dispatch() -> None:
    at = {i: replace(dispatch(1, 1, 4), inputs=i) for i in ALL}
    texts = {disagreement(sides({me: at[me], **at}, {}), at[me]) for me in ALL}
    assert texts == {
        "The processes do not agree on dispatch 1 over processes 0-2: all were to dispatch "
        "jit(f1) float32[8] -> float32[] at line 4, but with different inputs on processes 0 / 1 / "
        "2. Nothing of it has run on any of them, so nobody waits and all that was computed before "
        "can be trusted."
    }
    at = {i: replace(dispatch(1, 1, 4), fingerprint=7 + (i == 1)) for i in ALL}
    assert "at line 4, but different programs on processes 0,2 / 1." in disagreement(
        sides(at, {}), at[0]
    )


def test_who_all_agree_but_for_their_replicas_has_other_inputs() -> None:
    at = {i: dispatch(1, 1, 4) for i in ALL}
    assert cause_of(sides(at, {})) == "input"
    assert cause_of(sides({0: at[0]}, {})) == "missing"


def test_strict_mode_tells_of_one_that_has_made_fewer() -> None:
    at = {0: dispatch(3, 1, 4), 1: dispatch(2, 1, 4), 2: dispatch(3, 1, 4)}
    text = disagreement(sides(at, {}), dispatch(3, 1, 4))
    assert "processes 0,2: was to dispatch jit(f1)" in text
    assert "process 1: was to dispatch jit(f1) float32[8] -> float32[] at line 4, as disp" in text
    assert "as dispatch 2. Nothing of it has run on any of them, but some have made" in text
