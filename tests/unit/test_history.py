"""Times and history of cells, without processes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from jaxnb.cells.outcome import outcome_of
from jaxnb.cells.process_repeating import LEAST_REPEATS, MOST_REPEATS, calls_to_come
from jaxnb.cells.result import (
    CellResult,
    ProcessResult,
    calls_of,
    timing_of,
)
from jaxnb.display.html import AMBER
from jaxnb.errors import CellTimeoutError, ProcessDiedError, UsageError
from jaxnb.model.cells import CellMemory, CellRecord, ProcessError
from jaxnb.model.dispatches import Trail
from jaxnb.pitfalls.findings import FirstNan
from jaxnb.session.card_history import history_card
from jaxnb.session.records import MAX_CELLS, CellHistory, record_of
from support.cards import EVIL, Tags


def process(index: int, seconds: float = 0.5, stdout: str = "") -> ProcessResult:
    return ProcessResult(index, None, stdout, "", (), None, seconds, 0.25, 2)


def result(**settings: Any) -> CellResult:
    return CellResult(7, "\n  a = 1\nb", {0: process(0), 2: process(2, 0.75)}, 4, 1.0, **settings)


def record(cell: int = 1, **settings: Any) -> CellRecord:
    known = {"began": "2026-01-31T12:00:00.000+00:00", "code": "x", "lines": 1, "processes": (0,),
             "seconds": 0.1, "process_seconds": 0.1, "compile_seconds": 0.0, "compiles": 0,
             "dispatches": 0, "outcome": "ok"}  # fmt: skip
    return CellRecord(cell=cell, **{**known, **settings})  # type: ignore[arg-type]


# ---------------------------------------------------------------------- times


def test_the_first_call_is_apart() -> None:
    timing = timing_of({0: (9.0, 1.0, 2.0, 3.0, 4.0), 1: (8.0, 5.0), 2: ()})
    zero, one, two = timing.per_process.values()
    assert (zero.first, zero.median, zero.spread) == (9.0, 2.5, (1.75, 3.25))
    assert (zero.fastest, zero.slowest) == (1.0, 4.0)
    assert (one.median, one.spread) == (5.0, None)
    assert (two.first, two.median, two.spread, two.fastest) == (None, None, None, None)
    assert (timing.repeats, timing.median) == (0, None)
    assert timing_of({0: (9.0, 1.0), 1: (8.0, 5.0)}).median == 5.0


def test_as_many_repeats_as_fit_into_a_second() -> None:
    least, most = LEAST_REPEATS - 1, MOST_REPEATS - 1
    found = [calls_to_come(took) for took in (1e-9, 0.01, 0.3, 0.9, 5.0, 11.0)]
    assert found == [most, 99, 3, least, least, 0]


def test_the_number_that_the_user_wants() -> None:
    assert calls_of(None) is None
    assert calls_of(1) == 2
    assert calls_of(40) == 41
    for bad in (0, -3, 10**6, "9", 2.0, True):
        with pytest.raises(UsageError, match="number of repeats"):
            calls_of(bad)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- records


def test_what_is_kept_of_a_cell() -> None:
    trails = {0: (Trail((0, 2), 3), Trail((0, 1, 2, 3), 2)), 2: (Trail((0, 2), 3),)}
    kept = record_of(
        result(),
        began=datetime(2026, 1, 31, 12, tzinfo=UTC),
        trails=trails.values(),
        outcome="error",
        detail="boom\n" + "x" * 400,
        generation=2,
    )
    assert (kept.cell, kept.code, kept.lines, kept.processes) == (7, "a = 1", 2, (0, 2))
    assert datetime.fromisoformat(kept.began) == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert (kept.seconds, kept.process_seconds, kept.compile_seconds, kept.compiles) == (
        1.0, 0.75, 0.25, 2,
    )  # fmt: skip
    assert kept.dispatches == 5
    assert (kept.outcome, kept.generation) == ("error", 2)
    assert kept.detail.startswith("boom x")
    assert len(kept.detail) == 300
    assert kept.allocated_bytes == {}


def test_bytes_by_device() -> None:
    memory = (CellMemory(4, 100, 350, 400), CellMemory(5, 8, 7, 900, "process"))
    one = ProcessResult(0, None, "", "", (), None, 0.5, 0.0, memory=memory)
    kept = record_of(
        CellResult(1, "x", {0: one}, 1, 1.0),
        began=datetime.now(),
        trails=None,
        outcome="ok",
        detail="",
        generation=0,
    )
    assert (kept.allocated_bytes, kept.peak_bytes) == ({4: 250, 5: -1}, {4: 400})
    assert kept.dispatches is None


def test_how_a_cell_ended() -> None:
    def outcome(error: object = None, of: CellResult | None = None, **how: bool) -> str:
        known = {"is_parted": False, "was_abandoned": False, "was_interrupted": False}
        return outcome_of(of or result(), error, **{**known, **how})

    assert outcome() == "ok"
    rests = replace(result(), suspect="`w` was not equal on all processes")
    assert outcome(of=rests) == "suspect"
    assert outcome(of=rests, is_parted=True) == "diverged"
    assert outcome(of=replace(rests, first_nan=FirstNan(7, {}, {}))) == "nan"
    assert outcome(is_parted=True) == "diverged"
    assert outcome(ValueError("x"), is_parted=True) == "error"
    stopped = ProcessError("DivergenceError", "They do not agree", "", "")
    all_were = replace(result(), per_process={0: replace(result().per_process[0], error=stopped)})
    assert outcome(ValueError("x"), of=all_were, is_parted=True) == "diverged"
    assert outcome(ValueError("x"), was_interrupted=True) == "interrupted"
    timed_out = CellTimeoutError("x", result=result(), rendering="")
    assert outcome(timed_out, was_interrupted=True) == "timed out"
    died = ProcessDiedError("x", process_index=0, pid=1)
    assert outcome(died, was_interrupted=True) == "died"
    assert outcome(died, was_abandoned=True) == "abandoned"


def test_json_lines(tmp_path: Path) -> None:
    history = CellHistory()
    for cell in (1, 2):
        history.note(record(cell, allocated_bytes={2048: 5}, detail="é\n<b>"))
    file = tmp_path / "cells.jsonl"
    assert history.to_jsonl(file) == 2
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["cell"] for line in lines] == [1, 2]
    assert lines[0]["allocated_bytes"] == {"2048": 5}
    assert lines[0]["detail"] == "é\n<b>"
    file.write_text("precious")
    with pytest.raises(UsageError, match=r"exists. Nothing was written.*--overwrite"):
        history.to_jsonl(file)
    assert file.read_text() == "precious"
    assert history.last(1).to_jsonl(str(file), overwrite=True) == 1
    assert len(file.read_text().splitlines()) == 1


def test_it_is_bounded_and_says_so() -> None:
    history = CellHistory()
    for cell in range(MAX_CELLS + 3):
        history.note(record(cell))
    assert (len(history), history.forgotten, history[0].cell) == (MAX_CELLS, 3, 3)
    last = history.last(2)
    assert ([each.cell for each in last], last.forgotten) == (
        [MAX_CELLS + 1, MAX_CELLS + 2], MAX_CELLS + 1,
    )  # fmt: skip
    assert len(history[-2:]) == 2
    assert history[-1].cell == MAX_CELLS + 2


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("# Train\nimport jax\nfrom a.b import c\n\nstep(x)", "step(x)"),
        ("import jax\n# no more", "import jax"),
        ("", ""),
    ],
)
def test_a_cell_is_known_by_its_first_line_that_tells_something(code: str, told: str) -> None:
    found = record_of(
        replace(result(), code=code),
        began=datetime.now(UTC), trails=None, outcome="ok", detail="", generation=0,
    )  # fmt: skip
    assert found.code == told


def test_the_history() -> None:
    card = history_card([
        record(3, code="y = step(x)", lines=4, seconds=1.5, compile_seconds=0.25, compiles=1,
               dispatches=41, processes=(0, 1, 3)),
        record(4, code="1/0", outcome="error", detail=f"process 1 raised {EVIL}"),
    ])  # fmt: skip
    assert card.text.splitlines()[:4] == [
        "2 cells · 1.6 s in all · 1 not ok",
        "  cell began    on      took compile disp. outcome lines code",
        "   [3] 12:00:00 0-1,3  1.5 s  0.25 s    41 ok          4 y = step(x)",
        "   [4] 12:00:00 0     0.10 s               error       1 1/0",
    ]
    assert "script" not in Tags(card.html).seen
    assert f'color:{AMBER}">error' in card.html
    assert "raised &lt;script" in card.html


def test_columns_of_which_nothing_is_known_are_left_out() -> None:
    assert "alloc." not in history_card([record()]).text
    shown = history_card([
        record(allocated_bytes={0: 1 << 20, 1: -(1 << 22)}, dispatches=1234567, code="x" * 90,
               compile_seconds=12.0, compiles=3, outcome="interrupted", processes=(0, 2, 4, 6))
    ]).text  # fmt: skip
    assert "−4.00 MiB" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert history_card([]).text == "0 cells"


def test_what_all_cells_have_in_common_is_said_once_and_new_processes_are_a_row() -> None:
    card = history_card([record(1, processes=(0, 1)), record(2, processes=(0, 1), starts=2)])
    assert card.text.splitlines() == [
        "2 cells · 0.20 s in all · on processes 0-1",
        "  cell began      took outcome lines code",
        "   [1] 12:00:00 0.10 s ok          1 x",
        "                                     new processes",
        "   [2] 12:00:00 0.10 s ok          1 x",
    ]
    assert re.findall("<th style[^>]*>(.*?)</th>", card.html) == ["cell", "code", "outcome", "took"]


def test_a_long_history() -> None:
    card = history_card([record(i, code="x" * 300) for i in range(250)], forgotten=5)
    assert "the last 100 shown" in card.text
    assert "5 before them not in it" in card.text
    assert max(map(len, card.text.splitlines())) <= 80
