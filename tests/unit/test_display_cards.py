"""Cards of the group, of cells and of errors; nothing from a process gets out of its text."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
import time
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

import jaxnb
from jaxnb.cells import card_cell, card_error, card_value
from jaxnb.cells.card_error import background_card, live_card
from jaxnb.cells.merge_output import MergedLine
from jaxnb.cells.outcome import cell_error
from jaxnb.cells.result import CellResult, ProcessResult
from jaxnb.display.card import NOTHING, Card
from jaxnb.launch import card_group
from jaxnb.lockstep.divergence import STILL_VALID
from jaxnb.model.cells import ProcessError, RichOutput, ValueInfo
from jaxnb.model.dispatches import DigestedArray, Divergence, UnequalInput
from jaxnb.model.group import AtLine, DeviceInfo, GroupInfo, ProcessInfo, StackEntry, Waits
from jaxnb.profile import card_stats
from jaxnb.profile.statistics import DeviceStats
from jaxnb.recovery.messages import Lost, Recovered
from jaxnb.recovery.recovering import recovered_card

EVIL = "<script>alert(1)</script>\"'"


# What JupyterLab keeps of a notebook that is not trusted, as far as cards use it: elements,
# attributes, and styles.
KEPT_TAGS = re.compile(
    "a|b|br|code|details|div|i|img|pre|progress|span|summary|table|tbody|td|th|thead|tr"
)
KEPT_ATTRIBUTES = re.compile("alt|class|href|max|open|rel|src|style|target|title|value|width")
COLOR = r"(#[0-9a-f]{6}|rgba\(\d+,\d+,\d+,0?\.\d+\))"
LENGTH = r"-?[\d.]+(px|%)?"
KEPT_STYLES = re.compile(
    rf"color:{COLOR}"
    rf"|background:(none|{COLOR}|linear-gradient\(to right(,{COLOR} [\d.]+%)+\))"
    rf"|border:(0|1px dashed {COLOR})|border-(left|top):\dpx solid {COLOR}"
    rf"|box-shadow:3px 3px 0 0 {COLOR}|flex:(none|1 1 0)"
    r"|(border-spacing|font-size|gap|height|left|line-height|margin|margin-left|max-width|opacity"
    rf"|padding|padding-left|padding-right|top|width):{LENGTH}( {LENGTH})*"
    r"|font-family:Menlo,Consolas,monospace"
    r"|(align-items|border-collapse|cursor|display|flex-wrap|font-style|font-weight"
    r"|overflow-x|position|text-align|text-decoration|vertical-align|white-space):[a-z-]+",
    re.IGNORECASE,
)


class Tags(HTMLParser):
    """Collects tags; fails on one that is not closed in order, or not kept where untrusted."""

    VOID = frozenset({"br", "img"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert KEPT_TAGS.fullmatch(tag)
        assert all(KEPT_ATTRIBUTES.fullmatch(name) for name, _ in attrs)
        for declaration in filter(None, (dict(attrs).get("style") or "").split(";")):
            assert KEPT_STYLES.fullmatch(declaration), declaration
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def group(n: int = 4, text: str = "node0", state: str = "ready", detail: str = "") -> GroupInfo:
    processes = tuple(
        ProcessInfo(
            i,
            31300 + i,
            text,
            tuple(DeviceInfo(2 * i + j, i, "cpu", "cpu") for j in range(2)),
            i,
            "dead" if detail and i == 2 else "ready",
            detail if i == 2 else "",
        )
        for i in range(n)
    )
    return GroupInfo(processes, state, "cpu", "fork", "gloo", "0.10.2", 1.42, 3, 7)


def cell(
    values: list[ValueInfo | None],
    *,
    seconds: list[float] | None = None,
    errors: dict[int, ProcessError] | None = None,
    displays: dict[int, tuple[RichOutput, ...]] | None = None,
    num_processes: int | None = None,
    compile_seconds: float = 0.0,
) -> CellResult:
    per_process = {
        i: ProcessResult(
            process_index=i,
            value_info=value,
            stdout="",
            stderr="",
            displays=(displays or {}).get(i, ()),
            error=(errors or {}).get(i),
            seconds=seconds[i] if seconds else 0.1,
            compile_seconds=compile_seconds,
        )
        for i, value in enumerate(values)
    }
    return CellResult(7, "x", per_process, num_processes or len(values), 0.31)


def value(text: str, digest: bytes = b"", **other: str) -> ValueInfo:
    bundle = {"text/plain": text} | {key.replace("_", "/"): data for key, data in other.items()}
    return ValueInfo("some.Type", digest, None, "", bundle)


def test_start_card_in_text():
    assert str(card_group.start_card(group(2))) == (
        "2 processes × 2 CPU devices = 4 devices · ready in 1.4 s\n"
        "JAX 0.10.2 · collectives gloo · launcher fork · check strict\n"
        "  process    pid  host   devices\n"
        "        0  31300  node0  0-1\n"
        "        1  31301  node0  2-3"
    )


def test_a_card_is_html_and_text():
    card = card_group.start_card(group())
    assert card._repr_mimebundle_(include=None, exclude=None) == {
        "text/html": card.html,
        "text/plain": card.text,
    }


def test_many_processes_fold():
    card = card_group.start_card(group(9))
    assert "details" in Tags(card.html).seen
    assert "9 processes on node0" in card.text
    assert "31300" not in card.text


def test_status_tells_the_dead_even_when_folded():
    text = str(card_group.status_card(group(12, state="broken", detail="killed by SIGKILL")))
    assert "broken · 3 cells run, last [7]" in text
    assert "dead: killed by SIGKILL" in text


def test_status_tells_the_cell_that_runs():
    running = replace(group(state="busy"), cells_run=4, running_cell=8)
    text = str(card_group.status_card(running))
    assert "busy · 4 cells run, last [7] · [8] is running" in text


LINE = StackEntry("<cell 7>", 3, "<module>", "y = f(x)", 7)


def test_where_processes_are_is_shown_with_who_waits_for_whom_and_goes_away() -> None:
    sleeps = StackEntry("<cell 7>", 5, "<module>", "time.sleep(1000)", 7)
    waits = Waits(
        (
            AtLine((0, 1, 3), LINE, 4.2, waits=True, late=(2,), last_dispatch="4: jit(f) f32[8]"),
            AtLine((2,), sleeps, 5.1),
        ),
        12.3,
    )
    card = card_cell.waits_card(waits)
    assert card.text == (
        "Processes 0-1,3 have waited for process 2 at line 3: `y = f(x)` for 4 s; process 2 has "
        "been at line 5: `time.sleep(1000)` for 5 s. This may be normal; Interrupt ends the cell "
        "(a second one by force), and variables are kept."
    )
    words = ("Processes 0-1,3 wait<", "asks for 4: jit(f)", "wait for process 2, 4 s")
    for each in words:
        assert each in card.html
    gone = card_cell.waits_card(replace(waits, has_ended=True))
    assert (gone.html, gone.text) == ("", "")
    failed = card_cell.waits_card(replace(waits, has_failed=True, left="process 4 has finished"))
    assert "may be normal" not in failed.text + failed.html
    assert "Process 4 has finished. Interrupt ends" in failed.text


def test_processes_at_one_line_are_a_line() -> None:
    waits = Waits((AtLine((0, 1, 2, 3), LINE, 4.2),), 12.3, dispatches=20_000)
    assert card_cell.waits_card(waits).text == "4 processes at line 3 · 12 s · 20 000 dispatches"


def test_what_is_wrong_is_shown_now_and_afterwards() -> None:
    waits = Waits((AtLine((0, 2), LINE, 12.3), AtLine((1,), None, 12.3)), 12.3, "P.", "missing")
    now = card_cell.waits_card(waits)
    then = card_cell.waits_card(replace(waits, has_ended=True))
    assert now.text == (
        "Processes 0,2 have been at line 3: `y = f(x)` for 12 s; process 1 has been outside the "
        "cell's lines for 12 s. P. Interrupt ends the cell (a second one by force), and variables "
        "are kept."
    )
    assert then.text.endswith("process 1 had been outside the cell's lines for 12 s. P.")
    assert "Interrupt" not in then.html + then.text


def test_who_does_not_answer_is_shown_beside_the_others() -> None:
    waits = Waits((AtLine((0,), LINE, 12.3),), 12.3, silent=(1, 2))
    now = card_cell.waits_card(waits)
    then = card_cell.waits_card(replace(waits, has_ended=True))
    assert now.text == (
        "Process 0 has been at line 3: `y = f(x)` for 12 s. Processes 1-2 have not answered for "
        "12 s: they are stopped, or C code in them keeps Python from running, which may end. "
        "Interrupt says how to go on without them."
    )
    assert "No answer yet<" in now.html
    assert "Processes 1-2 have not answered for 12 s" in now.html
    assert "Processes 1-2 had not answered for 12 s." in then.html
    alone = card_cell.waits_card(Waits((), 12.3, silent=(0,)))
    assert alone.text.startswith("Process 0 has not answered for 12 s: it is stopped, or")
    assert alone.text.endswith("Interrupt says how to go on without it.")


def test_nothing_from_a_process_becomes_markup():
    error = ProcessError(EVIL, EVIL, EVIL, f"\x1b[31m{EVIL}\x1b[0m", 3)
    stats = DeviceStats(
        DeviceInfo(0, 0, "cpu", EVIL), EVIL, 1, 1, None, None, "none", 0, 1, 1, EVIL
    )
    lost = Lost(EVIL, EVIL, (1,), EVIL)
    recovered = Recovered((1,), (EVIL,), (lost,), 0.1, 4, (EVIL,), {0: EVIL}, (2,), (EVIL,))
    evil_line = StackEntry(EVIL, 1, EVIL, EVIL, 1)
    made = [
        recovered_card(group(), recovered),
        card_group.start_card(group(text=EVIL)),
        card_group.status_card(group(text=EVIL, detail=EVIL)),
        card_group.start_card(group(9, text=EVIL)),
        card_group.progress_card(EVIL, EVIL, 1.0),
        card_stats.stats_card([stats]),
        card_cell.waits_card(
            Waits(
                (AtLine((0,), evil_line, 1.0, doing=EVIL, last_dispatch=EVIL),),
                1.0,
                EVIL,
                stopped=EVIL,
                silent=(1,),
                left=EVIL,
            )
        ),
        card_error.error_card(cell([None, None], errors={0: error})),
        card_cell.cell_card(cell([value(EVIL, b"1")] * 2)),
        card_cell.cell_card(cell([value(EVIL, b"1"), value(EVIL, b"2"), None])),
        card_value.value_card(cell([value(EVIL, image_png=EVIL)])),
        card_value.displays_card({1: [RichOutput({"text/plain": EVIL})]}, 0),
        background_card(
            1,
            "now",
            [],
            card_value.displays_card({0: [text(EVIL)]}, 0, with_first=True),
            None,
            EVIL,
        ),
    ]
    for card in made:
        assert isinstance(card, Card)
        assert "script" not in Tags(card.html).seen
        assert "alert(1)" in card.html


def test_markup_is_made_in_one_place():
    """Every text is escaped; what an object of the user's says in HTML has one way in."""
    package = Path(jaxnb.__file__).parent

    def using(pattern: str) -> list[str]:
        found = (f for f in package.rglob("*.py") if re.search(pattern, f.read_text()))
        return sorted(str(f.relative_to(package)) for f in found)

    assert using(r"\bHtml\(") == ["display/html.py", "display/markup.py"]
    assert using(r"trusted\(") == ["display/markup.py"]
    assert using(r"</[a-z{]") == ["display/markup.py"]


