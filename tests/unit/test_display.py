"""Labels, colours, plain-text tables, and cards on a page that removes all styles."""

from __future__ import annotations

import re

import bleach
import pytest
from bs4 import BeautifulSoup
from hypothesis import given
from hypothesis import strategies as st
from nbconvert.exporters import HTMLExporter
from nbformat import v4

from jaxnb.arrays.card_array import array_card
from jaxnb.cells.card_cell import cell_card
from jaxnb.display.card import Card
from jaxnb.display.markup import Run, ansi_runs, strip_ansi
from jaxnb.display.text import fitted_table, joined, labelled, text_table
from jaxnb.labels import (
    format_bytes,
    format_precisely,
    format_seconds,
    one_line,
    plural,
    processes_label,
    ranks_label,
)
from jaxnb.profile.card_timeline import timeline_card
from support.cards import cell, value
from unit.test_card_array import array
from unit.test_timelines import TIMELINE


@pytest.mark.parametrize(
    ("processes", "label"),
    [
        ({0, 1, 2, 3}, "0-3"),
        ({0, 2, 3}, "0,2-3"),
    ],
)
def test_ranks(processes: list[int], label: str):
    assert ranks_label(processes) == label


@given(st.sets(st.integers(0, 40)))
def test_ranks_label_names_exactly_the_processes(processes: set[int]):
    named: set[int] = set()
    for part in filter(None, ranks_label(processes).split(",")):
        first, _, last = part.partition("-")
        named |= set(range(int(first), int(last or first) + 1))
    assert named == processes


@pytest.mark.parametrize(
    ("size", "label"),
    [
        (0, "0 B"),
        (1024, "1.00 KiB"),
        (12_345_678, "11.8 MiB"),
        (None, "?"),
    ],
)
def test_bytes(size: int | None, label: str):
    assert format_bytes(size) == label


@pytest.mark.parametrize(
    ("seconds", "label"),
    [
        (0.0001, "0.1 ms"),
        (0.0999, "0.10 s"),
        (0.999, "1.0 s"),
        (59.99, "1 min 0 s"),
        (4000, "1 h 6 min"),
    ],
)
def test_seconds(seconds: float, label: str):
    assert format_seconds(seconds) == label


def test_plurals():
    assert plural(1, "process") == "1 process"
    assert plural(41_203, "line") == "41 203 lines"
    assert processes_label([2]) == "process 2"
    assert processes_label([0, 1]) == "processes 0-1"


def test_colours_become_runs():
    text = "a\x1b[1;31mb\x1b[0mc\x1b[38;5;196md\x1b[39m\x1b[3me\x1b[23mf\x1b[48;2;1;2;3mg"
    runs = ansi_runs(text)
    assert [run.text for run in runs] == ["a", "b", "c", "d", "e", "fg"]
    assert runs[1].style == "color:#d03a3a;font-weight:bold"
    assert runs[2] == Run("c")
    assert runs[3].style.startswith("color:#")
    assert runs[4].style == "font-style:italic"
    assert runs[5] == Run("fg")


@pytest.mark.parametrize("text", ["\x1b[38m", "\x1b[38;5mx", "\x1b[38;2;1mx", "\x1b", "\x1b[999mx"])
def test_broken_colours_do_no_harm(text: str):
    assert "".join(run.text for run in ansi_runs(text)) == strip_ansi(text)


@given(st.text(alphabet="ab<\x1b[0123;mK\n", max_size=40))
def test_runs_hold_the_text_without_its_escapes(text: str):
    runs = ansi_runs(text)
    assert "".join(run.text for run in runs) == strip_ansi(text)
    assert "\x1b" not in strip_ansi(text)


def test_tables_and_lines():
    assert text_table([["a", "bbb"], ["aaa", "b"]], ">>") == "    a  bbb\n  aaa    b"
    assert labelled([("[0]", "x\ny"), ("[1-3]", "z")]) == ["[0]   x\n      y", "[1-3] z"]
    assert one_line("a\n b " + "c" * 90, 10) == "a b ccccc…"
    assert joined(["a" * 50, "b" * 40]) == "a" * 50 + "\n  " + "b" * 40


def test_a_table_that_is_too_wide_loses_nothing() -> None:
    name = "all-reduce " + "x" * 49
    rows = [[name, "data (part)", "cell [7] line 11"], ["psum", "x", "–"]]
    assert fitted_table(rows, "<<<", {1: 6, 2: 8}).split("\n") == [
        f"  {name}  data    cell [7]",
        f"  {'':60}  (part)  line 11",
        f"  {'psum':60}  x       –",
    ]


# ---------------------------------------------------------------------- pages without styles


INLINE = ["b", "i", "a", "code", "span"]
BLOCKS = ["div", "table", "thead", "tbody", "tr", "th", "td", "pre", "details", "summary", "br"]


def lines(card: Card) -> list[str]:
    """Returns what such a page shows of a card; cells of a table are apart."""
    clean = bleach.clean(card.html, tags=[*INLINE, *BLOCKS], attributes={}, strip=True)
    blocks = re.sub(r"</?(\w+)>", lambda found: "" if found[1] in INLINE else "\n", clean)
    return [line.strip() for line in blocks.splitlines() if line.strip()]


def test_words_do_not_run_together() -> None:
    assert "0 0.5 s 1.0 s 1.5 s 2.0 s" in lines(timeline_card(TIMELINE))
    legend = "■ other ■ tracing ■ compiling ■ dispatching ■ waiting"
    assert legend in lines(timeline_card(TIMELINE))
    replicated = lines(array_card(array((8,), (1,), replicas=8)))
    assert replicated[replicated.index("P0-3") + 1 :][:2] == ["d0-7", "×8"]


def test_rows_of_numbers_stay_rows() -> None:
    values = [value(f"[[{i} 1]\n [2 3]]") for i in (0, 1)]
    shown = lines(cell_card(cell(values), "merged"))
    assert shown[:3] == ["process 0", "[[0 1]", "[2 3]]"]


def test_nbconvert_writes_cards_as_they_are() -> None:
    card = timeline_card(TIMELINE)
    shown = v4.new_output("display_data", {"text/html": card.html, "text/plain": card.text})
    notebook = v4.new_notebook(cells=[v4.new_code_cell("%spmd_timeline", outputs=[shown])])
    page, _ = HTMLExporter().from_notebook_node(notebook)
    assert str(BeautifulSoup(card.html, "html.parser")) in page  # as it writes attributes


def test_durations_to_three_digits() -> None:
    shown = [format_precisely(s) for s in (0.0, 1.5e-6, 9.996e-4, 0.0123, 0.9996, 61.0)]
    assert shown == ["0.00 µs", "1.50 µs", "1.00 ms", "12.3 ms", "1.00 s", "61.0 s"]
