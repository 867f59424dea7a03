"""Output reaches the notebook while the cell runs, merged, and none of it is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from jaxnb.cells.merge_output import MergedLine
from jaxnb.cells.sinks import NoSink
from jaxnb.errors import JaxnbError
from jaxnb.labels import Outputs
from jaxnb.model.cells import RichOutput
from jaxnb.session import Session
from support.fixtures import PATIENT_SECONDS

pytestmark = pytest.mark.usefixtures("exact_labels")


if TYPE_CHECKING:
    from conftest import Gate

ALL = [0, 1, 2, 3]


class Recorder(NoSink):
    """A sink that keeps what it is shown, and does something once it has seen enough."""

    def __init__(
        self, enough: Callable[[Recorder], bool] = lambda _: False, then: Callable[[], None] = int
    ) -> None:
        self.shown: list[str] = []
        self.lived: list[list[str]] = []
        self.notices: list[str] = []
        self.threads: set[int] = set()
        self._enough = enough
        self._then: Callable[[], None] | None = then

    def lines(self, lines: list[MergedLine]) -> None:
        self.shown += [line.labelled() for line in lines]
        self._look()

    def live(self, lines: list[MergedLine]) -> None:
        self.lived.append([line.labelled() for line in lines])
        self._look()

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def _look(self) -> None:
        self.threads.add(threading.get_ident())
        if self._then is not None and self._enough(self):
            then, self._then = self._then, None
            then()

    @property
    def fired(self) -> bool:
        return self._then is None


def test_output_comes_while_the_cell_runs(session: Session, gate: Gate) -> None:
    sink = Recorder(lambda s: "[0-3] before" in s.shown, gate.open)
    # Only the sink opens the gate: the cell cannot end before its first line has been shown.
    session.run(f"print('before')\n{gate.wait}\nprint('after')", sink=sink, timeout=PATIENT_SECONDS)
    assert sink.fired
    assert sink.shown == ["[0-3] before", "[0-3] after"]


def test_output_of_one_process_is_not_held_back_by_silent_ones(
    session: Session, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # lines wait for their twins no longer than they do for users
    sink = Recorder(lambda s: "[2] only me" in s.shown, gate.open)
    session.run(
        f"if process_index == 2: print('only me')\n{gate.wait}", sink=sink, timeout=PATIENT_SECONDS
    )
    assert sink.shown == ["[2] only me"]


def test_unfinished_lines_are_live(session: Session, gate: Gate) -> None:
    sink = Recorder(lambda s: ["[0-3] loss: "] in s.lived or ["[0-3] loss:"] in s.lived, gate.open)
    session.run(
        f"print('loss: ', end='', flush=True)\n{gate.wait}\nprint('0.5')",
        sink=sink,
        timeout=PATIENT_SECONDS,
    )
    assert sink.fired
    assert sink.shown == ["[0-3] loss: 0.5"]
    assert sink.lived[-1] == []


def test_progress_bars_are_live_and_end_as_one_line(session: Session, gate: Gate) -> None:
    sink = Recorder(lambda s: any("2/3" in line for lines in s.lived for line in lines), gate.open)
    code = (
        "from tqdm import tqdm\n"
        "for step in tqdm(range(3), mininterval=0, bar_format='{n_fmt}/{total_fmt}'):\n"
        f"    if step == 2:\n        {gate.wait}\n"
    )
    result = session.run(code, sink=sink, timeout=PATIENT_SECONDS)
    assert sink.fired
    assert sink.shown == ["[0-3] 3/3"]
    assert result.stderr == "[0-3] 3/3\n"


def test_bars_that_would_be_widgets_are_text(session: Session) -> None:
    code = (
        "import tqdm.notebook\nfrom tqdm.auto import tqdm as auto\n"
        "for bar in (tqdm.notebook.tqdm, auto):\n"
        "    for _ in bar(range(3), bar_format='{n_fmt}/{total_fmt}'): pass\n"
        "tqdm.notebook.trange is tqdm.trange"
    )
    result = session.run(code)
    assert result.stderr == "[0-3] 3/3\n[0-3] 3/3\n"
    assert result.value is True


class InOrder(Recorder):
    """Keeps displays among the lines."""

    def display(self, process_index: int, output: RichOutput) -> None:
        if process_index == 0:
            self.shown.append(output.data["text/plain"])


def test_lines_and_displays_stand_in_the_order_in_which_they_were_made(session: Session) -> None:
    sink = InOrder()
    code = "for i in range(30):\n    print('line', i)\n    display(i)\nprint('end')"
    session.run(code, sink=sink)
    expected = [text for i in range(30) for text in (f"[0-3] line {i}", str(i))]
    assert sink.shown == [*expected, "[0-3] end"]


@pytest.mark.parametrize(
    ("outputs", "shown"),
    [
        ("merged", ["[0-3] same"]),
        ("all", ["[0] same", "[1] same", "[2] same", "[3] same"]),
        ("first", ["[0] same"]),
    ],
)
def test_outputs(session: Session, outputs: Outputs, shown: list[str]) -> None:
    sink = Recorder()
    result = session.run("print('same')", sink=sink, outputs=outputs)
    assert sorted(sink.shown) == shown
    assert [result.per_process[i].stdout for i in ALL] == ["same\n"] * 4


TEE = """
import io, sys
class Tee(io.TextIOBase):
    def __init__(self, real): self.real = real
    def write(self, text): return self.real.write(text)
