"""Cards of the group, of cells and of errors; nothing from a process gets out of its text."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import jaxnb
from jaxnb.cells import card_cell, card_error, card_value
from jaxnb.cells.card_error import background_card, live_card
from jaxnb.cells.merge_output import MergedLine
from jaxnb.display.card import Card
from jaxnb.launch import card_group
from jaxnb.model.cells import ProcessError, RichOutput
from jaxnb.model.dispatches import Argument, Difference, Made
from jaxnb.model.group import AtLine, DeviceInfo, StackEntry, Waits
from jaxnb.profile import card_stats
from jaxnb.profile.statistics import DeviceStats
from jaxnb.recovery.messages import Lost, Recovered, losses_rows
from jaxnb.recovery.recovering import recovered_card
from support.cards import EVIL, Tags, cell, group, text, value


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


def test_status_tells_the_dead_even_when_folded_and_the_cell_that_runs():
    dead = group(12, state="broken", detail="killed by SIGKILL")
    card = card_group.status_card(dead)
    assert "details" in Tags(card.html).seen
    assert "12 processes on node0" in card.text
    assert "31300" not in card.text
    assert "broken · 3 cells run, last [7]" in card.text
    assert "dead: killed by SIGKILL" in card.text
    running = card_group.status_card(replace(group(state="busy"), cells_run=4, running_cell=8))
    assert "busy · 4 cells run, last [7] · [8] is running" in running.text


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


def test_whom_others_waited_for_is_shown_after_an_interrupt_only() -> None:
    places = AtLine((0, 2), LINE, 12.3, waits=True, late=(1,)), AtLine((1,), LINE, 12.3)
    ended = Waits(places, 12.3, has_ended=True)
    assert card_cell.waits_card(ended).text == ""
    told = card_cell.waits_card(replace(ended, was_interrupted=True))
    assert told.text.startswith("Processes 0,2 had waited for process 1 at line 3: `y = f(x)`")
    assert "Processes 0,2 waited" in told.html


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


def test_what_is_lost_for_several_reasons_is_a_table() -> None:
    lost = [Lost(f"v{i}['a']", "lock", (i % 2,), f"reason {i // 2}") for i in range(6)]
    one, many = (
        " ".join(recovered_card(group(), Recovered((1,), (), those, 0.1, 4)).text.split())
        for those in (tuple(lost[:1]), tuple(lost))
    )
    rerun = "Using one raises an error; run the cells again that made them."
    assert "Lost: `v0['a']` (lock) on process 0: reason 0." in one
    assert one.endswith(rerun)
    assert "lost process why v0['a'] 0 reason 0 v1['a'] 1 reason 0 v2['a'] 0 reason 1" in many
    assert many.endswith(rerun)


def test_what_is_lost_of_one_variable_is_one_row() -> None:
    lost = [
        Lost("y", "generator", (0,), "cannot be pickled: generator", also=("z",)),
        Lost("y", "generator", (1,), "that of process 0 cannot be pickled: generator"),
        Lost("z", "generator", (1,), "that of process 0 cannot be pickled: generator"),
        Lost("Out[5]", "lock", (0,), "no"),
        Lost("Out[5]", "lock", (1,), "nor here"),
    ]
    assert losses_rows(lost) == [
        ("y and z", "0-1", "cannot be pickled: generator"),
        ("Out[5]", "0-1", "no; nor here"),
    ]


def test_nothing_from_a_process_becomes_markup():
    error = ProcessError(EVIL, EVIL, EVIL, f"\x1b[31m{EVIL}\x1b[0m", 3)
    device = DeviceInfo(0, 0, "cpu", EVIL)
    stats = DeviceStats(device, EVIL, 1, 1, None, None, "none", 0, 1, 1, EVIL)
    lost = Lost(EVIL, EVIL, (1,), EVIL)
    recovered = Recovered((1,), (EVIL,), (lost,), 0.1, 4, (EVIL,), {0: EVIL}, (2,), (EVIL,))
    line = StackEntry(EVIL, 1, EVIL, EVIL, 1)
    there = AtLine((0,), line, 1.0, doing=EVIL, last_dispatch=EVIL)
    others = card_value.displays_card({0: [text(EVIL)]}, 0, with_first=True)
    made = [
        recovered_card(group(), recovered),
        card_group.start_card(group(text=EVIL)),
        card_group.status_card(group(text=EVIL, detail=EVIL)),
        card_group.start_card(group(9, text=EVIL)),
        card_group.progress_card(EVIL, EVIL, 1.0),
        card_stats.stats_card([stats]),
        card_cell.waits_card(Waits((there,), 1.0, EVIL, stopped=EVIL, silent=(1,), left=EVIL)),
        card_error.error_card(cell([None, None], errors={0: error})),
        card_cell.cell_card(cell([value(EVIL, b"1")] * 2)),
        card_cell.cell_card(cell([value(EVIL, b"1"), value(EVIL, b"2"), None])),
        card_value.value_card(cell([value(EVIL, image_png=EVIL)])),
        card_value.displays_card({1: [RichOutput({"text/plain": EVIL})]}, 0),
        background_card(1, "now", [], others, None, EVIL),
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


def failed(**names: str) -> dict[int, ProcessError]:
    return {int(i[1:]): ProcessError(name, "", "", "") for i, name in names.items()}


@pytest.mark.parametrize(
    ("seconds", "more", "said"),
    [
        ([0.12, 0.12, 0.31, 0.12], {"compile_seconds": 0.2},
         "4 processes · 0.31 s · slowest 2 (0.31 s, others 0.12 s) · compiled in 0.20 s"),
        # Small differences, two that are slow, and one alone:
        ([0.001, 0.001, 0.02], {}, "3 processes · 0.31 s"),
        ([1.0, 0.1, 1.0], {}, "3 processes · 0.31 s"),
        ([1.0], {}, "1 process · 0.31 s"),
        ([0.1] * 2, {"num_processes": 4}, "processes 0-1 of 4 · 0.31 s"),
        # Who never ended the cell is not the slowest.
        ([0.1, 0.1, 9.0, 0.1], {"errors": failed(p2="ProcessDiedError")},
         "4 processes · 0.31 s · died: 2"),
        ([0.1, 0.1, 9.0, 0.1], {"errors": failed(p2="NoAnswer")},
         "4 processes · 0.31 s · no end on 2"),
        ([0.1] * 3, {"errors": failed(p0="KeyboardInterrupt", p1="KeyboardInterrupt", p2="E")},
         "3 processes · 0.31 s · error on 2 · interrupted on 0-1"),
        ([0.1] * 3, {"errors": failed(p0="DivergenceError", p1="E", p2="DivergenceError")},
         "3 processes · 0.31 s · error on 1 · 0,2 waited"),
        ([0.1] * 2, {"errors": failed(p0="DivergenceError", p1="DivergenceError")},
         "2 processes · 0.31 s · error on 0-1"),
    ],
)  # fmt: skip
def test_the_footer(seconds: list[float], more: dict[str, Any], said: str):
    card = card_cell.footer_card(cell([None] * len(seconds), seconds=seconds, **more))
    assert card.text == said
    Tags(card.html)


def test_variables_of_different_steps_are_a_table_and_how_they_were_made_is_folded():
    def difference(name: str) -> Difference:
        made = [Made(k, "created", "make_array", 7, 5 - k, 2) for k in range(2)]
        return Difference(
            name, tuple(((k,), Argument(0, name, k, each)) for k, each in enumerate(made))
        )

    result = replace(
        cell([None] * 2, errors=failed(p0="E")),
        unequal_names=(difference("x"), difference("y")),
    )
    card = card_cell.below_card(result)
    assert card.text == (
        "Cell [7] stopped at different steps: these variables mix shards of different\narrays.\n"
        "  variable  process  holds\n"
        "  x and y   0        made at line 2 by make_array, array 5\n"
        "            1        made at line 2 by make_array, array 4\n"
        "Bind it to one array, in one cell on all processes, from the start or a\n"
        "checkpoint, or push a value.\n"
        "2 processes · 0.31 s · error on 0"
    )
    assert "of its shape and dtype there" in card.html.partition("<details>")[2]
    Tags(card.html)


def test_to_format_an_error_makes_nobody_slow():
    error = ProcessError("KeyError", "'k'", "", "", 3, seconds=0.01)
    result = cell([None] * 3, errors={1: error}, seconds=[0.004, 0.2, 0.004])
    assert card_cell.straggler(result) is None
    late = replace(error, seconds=0.19)
    assert card_cell.straggler(cell([None] * 3, errors={1: late}, seconds=[0.004, 0.2, 0.004])) == 1


def test_an_ordinary_cell_is_small_and_quick():
    result = cell([value("42", b"x")] * 4, seconds=[0.12, 0.12, 0.31, 0.12], compile_seconds=0.2)
    assert len(card_cell.cell_card(result).html) < 1500
    begin = time.process_time()
    for _ in range(100):
        card_cell.cell_card(result)
    assert (time.process_time() - begin) / 100 < 0.02


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


def test_importing_the_cards_loads_no_front_end():
    code = (
        "import sys; from jaxnb.cells import card_cell, card_error, card_value; "
        "from jaxnb.launch import card_group; "
        "from jaxnb.profile import card_stats; "
        "heavy = {'jax', 'IPython', 'ipyparallel', 'jinja2', 'numpy'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
