"""From what processes tell of their main threads to a timeline, and to who kept others waiting."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnb.errors import UsageError
from jaxnb.model.insight import SPAN_KINDS, Activity, CallSite, Span, SpanKind
from jaxnb.profile.timelines import (
    MAX_CELLS,
    Interval,
    Timelines,
    Told,
    made,
    painted,
    union_seconds,
)

STEP = CallSite("jit(step)", 5, (0, 1))


def activity(
    started: float,
    calls: Sequence[tuple[float, float]] = (),
    spans: Sequence[Span] = (),
    site: CallSite = STEP,
    first: int = 1,
) -> Activity:
    """What a process tells that dispatched one computation at several times."""
    n = len(calls)
    return Activity(
        started,
        tuple(spans),
        sites=(site,) if n else (),
        numbers=array("I", range(first, first + n)).tobytes(),
        origins=array("I", [0] * n).tobytes(),
        starts=array("d", [start for start, _ in calls]).tobytes(),
        stops=array("d", [stop for _, stop in calls]).tobytes(),
        dispatches=first - 1 + n,
    )


def told(*activities: Activity | None, seconds: float = 1.0) -> dict[int, Told]:
    return {i: Told(each, seconds, "here") for i, each in enumerate(activities)}


def kinds(spans: Sequence[Span]) -> list[tuple[float, float, SpanKind]]:
    rounded = [(round(s.start, 6), round(s.stop, 6), s.kind) for s in spans]
    return [(start, stop, kind) for start, stop, kind in rounded if stop > start]


# ---------------------------------------------------------------------- spans


def test_what_is_within_something_is_what_the_thread_did() -> None:
    found = painted(
        [
            Interval(0, 0.0, 10.0, "python"),
            Interval(1, 1.0, 8.0, "tracing"),
            Interval(1, 2.0, 3.0, "compiling"),
            Interval(1, 5.0, 8.0, "tracing"),
            Interval(0, 20.0, 21.0, "waiting"),
        ]
    )
    assert kinds(found) == [
        (0.0, 1.0, "python"), (1.0, 2.0, "tracing"), (2.0, 3.0, "compiling"),
        (3.0, 8.0, "tracing"), (8.0, 10.0, "python"), (20.0, 21.0, "waiting"),
    ]  # fmt: skip


def intervals() -> st.SearchStrategy[list[Interval]]:
    places = st.integers(0, 30)
    one = st.builds(
        lambda layer, a, b, kind: Interval(layer, float(min(a, b)), float(max(a, b)), kind),
        st.integers(0, 2), places, places, st.sampled_from(SPAN_KINDS),
    )  # fmt: skip
    return st.lists(one, max_size=12)


@given(intervals())
def test_spans_cover_what_intervals_do_and_no_more(found: list[Interval]) -> None:
    spans = painted(found)
    assert all(a.stop <= b.start for a, b in pairwise(spans))
    assert sum(s.seconds for s in spans) == union_seconds((i.start, i.stop) for i in found)
    for span in spans:
        at = span.start + 0.5  # integers: nothing changes within
        there = [i for i in found if i.start <= at < i.stop]
        top = max(i.layer for i in there)
        latest = max(i.start for i in there if i.layer == top)
        assert span.kind in {i.kind for i in there if (i.layer, i.start) == (top, latest)}


# ---------------------------------------------------------------------- timelines


def test_who_came_last_and_for_how_long_the_others_waited() -> None:
    # Process 1 began 0.1 s later. Inline: a call returns when all have come.
    here = activity(100.0, [(0.2, 0.4), (0.5, 0.9)])
    late = activity(100.1, [(0.3, 0.35), (0.7, 0.8)])
    found = made(7, told(here, late))
    assert (found.cell, found.dispatches, found.forgotten, found.hosts) == (7, 2, 0, 1)
    assert found.straggler is not None
    straggler = found.straggler
    assert (straggler.process_index, straggler.came_last, straggler.site) == (1, 2, STEP)
    assert straggler.waited == {0: pytest.approx(0.2 + 0.3)}
    assert kinds(found.processes[0].spans) == [
        (0.0, 0.2, "python"), (0.2, 0.4, "waiting"), (0.4, 0.5, "python"),
        (0.5, 0.8, "waiting"), (0.8, 0.9, "dispatching"), (0.9, 1.0, "python"),
    ]  # fmt: skip
    assert found.processes[1].totals["waiting"] == 0
    assert found.processes[1].start == pytest.approx(0.1)
    assert found.seconds == pytest.approx(1.1)


def test_who_runs_ahead_waits_once() -> None:
    # Asynchronous: calls return at once, and ten are under way when the other comes.
    ahead = activity(0.0, [(0.001 * k, 0.001 * k + 0.0005) for k in range(10)])
    behind = activity(0.0, [(0.1 * (k + 1), 0.1 * (k + 1)) for k in range(10)])
    found = made(1, told(ahead, behind, seconds=2.0))
    assert found.straggler is not None
    assert found.straggler.waited[0] == pytest.approx(1.0)
    # That the main thread waited is not known from that.
    assert found.processes[0].totals["waiting"] < 0.01


def test_what_others_do_not_tell_of_is_not_compared() -> None:
    alone = activity(0.0, [(0.1, 0.2), (0.3, 0.4)])
    found = made(1, told(alone, activity(0.0, [(0.15, 0.2)])))
    assert found.dispatches == 1
    nothing = made(1, told(alone, None))
    assert (nothing.dispatches, list(nothing.processes), list(nothing.missing)) == (0, [0], [1])
    forgot = made(1, told(*[activity(0.0, [(0.1, 0.2)], first=4097)] * 2))
    assert (forgot.dispatches, forgot.forgotten) == (1, 4096)


def test_a_dispatch_that_never_returned_is_no_span() -> None:
    found = made(1, told(activity(0.0, [(0.5, 0.0)]), activity(0.0, [(0.5, 0.0)])))
    assert kinds(found.processes[0].spans) == [(0.0, 1.0, "python")]


def test_the_clocks_of_two_hosts_are_not_compared() -> None:
    requests = {
        0: Told(activity(5.0, [(0.1, 0.2)]), 1.0, "one"),
        1: Told(activity(9000.0, [(0.15, 0.2)]), 1.0, "other"),
    }
    found = made(1, requests)
    assert found.hosts == 2
    assert found.processes[1].start == 0
    assert found.straggler is not None
    assert found.straggler.seconds == pytest.approx(0.05)


def test_the_last_cells_are_kept() -> None:
    kept = Timelines()
    with pytest.raises(UsageError, match="No cell has been run yet"):
        kept.timeline()
    for cell in range(MAX_CELLS + 5):
        kept.note(cell, told(activity(float(cell))))
    assert kept.timeline().cell == MAX_CELLS + 4
    assert kept.timeline(5).cell == 5
    with pytest.raises(UsageError, match=r"no timeline of cell \[4\].*now of 5-204"):
        kept.timeline(4)


def test_fewer_are_kept_where_they_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxnb.profile.timelines.MAX_BYTES", 250)
    kept = Timelines()
    for cell in (1, 2, 3):
        kept.note(cell, told(activity(0.0, [(0.1, 0.2)] * 5)))  # 120 bytes
    with pytest.raises(UsageError, match="now of 2-3"):
        kept.timeline(1)
    kept.note(4, told(activity(0.0, [(0.1, 0.2)] * 50)))  # the last one is, in any case
    assert kept.timeline().cell == 4
    with pytest.raises(UsageError, match="now of 4"):
        kept.timeline(3)


def test_of_two_cells_of_a_number_the_last_is_shown() -> None:
    kept = Timelines()
    kept.note(3, told(activity(0.0)))
    kept.note(3, told(activity(0.0), activity(0.0)))
    assert list(kept.timeline(3).processes) == [0, 1]