def test_same_value_is_shown_once_and_says_that_bytes_were_compared():
    card = card_cell.cell_card(cell([value("42", b"x")] * 4))
    assert card.text == "42\n— identical on 4 processes (byte-compared)\n4 processes · 0.31 s"
    assert card.html.count("42") == 1


def test_value_of_one_process_of_many_is_named():
    card = card_value.value_card(cell([value("42", b"x")], num_processes=4))
    assert card.text == "42\n— process 0"
    assert card_value.value_card(cell([value("42", b"x")])).text == "42"


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
    assert card.text == "[0-1] nan\n— they look the same, but pickle to other bytes"
    card = card_value.value_card(cell([value("nan", b"1"), value("nan", b"2"), value("0", b"3")]))
    assert "— some look the same, but pickle to other bytes" in card.text


def test_outputs_all_and_first():
    result = cell([value("4", b"2")] * 2)
    assert card_value.value_card(result, "all").text == "[0] 4\n[1] 4"
    differing = cell([value("3", b"1"), value("4", b"2")])
    assert card_value.value_card(differing, "first").text.startswith("[0] 3\n— the first process's")
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


def test_no_value_is_no_card():
    assert card_value.value_card(cell([None])).html == ""
    assert card_cell.cell_card(cell([None])).text == "1 process · 0.31 s"


