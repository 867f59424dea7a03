"""Where a row is played: a group, evidence of where its processes are, and a user's hand.

And how: for each *when*, what is under way and where the fault strikes.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from faults.table import code, places
from faults.table.rows import DEATHS, PROCESSES, WAITS_IN_JAX, WAITS_IN_PYTHON, Row
from jaxnb.cells import card_value
from jaxnb.cells.result import CellResult
from jaxnb.cells.sinks import NoSink, StderrNotices
from jaxnb.display.markup import strip_ansi
from jaxnb.labels import processes_label
from jaxnb.model.group import Whereabouts
from jaxnb.recovery.messages import Recovered
from jaxnb.recovery.recovering import recovered_card
from jaxnb.session import Session
from jaxnb.session.panel import is_in_jax, waits
from support.faults import Finger
from support.fixtures import until

LOOKS = 5
"""Who is seen to wait at one place so many times, stays there."""


class Told(NoSink):
    """Keeps all that jaxnb says of its own accord."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def notice(self, text: str) -> None:
        self.texts.append(text)


class Stage:
    """A group, and what a row needs to know of it.

    Attributes:
        session: The group.
        row: The row.
        process: The row's process, as it was at first.
        sink: What was said of cells.
        recovered: What became of variables, if the user typed that.
        cell: The number of the cell that ran.
        source: Its source.
    """

    def __init__(self, session: Session, row: Row, folder: Path) -> None:
        self.session, self.row, self.folder = session, row, folder
        self.which = row.index
        self.others = [i for i in range(PROCESSES) if i != row.index]
        self.process = session.processes[row.index]
        self.sink = Told()
        self.recovered: Recovered | None = None
        self.cell: int | None = None
        self.source = ""
        self._writers: list[int] = []
        self._finger = Finger()

    # ------------------------------------------------------------------ evidence

    def until_at_gate(self, *indices: int) -> None:
        """Waits until processes wait for their FIFOs to be written to."""

        def open_for_writing(path: Path) -> bool:
            try:
                self._writers.append(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            except OSError:  # nobody reads
                return False
            return True

        for index in indices:
            path = self.folder / str(index)
            until(lambda path=path: open_for_writing(path), f"process {index} was at the gate")

    def until_all(self, indices: list[int], are: Callable[[Whereabouts], bool]) -> None:
        """Waits until all of some processes are somewhere."""

        def is_so() -> bool:
            found = self.session.where(indices)
            return set(found) == set(indices) and all(map(are, found.values()))

        until(is_so, f"processes {indices} were there")

    def until_they_wait(self) -> None:
        """Waits until all other processes wait in JAX, and do not compile.

        They have to be seen at the same place a few times: who waits for the lock of its
        interpreter, which the thread that answers has, looks the same once.
        """
        has_compiled = self.row.kind != "first compile"
        seen: list[dict[int, tuple[object, ...]]] = []

        def wait(where: Whereabouts) -> bool:
            is_there = waits(where) or is_in_jax(where)
            return is_there and (has_compiled or where.last_dispatch is not None)

        def stay() -> bool:
            found = self.session.where(self.others)
            if set(found) != set(self.others) or not all(map(wait, found.values())):
                seen.clear()
                return False
            seen.append({i: (where.stack, where.last_dispatch) for i, where in found.items()})
            return len(seen) >= LOOKS and all(each == seen[-1] for each in seen[-LOOKS:])

        until(stay, f"processes {self.others} waited")

    def until_in_fault(self) -> None:
        """Waits until the row's process is past the gate, in what it does not leave."""
        kind = self.row.kind

        def is_in_it(where: Whereabouts) -> bool:
            innermost = where.stack[-1] if where.stack else None
            if innermost is None or "gate" in innermost.function:
                return False
            if kind in ("loop", "swallow", "swallow all"):
                return innermost.cell is not None and "while True: " in innermost.source
            if kind == "subprocess":
                return innermost.file.endswith("subprocess.py") and "wait" in innermost.function
            if kind == "lock":  # in the cell's own line
                return innermost.cell is not None and "acquire" in innermost.source
            return waits(where) or is_in_jax(where)

        self.until_all([self.which], is_in_it)

    def until_stopped(self) -> None:
        """Waits until the row's process does not run, though it lives."""
        until(lambda: places.is_stopped(self.process), "the process was stopped")

    def until_it_is_busy(self) -> None:
        """Waits until a cell has been sent to the row's process, which has not answered."""
        until(lambda: self.session.processes[self.which].state == "busy", "it was in the cell")

    def until_only_it_is_busy(self) -> None:
        """Waits until all other processes have left the cell."""
        self._until_left(self.others)

    def _until_left(self, indices: list[int]) -> None:
        until(
            lambda: not any(self.session.processes[i].state == "busy" for i in indices),
            f"processes {indices} left the cell",
        )

    # ------------------------------------------------------------------ the fault

    def open_gates(self) -> None:
        """Lets processes through that are at their gates: now it goes wrong."""
        while self._writers:
            os.close(self._writers.pop())

    def send(self) -> None:
        """Sends the row's process the signal that the row is about, if it is about one."""
        if self.row.how in ("SIGKILL", "SIGSTOP"):
            places.send(self.process, getattr(signal, self.row.how))
        if self.row.how == "SIGSTOP":
            self.until_stopped()

    # ------------------------------------------------------------------ the user's hand

    def press(self) -> None:
        """Interrupts, as Jupyter does: SIGINT to the notebook's process."""
        self._finger.press()

    def press_again_when_told(self, texts: list[str]) -> None:
        """Interrupts a second time, if the row says so, when that was offered."""
        if self.row.presses == 2:
            offered = "Interrupt again"
            until(lambda: any(offered in t for t in texts), "the user was told")
            others_wait = self.row.when == "collective" and self.row.kind == "key"
            self._until_left([self.which] if others_wait else self.others)
            self.press()

    @contextmanager
    def hand(self, *steps: Callable[[], object]) -> Iterator[None]:
        """Does things, one after the other, in another thread beside the block."""
        problems: list[BaseException] = []

        def do() -> None:
            try:
                for step in steps:
                    step()
            except BaseException as error:
                problems.append(error)
                self.session.close()  # so that nobody waits for what will not come

        self._finger = Finger()
        thread = threading.Thread(target=do, name="the user's hand")
        thread.start()
        try:
            with self._finger:
                yield
        finally:
            thread.join()
            self.open_gates()
            if problems:
                raise problems[0]


# ---------------------------------------------------------------------- the scenes

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
    if row.when != "collective" or row.kind not in WAITS_IN_JAX:
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
        return [stage.until_in_fault]
    return []


def _parted(stage: Stage, source: str) -> list[str]:
    ranks = [stage.which] if stage.row.kind == "some ranks" else None
    stage.source, stage.cell = source, _next_cell(stage)
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
    places.send(session.processes[DEPUTY], signal.SIGKILL)
    until(lambda: session.state == "broken", "the death was known")

    def strike(step: str, detail: str) -> None:
        if step == "packing":
            stage.send()

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
