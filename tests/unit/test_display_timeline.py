"""Cards of timelines, timed cells and history: plain text and HTML."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from jaxnb.cells.card_cell import cell_card, timing_card
from jaxnb.cells.result import CellResult, ProcessResult, timing_of
from jaxnb.display.card import Card
from jaxnb.display.html import AMBER
from jaxnb.labels import format_precisely
from jaxnb.model.cells import CellRecord
from jaxnb.model.insight import CallSite, Late, ProcessTimeline, Span, Straggler, Timeline
from jaxnb.profile.card_timeline import dominant, ticks, timeline_card
from jaxnb.session.card_history import history_card
from unit.test_display_cards import EVIL, Tags
from unit.test_history import record

STEP = CallSite("jit(step)", 5, (0, 1))


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
             █ Python   ▓ tracing   ▒ compiling   ░ dispatching   · waiting
  process Python tracing compiling dispatching waiting came last delayed others
        0  1.0 s                                 1.0 s
        1         0.50 s     1.0 s      0.50 s                31          1.0 s
Process 1 was last at 31 of 40 dispatches; process 0 waited up to 1.0 s for it,
most at line 5 (`jit(step)`)."""


def test_the_text_of_a_timeline() -> None:
    text = timeline_card(TIMELINE).text
    assert text.startswith(TEXT)
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
    assert "up to 9 earlier ones count as Python" in text
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
    for card in (timeline_card(evil), history_card([record(code=EVIL, detail=EVIL)])):
        assert "script" not in Tags(card.html).seen


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


def test_columns_show_what_took_most_of_them() -> None:
    found = dominant(process(0, Span(0.0, 0.9, "python"), Span(0.9, 1.0, "waiting")), 2.0, 4)
    assert found == ["python", "python", None, None]


@pytest.mark.parametrize(
    ("seconds", "labels"),
    [(2.0, ["0", "0.5 s", "1.0 s", "1.5 s", "2.0 s"]), (0.03, ["0", "10 ms", "20 ms", "30 ms"]),
     (100.0, ["0", "20 s", "40 s", "60 s", "80 s", "100 s"]),
     (2e-4, ["0", "50 µs", "100 µs", "150 µs", "200 µs"])],
)  # fmt: skip
def test_the_axis(seconds: float, labels: list[str]) -> None:
    assert [label for _, label in ticks(seconds)] == labels


def test_durations_to_three_digits() -> None:
    shown = [format_precisely(s) for s in (0.0, 1.5e-6, 9.996e-4, 0.0123, 0.9996, 61.0)]
    assert shown == ["0.00 µs", "1.50 µs", "1.00 ms", "12.3 ms", "1.00 s", "61.0 s"]


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
    results = {i: ProcessResult(i, None, "", "", (), None, 0.3, 0.0) for i in (0, 1)}
    card = cell_card(CellResult(1, "x", results, 2, 0.4, timing=timing))
    assert card.text.startswith("timed · 3 calls")
    assert card.text.endswith("2 processes · 0.40 s")


def test_a_timed_cell_that_failed() -> None:
    for calls, heading in (
        ({0: (0.1, 0.2, 0.2), 1: (0.1, 0.3)}, "timed · 1 to 2 calls after the first, as not all"),
        ({0: (0.1,), 1: ()}, "timed · no call after the first"),
    ):
        card = timing_card(timing_of(calls))
        Tags(card.html)
        assert card.text.startswith(heading)


def card_of(*records: CellRecord, forgotten: int = 0) -> Card:
    return history_card(records, forgotten)


def test_the_history() -> None:
    card = card_of(
        record(3, code="y = step(x)", lines=4, seconds=1.5, compile_seconds=0.25, compiles=1,
               dispatches=41, processes=(0, 1, 3)),
        record(4, code="1/0", outcome="error", detail="process 1 raised ZeroDivisionError"),
    )  # fmt: skip
    assert card.text.splitlines()[:4] == [
        "2 cells · 1.6 s in all · 1 not ok",
        "  cell began    on      took compile disp. outcome lines code",
        "   [3] 12:00:00 0-1,3  1.5 s  0.25 s    41 ok          4 y = step(x)",
        "   [4] 12:00:00 0     0.10 s               error       1 1/0",
    ]
    Tags(card.html)
    assert f'color:{AMBER}">error' in card.html
    assert "raised ZeroDivisionError" in card.html


def test_columns_of_which_nothing_is_known_are_left_out() -> None:
    assert "alloc." not in card_of(record()).text
    shown = card_of(
        record(allocated_bytes={0: 1 << 20, 1: -(1 << 22)}, dispatches=1234567, code="x" * 90,
               compile_seconds=12.0, compiles=3, outcome="interrupted", processes=(0, 2, 4, 6))
    ).text  # fmt: skip
    assert "−4.00 MiB" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert card_of().text == "0 cells"


def test_what_all_cells_have_in_common_is_said_once_and_new_processes_are_a_row() -> None:
    card = card_of(record(1, processes=(0, 1)), record(2, processes=(0, 1), starts=2))
    assert card.text.splitlines() == [
        "2 cells · 0.20 s in all · on processes 0-1",
        "  cell began      took outcome lines code",
        "   [1] 12:00:00 0.10 s ok          1 x",
        "                                     new processes",
        "   [2] 12:00:00 0.10 s ok          1 x",
    ]
    assert re.findall("<th style[^>]*>(.*?)</th>", card.html) == ["cell", "code", "outcome", "took"]


def test_a_long_history() -> None:
    card = card_of(*(record(i, code="x" * 300) for i in range(250)), forgotten=5)
    assert "the last 100 shown" in card.text
    assert "5 before them not in it" in card.text
    assert max(map(len, card.text.splitlines())) <= 80