def test_footer_names_the_straggler_and_the_compilation():
    result = cell([None] * 4, seconds=[0.12, 0.12, 0.31, 0.12], compile_seconds=0.2)
    card = card_cell.footer_card(result)
    assert card.text == (
        "4 processes · 0.31 s · slowest 2 (0.31 s, others 0.12 s) · compiled in 0.20 s"
    )
    Tags(card.html)


def test_footer_is_quiet_about_small_differences_and_two_slow_ones():
    assert card_cell.straggler(cell([None] * 3, seconds=[0.001, 0.001, 0.02])) is None
    assert card_cell.straggler(cell([None] * 3, seconds=[1.0, 0.1, 1.0])) is None
    assert card_cell.straggler(cell([None], seconds=[1.0])) is None


def test_to_format_an_error_makes_nobody_slow():
    error = ProcessError("KeyError", "'k'", "", "", 3, seconds=0.01)
    result = cell([None] * 3, errors={1: error}, seconds=[0.004, 0.2, 0.004])
    assert card_cell.straggler(result) is None
    late = replace(error, seconds=0.19)
    assert card_cell.straggler(cell([None] * 3, errors={1: late}, seconds=[0.004, 0.2, 0.004])) == 1


@pytest.mark.parametrize("name", ["ProcessDiedError", "NoAnswer"])
def test_who_never_ended_the_cell_is_not_the_slowest(name):
    errors = {2: ProcessError(name, "", "", "")}
    result = cell([None] * 4, errors=errors, seconds=[0.1, 0.1, 9.0, 0.1])
    told = {"ProcessDiedError": "died: 2", "NoAnswer": "no end on 2"}
    assert card_cell.footer_card(result).text == f"4 processes · 0.31 s · {told[name]}"