sys.stdout = Tee(sys.stdout)
"""


def test_what_stands_for_standard_output_need_not_flush_it(session: Session) -> None:
    session.run(TEE)
    try:
        for i in range(10):
            assert session.run(f"print({i})").stdout == f"[0-3] {i}\n"
    finally:
        session.run("sys.stdout = sys.stdout.real")


def test_nothing_is_lost_of_10_000_lines_from_each(session: Session) -> None:
    sink = Recorder()
    code = "for i in range(10_000): print('line', i, process_index if i % 1000 == 0 else '')"
    result = session.run(code, sink=sink, timeout=PATIENT_SECONDS)
    for index in ALL:
        expected = [f"line {i} {index if i % 1000 == 0 else ''}" for i in range(10_000)]
        assert result.per_process[index].stdout.splitlines() == expected
    assert result.stdout.splitlines() == sink.shown
    said = [0] * 4
    for line in sink.shown:
        for index in _processes(line):
            said[index] += 1
    assert said == [10_000] * 4


STOPPED = """
import itertools, os, signal, sys, threading
numbers = itertools.count()
for i in range(6):
    try:
        threading.Timer(0.001, os.kill, (os.getpid(), signal.SIGINT)).start()
        while True: sys.stdout.write(f"{next(numbers)}\\n")
    except KeyboardInterrupt: pass
next(numbers)
"""


def test_a_loop_that_is_interrupted_has_printed_each_line_once(session: Session) -> None:
    result = session.run(STOPPED, ranks=[0])
    found = [int(line) for line in result.per_process[0].stdout.splitlines()]
    assert found == sorted(set(found))
    assert len(found) >= result.value - 6  # an interrupt may strike before a number is written


def _processes(line: str) -> list[int]:
    label = line[1 : line.index("]")]
    found = []
    for part in label.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def test_all_is_shown_in_the_thread_that_runs_the_cell(session: Session) -> None:
    sink = Recorder()
    session.run("print('x')\nprint('y', end='')", sink=sink)
    assert sink.threads == {threading.get_ident()}


def test_a_sink_that_raises_does_not_break_the_group(session: Session) -> None:
    class Broken(Recorder):
        def lines(self, lines: list[MergedLine]) -> None:
            raise OSError("no paper")

    with pytest.raises(
        JaxnbError, match="has run, but its output could not be shown: OSError: no paper"
    ) as raised:
        session.run("done = True\nfor i in range(100): print(i)", sink=Broken())
    assert isinstance(raised.value.__cause__, OSError)
    assert session.state == "ready"
    assert session.run("done").value is True


def test_what_c_code_writes_comes_whole_and_without_gloos_lines(
    session: Session, gate: Gate
) -> None:
    """Whatever it looks like, also between gloo's pieces, and before the end of its line."""
    gloos = "[Gloo] Rank 1 is connected to 3 peer ranks. "
    end = "Expected number of connected peer ranks is : 3\n"
    own = "1" * 24 + "\n[Gloo] Rank 1 is stuck\n"
    sink = Recorder(lambda s: ["[0] loss: ½"] in s.lived, gate.open)
    write = "import os\nif process_index == 0:\n    for piece in pieces: os.write(1, piece)\n"
    written = f"{own}{gloos}{end}{gloos}[Gloo] Rank 1{end}{gloos[13:]}{end}loss: ½".encode()
    pieces = [written[i : i + 7] for i in range(0, len(written), 7)]
    session.run(f"pieces = {pieces!r}\n{write}{gate.wait}", sink=sink, timeout=PATIENT_SECONDS)
    assert sink.fired
    assert sink.shown == [*(f"[0] {line}" for line in own.splitlines()), "[0] loss: ½"]
