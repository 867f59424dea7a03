"""Cards of values and displays of several processes: what is equal is shown once."""

from __future__ import annotations

import base64
import zlib
from dataclasses import replace

from jaxnb.cells import card_cell, card_value
from jaxnb.display.card import NOTHING
from jaxnb.model.cells import ProcessError, RichOutput, ValueInfo
from support.cards import Tags, cell, text, value


def test_same_value_is_shown_once_and_says_that_bytes_were_compared():
    card = card_cell.cell_card(cell([value("42", b"x")] * 4))
    assert card.text == "42\n— identical on 4 processes (byte-compared)\n4 processes · 0.31 s"
    assert card.html.count("42") == 1
    one = card_value.value_card(cell([value("42", b"x")], num_processes=4))
    assert one.text == "42\n— process 0"
    assert card_value.value_card(cell([value("42", b"x")])).text == "42"
    assert card_value.value_card(cell([None])).html == ""
    assert card_cell.cell_card(cell([None])).text == "1 process · 0.31 s"


def test_values_that_differ_are_a_table_with_equal_ones_merged():
    card = card_value.value_card(cell([value("3", b"1"), value("4", b"2"), value("4", b"2"), None]))
    assert card.text == "[0]   3\n[1-2] 4\n[3]   no value"
    assert Tags(card.html).seen.count("tr") == 3
    card = card_value.value_card(cell([value("4", b"2"), value("4", b"2"), None]))
    assert card.text == "[0-1] 4\n[2]   no value"


def test_values_of_some_processes_or_that_differ_are_marked_too():
    for values in ([value("3", b"1"), None], [value("3", b"1"), value("4", b"2")]):
        card = card_value.value_card(
            replace(cell(values), suspect="mixes shards of different arrays: x")
        )
        assert card.text.endswith("\n— it mixes shards of different arrays: x")
        assert "it mixes shards of different arrays: x" in card.html


def test_values_that_look_the_same_but_are_not():
    card = card_value.value_card(cell([value("nan", b"1"), value("nan", b"2")]))
    alike = "look alike but are not identical: their bytes or shardings differ"
    assert card.text == f"[0-1] nan\n— they {alike}"
    card = card_value.value_card(cell([value("nan", b"1"), value("nan", b"2"), value("0", b"3")]))
    assert f"— some {alike}" in card.text


def test_outputs_all_and_first():
    result = cell([value("4", b"2")] * 2)
    assert card_value.value_card(result, "all").text == "[0] 4\n[1] 4"
    differing = cell([value("3", b"1"), value("4", b"2")])
    text = card_value.value_card(differing, "first").text
    assert text.startswith("[0] 3\n— the first process's")
    assert text.endswith("the others are in `spmd.last_result.per_process`")
    raised = cell([None, value("4", b"2")], errors={0: ProcessError("E", "no", "", "")})
    assert card_value.value_card(raised, "first").text == (
        "[1] 4\n— process 0 has no value: this is another process's"
    )


def test_rich_values_show_the_first_and_the_others_a_click_away():
    result = cell(
        [value("frame", text_html=f"<table><tr><td>{i // 2}</td></tr></table>") for i in range(4)]
    )
    card = card_value.value_card(result)
    tags = Tags(card.html)
    assert tags.seen.count("details") == 1
    assert "<td>0</td>" in card.html
    assert card.html.index("<td>0</td>") < card.html.index("<details")
    assert "no bytes that could be compared" in card.text


def test_what_the_first_process_displayed_too_is_not_shown_again():
    same = [text("a"), text("b")]
    assert card_value.displays_card({0: same, 1: same, 2: same[:1]}, 0) == NOTHING
    # One output more of either does not bring the others out of step.
    assert card_value.displays_card({0: [text("x"), *same], 1: same}, 0).text == ""
    with_more = card_value.displays_card({0: same, 1: [text("x"), *same]}, 0)
    assert with_more.text == (
        "— above: what process 0 displayed; below: what others did and it did not\n[1] x"
    )
    assert "above: what process 0" in with_more.html
    assert card_value.displays_card({0: same, 1: [text("x")]}, 0, "first").text == ""
    all_of_them = card_value.displays_card({0: same, 1: same}, 0, "all")
    assert all_of_them.text == "— above: what process 0 displayed\n[1] a\n[1] b"


def test_outputs_that_differ_in_addresses_and_ids_alone_are_one():
    def shown(i: int, what: str) -> RichOutput:
        packed = zlib.compress(f"{list(range(40))} {what} at 0x7f{i:010x}".encode(), 9)
        html = f'<div id="out_{i:032x}"></div><p>{base64.b64encode(packed).decode()}</p>'
        return RichOutput({"text/html": html, "text/plain": f"<A at 0x7f{i:010x}>"})

    same = {i: [shown(i, "same")] for i in range(3)}
    assert card_value.displays_card(same, 0).text == ""
    others = {i: [shown(i, str(min(i, 1)))] for i in range(3)}
    assert "<summary>processes 1-2</summary>" in card_value.displays_card(others, 0).html
    values = [value(f"<A at 0x7f{i:010x}>") for i in range(3)]
    assert "processes 0-2" in card_value.value_card(cell(values)).html


def test_outputs_that_differ_from_the_firsts_are_a_click_away():
    figures = {
        i: [RichOutput({"image/png": f"data{min(i, 2)}", "text/plain": "fig"})] for i in range(4)
    }
    card = card_value.displays_card(figures, 0)
    assert Tags(card.html).seen.count("img") == 2
    assert Tags(card.html).seen.count("details") == 2
    assert "<summary>processes 2-3</summary>" in card.html
    assert "data0" not in card.html
    assert "<details open>" not in card.html
    assert Tags(card_value.displays_card(figures, 0, with_first=True).html).seen.count("img") == 3
    # With nothing of the first process the next one's output is open.
    others = card_value.displays_card({1: [text("one")], 2: [text("two")]}, 0).html
    assert (others.count("<details open>"), others.count("<details>")) == (1, 1)


def test_updates_take_the_place_of_what_they_update():
    columns = card_value.DisplayColumns()
    update = text("2", display_id="a", update=True)
    for output in (text("1", display_id="a"), text("x"), update):
        columns.add(0, output)
    assert columns == {0: [update, text("x")]}
    of_an_earlier_cell = text("3", display_id="b", update=True)
    columns.add(0, of_an_earlier_cell)
    assert columns == {0: [update, text("x"), of_an_earlier_cell]}


def test_what_a_process_cleared_is_gone():
    columns = card_value.DisplayColumns()
    columns.add(0, text("a"))
    columns.add(1, text("a"))
    columns.drop(0, wait=True)
    assert columns == {0: [text("a")], 1: [text("a")]}
    columns.add(0, text("b"))
    columns.add(0, text("c"))
    columns.drop(1, wait=False)
    assert columns == {0: [text("b"), text("c")]}


def test_native_value():
    latex = ValueInfo("sympy.Expr", b"1", None, "", {"text/latex": "$x$", "text/plain": "x"})
    assert card_value.native_value(cell([latex] * 2)) == RichOutput(latex.mimebundle)
    assert card_value.native_value(cell([value("42", b"1")] * 2)) is None
