"""What is kept of a cell that prints without end, and what waits for other output."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jaxnb.cells import allowance, process_output
from jaxnb.cells.allowance import TAIL_CHARS, Allowance, dropped_texts, flood_text, share_of
from jaxnb.cells.merge_output import MergedLine
from jaxnb.cells.sinks import MAX_CHARS, MAX_STRAYS, Ended, Held, HeldOutput, Strays
from jaxnb.labels import format_count, plural
from jaxnb.magics import sinks
from jaxnb.model.cells import RichOutput, StreamChunk
from jaxnb.wire.messages import ClearOutput, Display, Dropped, Exchange


def written(given: Allowance, texts: list[str], seconds: float = 0.0) -> str:
    return "".join(given.take(text, lambda: seconds) for text in texts)


def test_the_end_of_the_rest_follows_its_count():
    few = Allowance(3, 100, 0.0)
    assert written(few, ["a\n", "b", "\n", "c\n"]) + few.end() == "a\nb\nc\n"
    one = Allowance(1, 100, 0.0)
    assert (written(one, ["a\nb\nc\n"]), one.end(), one.dropped_chars) == ("a\n", "b\nc\n", 0)
    given = Allowance(3, 10**9, 0.0)
    lines = [f"line {i:06}\n" for i in range(10_000)]
    assert written(given, lines) == "".join(lines[:3])
    first, *kept = given.end().splitlines(keepends=True)
    missing = 10_000 - 3 - len(kept)
    count = f"{plural(missing, 'line')} ({format_count(missing * 12)} characters)"
    assert first == f"… {count} not kept\n"
    assert kept == lines[-len(kept) :]
    assert TAIL_CHARS - 12 < len("".join(kept)) <= TAIL_CHARS
    assert (given.dropped_lines, given.dropped_chars) == (missing, missing * 12)
    assert not given.is_pending
    shares = [share_of(count)[0] for count in (1, 8, 1_000)]
    assert shares == [allowance.TOTAL_LINES, allowance.TOTAL_LINES // 8, allowance.LEAST_LINES]


@pytest.mark.parametrize("piece", [1, 7, 999, 1_001, 300_000])
def test_a_long_line_is_cut_however_it_is_written(piece: int):
    text = "x" * 300_000
    given = Allowance(10, 100_000, 0.0)
    sent = written(given, [text[i : i + piece] for i in range(0, len(text), piece)])
    assert 100_000 - piece < len(sent) <= 100_000
    end = given.end()
    assert end.startswith("\n… 0 lines (")  # the line it cut is ended first
    assert len(sent) + given.dropped_chars + TAIL_CHARS == len(text)


def test_a_notice_is_a_line_of_its_own_when_a_newline_was_the_first_too_many():
    given = Allowance(1, 1_000_000, 0.0)
    assert written(given, ["a", "\n", "b", "\n" * 100_000]) == "a\nb"
    assert given.end().startswith("\n… 67 ")


def test_what_comes_after_an_end_counts_anew():
    given = Allowance(2, 10, 0.0)
    long = "y" * 100_000 + "\n"
    assert written(given, ["a\n", long]) == "a\nyyyyyyyy"
    given.end()
    dropped = given.dropped_chars
    assert written(given, ["more\n"]) == ""
    assert given.is_pending
    assert given.end() == "more\n"
    assert given.dropped_chars == dropped


def test_a_bar_that_moves_for_hours_is_no_flood():
    given = Allowance(100, 10_000, 0.0)
    for second in range(36_000):
        assert given.take("\r" + "#" * 80, lambda now=second: float(now))
    assert not given.full


# ------------------------------------------------------------------ values and displays


def test_a_long_repr_is_cut_and_that_is_said():
    text = "r" * 1_000_000
    kept = process_output.bounded({"text/plain": text})["text/plain"]
    assert len(kept) <= process_output.MAX_TEXT_CHARS
    assert kept.endswith("… 800 200 of 1 000 000 characters not shown")
    assert process_output.shortened(kept) == kept


def test_large_html_is_left_out_and_that_is_said():
    html = "h" * (process_output.MAX_DATA_CHARS + 1)
    bundle = {"text/plain": "a table", "text/html": html, "image/png": "iVBOR"}
    said = "a table\n… its text/html is not shown: 33 554 433 characters"
    assert process_output.bounded(bundle) == {"text/plain": said, "image/png": "iVBOR"}


def test_a_widget_is_refused_with_a_sentence():
    view = {"model_id": "1", "version_major": 2, "version_minor": 0}
    bundle = {"text/plain": "IntSlider(value=0)", "application/vnd.jupyter.widget-view+json": view}
    kept = process_output.bounded(bundle)
    assert list(kept) == ["text/plain"]
    assert kept["text/plain"].startswith("IntSlider(value=0)\nWidgets work in the notebook only:")


@pytest.mark.parametrize("kind", ["application/json", "application/vnd.plotly.v1+json"])
def test_nested_data_count_whole(kind: str):
    data: dict[str, Any] = {"rows": [["x" * 1_000_000] * 40]}
    assert kind not in process_output.bounded({kind: data})
    small = {"rows": [[1, None, "x"]]}
    assert process_output.bounded({kind: small}) == {kind: small}


# ------------------------------------------------------------------ the notebook's side


def test_the_sentences():
    event = Dropped(2, "stdout", 0, 0, 125_000, 1 << 20)
    assert flood_text(event) == (
        "process 2 has written more to standard output than a cell keeps (125 000 lines or "
        "1 048 576 characters of each process). What follows is counted, and only its end is "
        "kept."
    )
    assert dropped_texts([event]) == []
    more = [Dropped(i, "stderr", 41_203, 10, 125_000, 1 << 20) for i in (0, 1)]
    (text,) = dropped_texts([event, *more])
    assert text.startswith("processes 0-1 wrote 82 406 lines (20 characters) more to standard err")


def test_strays_are_bounded_by_number_and_by_size():
    strays, exchange = Strays(), Exchange()
    for i in range(MAX_STRAYS + 5):
        strays.add(StreamChunk(0, "stdout", str(i)))
    assert strays.move_to(exchange, [0]) == 5
    kept = list(exchange.drain())
    assert [event.text for event in kept[:1]] == ["5"]
    for _ in range(10):
        strays.add(Display(0, RichOutput({"text/html": "x" * (MAX_CHARS // 4)})))
    assert strays.move_to(exchange, [0]) == 6
    assert len(list(exchange.drain())) == 4
    assert strays.move_to(exchange, [0]) == 0


def test_strays_wait_for_a_cell_of_their_process():
    strays, exchange = Strays(), Exchange()
    for i in range(3):
        strays.add(StreamChunk(i, "stdout", str(i)))
    assert strays.move_to(exchange, [0, 2]) == 0
    assert [e.process_index for e in exchange.drain()] == [0, 2]
    strays.move_to(exchange, [0, 1, 2])
    assert [e.process_index for e in exchange.drain()] == [1]


# ---------------------------------------------------------- displays wait for the lines before them


def display(process_index: int) -> Display:
    return Display(process_index, RichOutput({"text/plain": "x"}, {}))


def test_what_a_process_writes_after_a_display_waits_with_it() -> None:
    held = HeldOutput()
    assert not held.holds(0)
    events: list[Held] = [display(0), StreamChunk(0, "stdout", "b\n"), display(0), Ended(0)]
    for event in events:
        held.put(event)
    assert held.holds(0)
    assert not held.holds(1)
    assert list(held.ready(lambda index: True)) == []
    found: list[Held] = []

    def is_waiting(index: int) -> bool:
        return bool(found) and isinstance(found[-1], StreamChunk)  # its line has to come out

    for event in held.ready(is_waiting):
        found.append(event)  # noqa: PERF402  # what is ready depends on it
    assert found == events[:2]
    assert held.holds(0)
    assert list(held.ready(lambda index: False)) == events[2:]
    assert not held.holds(0)


def test_processes_wait_each_for_itself() -> None:
    held = HeldOutput()
    events: list[Held] = [display(1), ClearOutput(0, wait=True), display(0)]
    for event in events:
        held.put(event)
    assert list(held.ready(lambda index: index == 1)) == events[1:]
    assert list(held.ready(lambda index: False)) == events[:1]


# ------------------------------------------------------------------ what a notebook shows meanwhile


def test_lines_that_came_too_soon_after_others_are_shown_a_little_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, shown = [10.0], list[str]()

    def publish(data: dict[str, str], **_: object) -> None:
        shown.append(data["text/plain"])

    shell = SimpleNamespace(display_pub=SimpleNamespace(publish=publish))
    monkeypatch.setattr(sinks, "get_ipython", lambda: shell)
    monkeypatch.setattr(sinks, "time", SimpleNamespace(monotonic=lambda: now[0]))
    sink = sinks.NotebookSink()
    for count in (1, 2, 4):
        sink.live([MergedLine("stdout", frozenset(range(count)), "waiting")])
    sink.tick()
    assert shown == ["[0] waiting"]
    now[0] += 2 * sinks.LIVE_SECONDS
    sink.tick()
    sink.tick()
    assert shown == ["[0] waiting", "[0-3] waiting"]