def test_one_raise_that_says_something_else_on_each_process_is_one_error():
    def raised(message: str, line: int = 2) -> ProcessError:
        shown = f"Cell In[1], line {line}\n\nValueError: {message}"
        return ProcessError("ValueError", message, shown, shown, line)

    errors = {0: raised("2"), 1: raised("b"), 2: raised("b"), 3: raised("b", 5)}
    result = cell([None] * 4, errors=errors, seconds=[0.1, 0.1, 0.1, 0.3])
    groups = card_error.error_groups(result)
    assert [g.processes for g in groups] == [(0, 1, 2), (3,)]
    text = card_error.error_card(result).text
    assert "ValueError: 2\n\nprocess 0: 2\nprocesses 1-2: b\n\nValueError on process 3" in text
    assert str(cell_error(result)) == (
        "process 0 raised ValueError: 2 at line 2; processes 1-2 raised ValueError: b at line 2; "
        "process 3 raised ValueError: b at line 5 (cell [7])"
    )


def test_who_an_interrupt_found_waiting_inside_jax_is_one_line():
    def interrupted(line: int, *inside: str) -> ProcessError:
        frames = "\n\n".join([f"Cell In[7], line {line}\n----> {line} f(x)", *inside])
        shown = f"KeyboardInterrupt  Traceback\n{frames}\n\nKeyboardInterrupt: "
        return ProcessError("KeyboardInterrupt", "", shown, shown, line)

    jax = "File /v/lib/site-packages/jax/_src/pxla.py:13, in call\n----> 13 go()"
    errors = {0: interrupted(6, jax), 1: interrupted(4), 2: interrupted(5, jax)}
    text = card_error.error_card(cell([None] * 3, errors=errors)).text
    assert text.startswith("KeyboardInterrupt on process 1, first")
    assert text.endswith(
        "\n\nProcess 0 was interrupted inside jax at line 6.\n\n"
        "Process 2 was interrupted inside jax at line 5."
    )
    assert "pxla.py" not in text
    only = card_error.error_card(cell([None] * 2, errors=dict.fromkeys([0, 1], errors[0]))).text
    assert "pxla.py" in only


