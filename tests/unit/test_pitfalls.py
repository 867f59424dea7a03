"""Pitfalls of several processes as one list, their card and pages, and the first NaN."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from jaxnb.cells import card_cell
from jaxnb.cells.result import CellResult
from jaxnb.display.card import NOTHING
from jaxnb.errors import UsageError
from jaxnb.model.insight import NanFound, NanPlace, Pitfall
from jaxnb.pitfalls.findings import Said, describe, first_of, merged
from jaxnb.pitfalls.help import page
from support.cards import EVIL, cell

ROOT = Path(__file__).parents[2]
PAGES = {page.stem for page in (ROOT / "docs" / "pitfalls").glob("*.md")}
PITFALL_KINDS = PAGES - {"index", "seeds"}


def pitfall(kind: str = "fetch", cause: str = "a", line: int | None = 2, **more: str) -> Pitfall:
    texts = {"message": "It happens.", "advice": "Type `y`.", "source": "x()"} | more
    return Pitfall(kind, line=line, cause=cause, **texts)  # type: ignore[arg-type]


def result(*pitfalls: Pitfall, processes: int = 2) -> CellResult:
    return replace(cell([None] * processes), pitfalls=pitfalls)


def test_one_cause_of_several_processes_is_one() -> None:
    found = merged({1: [pitfall(line=3)], 0: [pitfall(line=3)], 2: [pitfall(cause="b", line=1)]})
    assert [(each.cause, each.processes) for each in found] == [("b", (2,)), ("a", (0, 1))]


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
    for text in ("line 2", "Type <code>y</code>.", "<code>%spmd_help fetch</code>"):
        assert text in card.html
    assert card_cell.pitfalls_card(result()) == NOTHING


def test_the_card_is_at_most_80_columns_wide_and_inert() -> None:
    long = pitfall(message="It happens. " * 30, source="f(" + "a" * 300 + EVIL + ")", advice=EVIL)
    card = card_cell.pitfalls_card(result(long))
    assert max(map(len, card.text.splitlines())) <= 80
    assert "<script>" not in card.html


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


def test_a_word_of_the_glossary_is_a_page_too() -> None:
    assert page("replica").startswith("**replica**: One of several equal copies of a shard.")
    assert "{" not in page("glossary").replace('{"', "")
    words = re.findall(r"^(\S.*)\n  ", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert [page(word.strip("`")) for word in words] == page("glossary").split("\n\n")
    assert page("Shard") == page("shard")
    with pytest.raises(UsageError, match="Did you mean 'shard'"):
        page("shrad")


# ---------------------------------------------------------------------- NaN


ALL = (0, 1, 2, 3)
PLACE = NanPlace(0, "float32[8]", "NaN", (3,), 1)


def seen(index: int, after: int, processes: tuple[int, ...] = ALL, **given: object) -> NanFound:
    number = after + 1 if len(processes) > 1 else 0
    fields = {"outputs": (PLACE,), "inputs": ()} | given
    return NanFound(index, "jit(f)", 5, processes, number, after, 1.0, **fields)  # type: ignore[arg-type]


def test_nothing_seen_is_nothing_said() -> None:
    assert first_of(1, []) is None


def test_dispatches_have_an_order_whatever_the_clocks_say() -> None:
    first = first_of(7, [seen(0, 4), seen(2, 1), seen(1, 1), seen(3, 2)])
    assert first is not None
    assert first.processes == (1, 2)
    assert tuple(first.later) == (3, 0)
    assert str(first) == (
        "The first NaN of cell [7] came out of jit(f) at line 5 (dispatch 2 over processes 0-3): "
        "output 1 float32[8] at [3] on processes 1-2. No argument had one: that computation made "
        "it. Later also on processes 0,3. By itself it does not stop the cell."
    )


def test_what_a_process_computes_alone_comes_before_the_next_dispatch() -> None:
    first = first_of(7, [seen(0, 2), seen(3, 2, (3,)), seen(1, 2, (1,))])
    assert first is not None
    assert first.processes == (1, 3)
    assert "(of process 1 alone)" in str(first)
    assert "And of jit(f) at line 5 (of process 3 alone)" in str(first)


def test_an_argument_that_had_it_is_named() -> None:
    had = NanPlace(1, "float32[]", "NaN", (), 1)
    bound = NanPlace(0, "float32[8]", "NaN", (3,), 4, "loss")
    first = first_of(7, [seen(0, 0, inputs=(had,), outputs=(bound,))])
    assert "`loss` float32[8] at [3] and 3 more, from argument 2 float32[] on process 0" in str(
        first
    )
    assert "from host data or from an earlier cell" in str(first)
