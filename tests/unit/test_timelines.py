"""From what processes say of their main threads to a timeline and its card."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnb.cells.card_cell import cell_card, timing_card
from jaxnb.cells.result import timing_of
from jaxnb.errors import UsageError
from jaxnb.model.insight import (
    SPAN_KINDS,
    Activity,
    CallSite,
    Late,
    ProcessTimeline,
    Span,
    SpanKind,
    Straggler,
    Timeline,
)
from jaxnb.profile.card_timeline import timeline_card
from jaxnb.profile.timelines import (
    MAX_CELLS,
    Interval,
    Timelines,
    Told,
    painted,
    timeline_of,
    union_seconds,
)
from support.cards import EVIL, Tags, cell

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
        used=array("d", [0.0] * n).tobytes(),
    )


def told(*activities: Activity | None, seconds: float = 1.0) -> dict[int, Told]:
    return {i: Told(each, seconds, "here") for i, each in enumerate(activities)}


def kinds(spans: Sequence[Span]) -> list[tuple[float, float, SpanKind]]:
    rounded = [(round(s.start, 6), round(s.stop, 6), s.kind) for s in spans]
    return [(start, stop, kind) for start, stop, kind in rounded if stop > start]


# ---------------------------------------------------------------------- spans


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
    found = timeline_of(7, told(here, late))
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


def test_between_hosts_milliseconds_name_nobody() -> None:
    apart = [activity(0.0, [(at, 0.9)]) for at in (0.1, 0.108)]
    here = told(*apart)
    assert timeline_of(1, here).straggler is not None
    assert timeline_of(1, {**here, 1: replace(here[1], host="there")}).straggler is None


def test_what_other_threads_used_of_the_processor_is_computing() -> None:
    """From one dispatch to the next; not more than the time there was, nor while it was held."""
    calls = [(0.1, 0.2), (0.5, 0.6)]
    used = array("d", [0.0, 0.3]).tobytes()  # nothing is known of the first
    busy = replace(activity(0.0, calls), used=used, used_at_end=5.0)
    late = activity(0.0, [(0.1, 0.2), (0.55, 0.6)])
    spans = timeline_of(1, told(busy, replace(late, used=used))).processes[0].spans
    assert kinds(spans) == [
        (0.0, 0.3, "computing"), (0.3, 0.5, "python"), (0.5, 0.55, "waiting"),
        (0.55, 1.0, "computing"),
    ]  # fmt: skip


def test_what_a_compiler_uses_is_no_computing() -> None:
    events = (Span(0.5, 0.6, "compiling"), Span(0.6, 0.9, "compiling"))
    compiles = replace(
        activity(0.0, []), spans=events, compiled=((0.6, 0.1), (0.9, 1.2)), used_at_end=1.2
    )
    assert kinds(timeline_of(1, told(compiles)).processes[0].spans) == [
        (0.0, 0.1, "computing"), (0.1, 0.5, "python"), (0.5, 0.9, "compiling"),
        (0.9, 1.0, "python"),
    ]  # fmt: skip


def test_who_runs_ahead_waits_once() -> None:
    # Asynchronous: calls return at once, and ten are under way when the other comes.
    ahead = activity(0.0, [(0.001 * k, 0.001 * k + 0.0005) for k in range(10)])
    behind = activity(0.0, [(0.1 * (k + 1), 0.1 * (k + 1)) for k in range(10)])
    found = timeline_of(1, told(ahead, behind, seconds=2.0))
    assert found.straggler is not None
    assert found.straggler.waited[0] == pytest.approx(1.0)
    # That the main thread waited is not known from that.
    assert found.processes[0].totals["waiting"] < 0.01


def test_what_others_do_not_tell_of_is_not_compared() -> None:
    alone = activity(0.0, [(0.1, 0.2), (0.3, 0.4)])
    assert timeline_of(1, told(alone, activity(0.0, [(0.15, 0.2)]))).dispatches == 1
    nothing = timeline_of(1, told(alone, None))
    assert (nothing.dispatches, list(nothing.processes), list(nothing.missing)) == (0, [0], [1])
    forgot = timeline_of(1, told(*[activity(0.0, [(0.1, 0.2)], first=4097)] * 2))
    assert (forgot.dispatches, forgot.forgotten) == (1, 4096)


def test_a_dispatch_that_never_returned_is_no_span() -> None:
    found = timeline_of(1, told(activity(0.0, [(0.5, 0.0)]), activity(0.0, [(0.5, 0.0)])))
    assert kinds(found.processes[0].spans) == [(0.0, 1.0, "python")]


def test_the_clocks_of_two_hosts_are_not_compared() -> None:
    requests = {
        0: Told(activity(5.0, [(0.1, 0.2)]), 1.0, "one"),
        1: Told(activity(9000.0, [(0.15, 0.2)]), 1.0, "other"),
    }
    found = timeline_of(1, requests)
    assert found.hosts == 2
    assert found.processes[1].start == 0
    assert found.straggler is not None
    assert found.straggler.seconds == pytest.approx(0.05)


def test_the_last_cells_are_kept() -> None:
    kept = Timelines()
    with pytest.raises(UsageError, match="No cell has been run yet"):
        kept.timeline()
    for number in range(MAX_CELLS + 5):
        kept.note(number, told(activity(float(number))))
    assert kept.timeline().cell == MAX_CELLS + 4
    assert kept.timeline(5).cell == 5
    with pytest.raises(UsageError, match=r"no timeline of cell \[4\].*now those of 5-204"):
        kept.timeline(4)


def test_fewer_are_kept_where_they_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxnb.profile.timelines.MAX_BYTES", 250)
    kept = Timelines()
    for number in (1, 2, 3):
        kept.note(number, told(activity(0.0, [(0.1, 0.2)] * 5)))  # 120 bytes
    with pytest.raises(UsageError, match="now those of 2-3"):
        kept.timeline(1)
    kept.note(4, told(activity(0.0, [(0.1, 0.2)] * 50)))  # the last one is, in any case
    assert kept.timeline().cell == 4
    with pytest.raises(UsageError, match="now those of 4"):
        kept.timeline(3)


# ---------------------------------------------------------------------- cards


def process(index: int, *spans: Span, **settings: object) -> ProcessTimeline:
    return ProcessTimeline(index, 0.0, 2.0, spans, **settings)  # type: ignore[arg-type]


HERE = process(0, Span(0.0, 0.5, "python"), Span(0.5, 1.5, "waiting"), Span(1.5, 2.0, "python"))
LATE = process(1, Span(0.0, 1.0, "compiling"), Span(1.0, 1.5, "tracing"),
               Span(1.5, 2.0, "dispatching"))  # fmt: skip
TIMELINE = Timeline(
    7, {0: HERE, 1: LATE}, {}, 40,
    lates=(Late(1, STEP, 1, 1.5, {0: 1.0}),), stragglers=(Straggler(1, 31, {0: 1.0}, STEP),),
)  # fmt: skip

TEXT = """\
cell [7] · 2 processes · 2.0 s · 40 dispatches compared
  process 0  █████████████████·································█████████████████
  process 1  ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓░░░░░░░░░░░░░░░░░
             0                0.5 s            1.0 s           1.5 s       2.0 s
             █ other   ▓ tracing   ▒ compiling   ░ dispatching   · waiting
  process other tracing compiling dispatching waiting last delayed
        0 1.0 s                                 1.0 s
        1        0.50 s     1.0 s      0.50 s           31   1.0 s