def test_footer_names_a_part_of_the_group():
    assert card_cell.footer_card(cell([None] * 2, num_processes=4)).text.startswith(
        "processes 0-1 of 4 · "
    )


def test_errors_that_differ_only_in_ports_and_addresses_are_one():
    def lost(port: int, where: int) -> ProcessError:
        said = f"closed by [127.0.0.1]:{port}, 10.0.0.1:{port}, pid {port}, <f at {where:#x}>"
        return ProcessError("RuntimeError", said, f"File a.py:{1000}\n{said}", "", 5)

    errors = {i: lost(36000 + i, 0x7F0000000000 + i) for i in range(3)}
    result = cell([None] * 4, errors={**errors, 3: lost(1, 2)})
    assert [g.processes for g in card_error.error_groups(result)] == [
        (0, 1, 2),
        (3,),
    ]  # 0x2 is short
    other = replace(errors[1], traceback=errors[1].traceback.replace("py:1000", "py:1001"))
    result = cell([None] * 2, errors={0: errors[0], 1: other})
    assert len(card_error.error_groups(result)) == 2


def test_errors_of_which_other_lines_are_shown_around_are_one():
    short = "Cell In[2], line 3, in R.f\n----> 3 def f(self): raise E\n\nE: no"
    more = "Cell In[2], line 3, in R.f\n      2 class R:\n----> 3     def f(self): raise E\n\nE: no"
    errors = {i: ProcessError("E", "no", text, "", 3) for i, text in enumerate([short, more])}
    assert [g.processes for g in card_error.error_groups(cell([None] * 2, errors=errors))] == [
        (0, 1)
    ]
    other = replace(errors[1], traceback=more.replace("R.f", "R.g"))
    assert len(card_error.error_groups(cell([None] * 2, errors={**errors, 1: other}))) == 2


def test_of_a_long_message_the_beginning_is_shown_once():
    def unequal(i: int) -> ProcessError:
        said = f"not equal. {'expected ' * 200}got {i}"
        return ProcessError("AssertionError", said, f"line 3\nAssertionError: {said}", "", 3)

    text = card_error.error_card(cell([None] * 4, errors={i: unequal(i) for i in range(4)})).text
    assert text.startswith("AssertionError on processes 0-3\nline 3\nAssertionError: not ")
    assert text.endswith(
        "…\n… 316 more characters, in `spmd.last_result.per_process[0].error.message`; the "
        "messages of processes 1-3 differ in what follows"
    )
    assert len(text) < 2000


