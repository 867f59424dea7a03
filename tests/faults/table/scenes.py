"""How the rows are played: for each *when*, what is under way and where the fault strikes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np

from faults.table import code
from faults.table.axes import WAITS_IN_JAX, WAITS_IN_PYTHON
from faults.table.rows import DEATHS
from faults.table.stage import Stage
from jaxnb.cells import card_value
from jaxnb.cells.result import CellResult
from jaxnb.cells.sinks import StderrNotices
from jaxnb.display.markup import strip_ansi
from jaxnb.labels import processes_label
from jaxnb.recovery.card import recovered_card
from support.fixtures import until

DEPUTY = 1
"""The process that dies so that there is a group to form anew."""


class Pushed:
    """Is made on the processes by the row's code."""

    def __reduce__(self) -> Any:
        return eval, (code.MAKE,)


def run(stage: Stage, source: str, **settings: Any) -> CellResult:
    """Runs a cell of the row, and keeps what is said."""
    stage.source, stage.cell = source, _next_cell(stage)
    return stage.session.run(source, sink=stage.sink, **settings)


def in_a_cell(stage: Stage) -> list[str]:
    """``Python`` and ``collective``: the processes are in their places before it goes wrong."""
    row = stage.row
    source = code.cell(row)
    if row.how.startswith("mismatch"):
        return _parted(stage, source)
    at_gate = [stage.which, *(stage.others if row.when == "Python" else [])]
    steps: list[Callable[[], object]] = [lambda: stage.until_at_gate(*at_gate)]
    if row.when == "collective":
        steps.append(stage.until_they_wait)
    if row.kind in WAITS_IN_JAX and row.when == "collective":
        steps.append(stage.mark)
    else:
        steps += [stage.open_gates, *_struck(stage)]
    if row.presses and row.when == "Python":
        steps.append(stage.until_only_it_is_busy)
    if row.presses:
        steps += [stage.press, lambda: stage.press_again_when_told(stage.sink.texts)]
    with stage.hand(*steps):
        run(stage, source)
    return []


def _struck(stage: Stage) -> list[Callable[[], object]]:
    """Returns what is to be done to a process that is past its gate."""
    how, kind = stage.row.how, stage.row.kind
    if how in ("SIGKILL", "SIGSTOP"):
        return [stage.send]
    if how == "loop" or kind in WAITS_IN_PYTHON or (kind in WAITS_IN_JAX and stage.row.presses):
        return [stage.until_in_fault, stage.mark]
    return []


def _parted(stage: Stage, source: str) -> list[str]:
    ranks = [stage.which] if stage.row.kind == "some ranks" else None
    stage.source, stage.cell = source, _next_cell(stage)
    stage.mark()
    result = stage.session.run(source, ranks=ranks)
    return [] if result.value is None else [card_value.value_card(result, "merged").text]


def _next_cell(stage: Stage) -> int:
    last = stage.session.last_result
    return last.cell + 1 if last is not None else 1


def idle(stage: Stage) -> list[str]:
    """No cell runs: a thread of an earlier cell does it, or somebody from outside."""
    how = stage.row.how
    if how in ("SIGKILL", "SIGSTOP"):
        stage.send()
    else:
        thread = f"def late():\n    gate()\n    {code.FAULTS[how]}\n"
        stage.session.run(code.only(stage.row, f"{thread}threading.Thread(target=late).start()"))
        stage.until_at_gate(stage.which)
        stage.open_gates()
    if how in DEATHS:
        until(lambda: stage.session.state == "broken", "the death was known")
    if how == "SIGSTOP":
        steps = (
            stage.until_it_is_busy,
            stage.until_only_it_is_busy,
            stage.press,
            lambda: stage.press_again_when_told(stage.sink.texts),
        )
        with stage.hand(*steps):
            run(stage, "1")
    elif how == "raise":
        texts: list[str] = []
        until(lambda: _tell(stage, texts), "the thread's traceback was shown")
        return texts
    else:
        assert run(stage, "1 + 1").value == 2
    return []


def _tell(stage: Stage, texts: list[str]) -> bool:
    """Runs an empty cell, and keeps what processes wrote since the last one."""
    # From Python 3.13 on a thread's traceback has colours.
    texts.append(strip_ansi(stage.session.run("pass").stderr))
    return "ValueError: boom" in "".join(texts)


def moving(stage: Stage) -> list[str]:
    """``pull`` and ``push``: a process runs code of the user's for a value."""
    row, session = stage.row, stage.session
    if row.how.startswith("mismatch"):
        session.run(code.odd_value(row))
        stage.mark()
        return _pulled(stage)
    session.run(code.reducing(row) if row.when == "pull" else code.making(row))
    notices = stage.sink.texts
    steps: list[Callable[[], object]] = [
        lambda: stage.until_at_gate(stage.which),
        stage.open_gates,
        *_struck(stage),
    ]
    if row.presses:
        steps += [stage.press, lambda: stage.press_again_when_told(notices)]
    original = StderrNotices.notice
    StderrNotices.notice = lambda self, text: notices.append(text)  # type: ignore[method-assign]
    try:
        with stage.hand(*steps):
            if row.when == "pull":
                session.pull("faulty")
            else:
                session.push(plain=Pushed())
    finally:
        StderrNotices.notice = original  # type: ignore[method-assign]
    return []


def _pulled(stage: Stage) -> list[str]:
    """Returns what came, as the user reads it: which processes have which value."""
    value = stage.session.pull("odd")
    parts: dict[str, list[int]] = {}
    for index, each in value.items():
        # Of a key its last word.
        what = each.shape if stage.row.kind == "shape" else int(np.ravel(each)[-1])
        parts.setdefault(str(what), []).append(index)
    return [f"{processes_label(who)}: {text}" for text, who in parts.items()]


def re_forming(stage: Stage) -> list[str]:
    """Another process has died and is being replaced."""
    row, session = stage.row, stage.session
    if row.how.startswith("mismatch"):
        session.run(code.odd_value(row))
    elif row.how not in ("SIGKILL", "SIGSTOP"):
        session.run(f"{code.LESS_PATIENCE}\n{code.reducing(row, gated=False)}")
    os.kill(session.processes[DEPUTY].pid, signal.SIGKILL)
    until(lambda: session.state == "broken", "the death was known")

    def strike(step: str, detail: str) -> None:
        if step == "packing":
            stage.send()

    stage.mark()
    stage.recovered = session.recover(strike)
    return [recovered_card(session.group, stage.recovered).text]


SCENES: dict[str, Callable[[Stage], list[str]]] = {
    "idle": idle,
    "Python": in_a_cell,
    "collective": in_a_cell,
    "pull": moving,
    "push": moving,
    "re-forming": re_forming,
}
"""Each plays a row; it returns what the user is shown if nothing is raised."""