Process 1 was last at 31 of 40 dispatches; process 0 waited up to 1.0 s for it,
most at line 5 (`jit(step)`)."""


def test_the_text_of_a_timeline() -> None:
    text = timeline_card(TIMELINE).text
    assert text.startswith(TEXT)
    assert max(map(len, text.splitlines())) <= 80
    every = [Span(i / 4, (i + 1) / 4, kind) for i, kind in enumerate(SPAN_KINDS)]
    text = timeline_card(replace(TIMELINE, processes={0: HERE, 1: process(1, *every)})).text
    assert "░ dispatching   # computing   · waiting" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_picture() -> None:
    html = timeline_card(TIMELINE).html
    Tags(html)
    assert html.count('<i style="width:') == 6
    assert "process 0: waiting, 500 ms to 1.50 s" in html
    assert "1.5 s</span>" in html


def test_what_a_process_did_not_tell() -> None:
    ended = replace(HERE, ending="raised ValueError at line 3", dropped=9)
    text = timeline_card(
        replace(TIMELINE, processes={0: ended}, missing={1: "it did not come back"}, stragglers=(),
                lates=(), forgotten=12, hosts=2)
    ).text.replace("\n", " ")  # fmt: skip
    assert "Process 0 raised ValueError at line 3." in text
    assert "Process 1: no timeline (it did not come back)." in text
    assert "No process kept the others waiting" in text
    assert "12 earlier ones are not in it" in text
    assert "up to 9 earlier ones count as other" in text
    assert "clocks of 2 hosts" in text
    nobody = timeline_card(replace(TIMELINE, processes={}, stragglers=(), lates=()))
    assert nobody.text.startswith("cell [7] · 0 processes")


def test_names_cannot_leave_their_text() -> None:
    site = CallSite(EVIL, 5, (0, 1))
    evil = replace(
        TIMELINE,
        stragglers=(Straggler(1, 1, {0: 1.0}, site),),
        lates=(Late(1, site, 1, 1.5, {0: 1.0}),),
        processes={0: replace(HERE, ending=f"raised {EVIL}"), 1: LATE},
    )
    assert "script" not in Tags(timeline_card(evil).html).seen


def test_many_processes_and_collectives() -> None:
    everyone = {i: replace(HERE, process_index=i) for i in range(100)}
    lates = tuple(Late(k, STEP, 99, 0.01 * k, {0: 0.005}) for k in range(150))
    straggler = Straggler(99, 150, {0: 0.7}, STEP)
    card = timeline_card(
        replace(TIMELINE, processes=everyone, lates=lates, stragglers=(straggler,))
    )
    Tags(card.html)
    assert "… 36 more processes" in card.text
    assert "Process 99 was last at 150 of 40 dispatches" in card.text
    busy = replace(HERE, spans=tuple(
        Span(k / 1e4, (k + 1) / 1e4, "python" if k % 2 else "waiting") for k in range(20_000)
    ))  # fmt: skip
    assert len(timeline_card(replace(TIMELINE, processes={0: busy})).html) < 200_000


def test_a_timed_cell() -> None:
    timing = timing_of({0: (0.12, 0.001, 0.0012, 0.0014), 1: (0.2, 0.002, 0.002, 0.0021)})
    lines = timing_card(timing).text.splitlines()
    assert lines[:4] == [
        "timed · 3 calls after the first · 2.00 ms on the slowest process",
        "  process  first call   median        middle half  fastest  slowest",
        "        0      120 ms  1.20 ms  1.10 ms – 1.30 ms  1.00 ms  1.40 ms",
        "        1      200 ms  2.00 ms  2.00 ms – 2.05 ms  2.00 ms  2.10 ms",
    ]
    html = timing_card(timing).html
    Tags(html)
    assert "1.10 ms – 1.30 ms" in html
    card = cell_card(replace(cell([None] * 2), timing=timing))
    assert card.text.startswith("timed · 3 calls")
    assert card.text.endswith("2 processes · 0.31 s")
    for calls, heading in (
        ({0: (0.1, 0.2, 0.2), 1: (0.1, 0.3)}, "timed · 1 to 2 calls after the first, as not all"),
        ({0: (0.1,), 1: ()}, "timed · no call after the first"),
    ):
        assert timing_card(timing_of(calls)).text.startswith(heading)