def test_who_was_left_behind_comes_last_in_one_line_without_their_error():
    said = f"process 1: raised NameError at line 3. None of it has run, {STILL_VALID}."
    behind = ProcessError("DivergenceError", said, "", "", 4)
    cause = ProcessError("NameError", "name 'x' is not defined", "its traceback", "", 3)
    result = cell([None] * 2, errors={0: behind, 1: cause}, seconds=[1.0, 2.0])
    assert [g.processes for g in card_error.error_groups(result)] == [(1,), (0,)]
    waited = (
        "Process 0 only waited for it at line 4. What they were to compute has run on no process, "
        "and earlier results are valid."
    )
    card = card_error.error_card(result)
    assert card.text.endswith(f"its traceback\n\n{waited}")
    assert waited in card.html
    assert "DivergenceError" not in card.html
    # One that says more than that is shown whole.
    other = replace(behind, message=said.replace("earlier results are", "nothing is"))
    result = cell([None] * 2, errors={0: other, 1: cause}, seconds=[1.0, 2.0])
    assert "nothing is valid" in card_error.error_card(result).html


def digested(name: str) -> DigestedArray:
    of = ((0, 1), 1, 0, "jit(f)", 5, name, 7, "made at line 1")
    return DigestedArray(*of, "float32[4]", "P()", ())


def test_a_refusal_whose_reason_is_told_above_is_short():
    error = ProcessError("DivergenceError", "They do not agree", "a long story", "", 5)
    found = tuple(UnequalInput(digested(name), (), ((0,), (1,)), False) for name in ("a", "b"))
    result = replace(cell([None] * 2, errors={0: error, 1: error}), unequal=found)
    assert card_error.error_card(result).text.endswith("a long story")  # it may have another reason
    card = card_error.error_card(replace(result, divergence=Divergence(7, 1, "inputs", ())))
    assert card.text == (
        "DivergenceError on processes 0-1 · line 5\n`a`, `b` are not equal on all processes, as "
        "was told above. The computation has run on none of them, and what was computed before is "
        "valid."
    )
    assert "<pre>" not in card.html


def test_the_footer_tells_interrupts_from_errors():
    errors = {i: ProcessError("KeyboardInterrupt", "", "", "") for i in (0, 1)}
    errors[2] = ProcessError("ValueError", "no", "", "")
    text = card_cell.footer_card(cell([None] * 3, errors=errors)).text
    assert text.endswith(" · error on 2 · interrupted on 0-1")


def test_an_ordinary_cell_is_small_and_quick():
    result = cell([value("42", b"x")] * 4, seconds=[0.12, 0.12, 0.31, 0.12], compile_seconds=0.2)
    assert len(card_cell.cell_card(result).html) < 1500
    begin = time.process_time()
    for _ in range(100):
        card_cell.cell_card(result)
    assert (time.process_time() - begin) / 100 < 0.02


def test_errors_show_once_per_traceback_with_the_cause_first():
    late = ProcessError("RuntimeError", "connection closed", "late traceback", "late traceback", 5)
    cause = ProcessError("ValueError", "boom", "the traceback", "\x1b[31mthe traceback\x1b[0m", 3)
    result = cell(
        [None] * 4, errors={0: late, 1: cause, 2: late, 3: late}, seconds=[2.1, 0.1, 2.2, 2.2]
    )
    groups = card_error.error_groups(result)
    assert [g.processes for g in groups] == [(1,), (0, 2, 3)]
    card = card_error.error_card(result)
    assert card.text == (
        "ValueError on process 1, first · line 3 · after 0.10 s\nthe traceback\n\n"
        "RuntimeError on processes 0,2-3 · line 5 · after 2.1 s\nlate traceback"
    )
    # Of two that raised by themselves the first is who raised first, however long formatting took.
    own = {
        0: replace(cause, seconds=0.5, at=9.5),
        1: replace(cause, type_name="E", seconds=0.1, at=9.1),
    }
    groups = card_error.error_groups(cell([None] * 2, errors=own, seconds=[0.6, 1.5]))
    assert [(g.processes, g.seconds) for g in groups] == [((1,), 0.1), ((0,), 0.5)]
    assert "\x1b[31m" in card_error.error_card(result, ansi=True).text
    assert "\x1b" not in card.html
    assert Tags(card.html).seen.count("details") == 2
    assert card_error.error_card(cell([None])).html == ""


