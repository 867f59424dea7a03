"""Pitfalls of several processes as one list, their card, and their pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxnb.cells import card_cell
from jaxnb.cells.result import CellResult, ProcessResult
from jaxnb.display.card import NOTHING
from jaxnb.model.insight import Pitfall
from jaxnb.pitfalls.findings import Said, describe, merged, page

ROOT = Path(__file__).parents[2]
PAGES = {page.stem for page in (ROOT / "docs" / "pitfalls").glob("*.md")}
PITFALL_KINDS = PAGES - {"index", "seeds"}
EVIL = "<script>alert(1)</script>\"'"


def pitfall(kind: str = "fetch", cause: str = "a", line: int | None = 2, **more: str) -> Pitfall:
    texts = {"message": "It happens.", "advice": "Type `y`.", "source": "x()"} | more
    return Pitfall(kind, line=line, cause=cause, **texts)  # type: ignore[arg-type]


def result(*pitfalls: Pitfall, processes: int = 2) -> CellResult:
    each = {i: ProcessResult(i, None, "", "", (), None, 0.1, 0.0) for i in range(processes)}
    return CellResult(1, "", each, processes, 0.1, pitfalls=pitfalls)


def test_one_cause_of_several_processes_is_one() -> None:
    found = merged({1: [pitfall(line=3)], 0: [pitfall(line=3)], 2: [pitfall(cause="b", line=1)]})
    assert [(each.cause, each.processes) for each in found] == [("b", (2,)), ("a", (0, 1))]


def test_a_cause_seen_twice_in_a_process_counts_once() -> None:
    (found,) = merged({0: [pitfall(line=3), pitfall(line=7)]})
    assert (found.line, found.processes) == (3, (0,))


def test_a_cause_is_said_once_until_a_restart() -> None:
    said = Said()
    assert said.new([pitfall()], 0) == (pitfall(),)
    assert said.new([pitfall(), pitfall(cause="b")], 0) == (pitfall(cause="b"),)
    assert said.new([pitfall(kind="recompiled")], 0) == (pitfall(kind="recompiled"),)
    assert said.new([pitfall()], 1) == (pitfall(),)


def test_sentences_name_processes_unless_all_saw_it() -> None:
    one, both = merged({0: [pitfall(), pitfall(cause="b")], 1: [pitfall(cause="b")]})
    assert describe([one], 2) == ("process 0: line 2: It happens. Type `y`. (`%spmd_help fetch`)")
    assert describe([both], 2).startswith("line 2: ")
    assert describe([pitfall(line=None)], 0).startswith("It happens.")


def test_the_card_has_line_advice_and_page() -> None:
    (each,) = merged({0: [pitfall()]})
    card = card_cell.cell_card(result(each))
    assert "⚠ line 2: `x()` · process 0\n  It happens. Type `y`. `%spmd_help" in card.text
    assert "`%spmd_help fetch` says more." in card.text
    for text in (
        "line 2",
        "x()",
        "process 0",
        "It happens.",
        "Type <code>y</code>.",
        "<code>%spmd_help fetch</code>",
    ):
        assert text in card.html
    assert card_cell.pitfalls_card(result()) == NOTHING


def test_the_card_is_at_most_80_columns_wide_and_inert() -> None:
    long = pitfall(message="It happens. " * 30, source="f(" + "a" * 300 + EVIL + ")", advice=EVIL)
    card = card_cell.pitfalls_card(result(long))
    assert max(map(len, card.text.splitlines())) <= 80
    assert "<script>" not in card.html


def test_a_pitfall_outside_the_cell_has_no_line() -> None:
    card = card_cell.pitfalls_card(
        result(*merged({0: [pitfall(line=None, source="")]}), processes=1)
    )
    assert card.text.startswith("⚠ It happens.")


@pytest.mark.parametrize("kind", sorted(PITFALL_KINDS))
def test_each_kind_has_its_page_and_is_in_the_index(kind: str) -> None:
    text = page(kind)
    assert pitfall(kind).page == f"%spmd_help {kind}"
    assert f"`%spmd_help {kind}`" in page("")
    assert "**What happens.**" in text
    assert pitfall(kind).page in text, "the output that it shows names the page"
    index = (ROOT / "docs" / "pitfalls" / "index.md").read_text()
    assert f"\n{kind}\n" in index
    assert f"{{doc}}`{kind}`" in index


def test_every_page_is_of_a_kind_or_about_what_is_not_looked_for() -> None:
    sources = "".join(each.read_text() for each in (ROOT / "jaxnb").rglob("*.py"))
    assert [kind for kind in PITFALL_KINDS if f'"{kind}"' not in sources] == []