def test_stats_say_where_the_figures_are_from():
    devices = [DeviceInfo(i, i // 2, "gpu", "NVIDIA H100") for i in range(4)]
    stats = [
        DeviceStats(d, "n", 1, 5 << 30, 6 << 30, 80 << 30, "memory_stats", 12, 1 << 30, 300 << 20)
        for d in devices
    ]
    card = card_stats.stats_card(stats)
    assert "memory_stats()" in card.text
    assert card.text.count("300 MiB / 1.00 GiB") == 2
    assert max(map(len, card.text.splitlines())) <= 80
    assert "width:6.25%" in card.html
    Tags(card.html)


def text(content: str, **fields) -> RichOutput:
    return RichOutput({"text/plain": content}, **fields)


@pytest.mark.parametrize(("interrupted_at", "first"), [(3.0, 0), (1.1, 1)])
def test_an_interrupt_of_what_had_parted_is_not_the_cause(interrupted_at, first):
    parted = ProcessError("DivergenceError", "they do not agree", "", "", 2)
    interrupted = ProcessError("KeyboardInterrupt", "", "", "", 3)
    result = cell([None] * 2, errors={0: parted, 1: interrupted}, seconds=[1.0, interrupted_at])
    assert card_error.error_groups(result)[0].processes == (first,)


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


def test_with_nothing_of_the_first_process_the_next_ones_output_is_open():
    card = card_value.displays_card({1: [text("one")], 2: [text("two")]}, 0)
    assert card.html.count("<details open>") == 1
    assert card.html.count("<details>") == 1


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


def test_lines_being_rewritten_begin_below_each_other():
    lines = [
        MergedLine("stderr", frozenset({0}), "step 1"),
        MergedLine("stderr", frozenset({1, 2, 3}), "step 2"),
    ]
    assert live_card(lines).text == "[0]   step 1\n[1-3] step 2"


def test_bars_of_several_processes_are_one():
    bars = [
        MergedLine("stderr", frozenset({0}), "epoch: 100%|####| 40/40 [00:09<00:00]"),
        MergedLine("stderr", frozenset({1, 3}), "epoch:  50%|##  | 20/40 [00:09<00:09]"),
        MergedLine("stderr", frozenset({2}), "epoch:  75%|### | 30/40 [00:09<00:03]"),
        MergedLine("stderr", frozenset({2}), "batch:   9%|#   | 1/11 [00:00<00:03]"),
    ]
    assert live_card(bars).text == (
        "[0-3] epoch:  50%|##  | 20/40 [00:09<00:09] · slowest processes 1,3, fastest process 0 at "
        "100%\n[2]   batch:   9%|#   | 1/11 [00:00<00:03]"
    )
    level = [MergedLine("stderr", frozenset({i}), f" 5%|#   | 1/20 [00:0{i}]") for i in range(2)]
    assert live_card(level).text == "[0-1]  5%|#   | 1/20 [00:00]"


def test_native_value():
    latex = ValueInfo("sympy.Expr", b"1", None, "", {"text/latex": "$x$", "text/plain": "x"})
    assert card_value.native_value(cell([latex] * 2)) == RichOutput(latex.mimebundle)
    assert card_value.native_value(cell([value("42", b"1")] * 2)) is None


def test_importing_the_cards_loads_no_front_end():
    code = (
        "import sys; from jaxnb.cells import card_cell, card_error, card_value; "
        "from jaxnb.launch import card_group; "
        "from jaxnb.profile import card_stats; "
        "heavy = {'jax', 'IPython', 'ipyparallel', 'jinja2', 'numpy'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_first_value_says_where_the_others_are():
    card = card_value.value_card(cell([value("3", b"1"), value("4", b"2")]), "first")
    assert card.text.endswith("the others are in `spmd.last_result.per_process`")
