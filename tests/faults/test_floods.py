"""Cells that print without end: memory stays bounded, and what is not kept is said."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

from jaxnb.cells.allowance import TAIL_CHARS, share_of
from jaxnb.cells.process_output import MAX_TEXT_CHARS
from jaxnb.cells.sinks import NoSink
from jaxnb.errors import CellError
from jaxnb.session import Session
from support.fixtures import assert_usable

MIB = 1 << 20


class Notices(NoSink):
    """Keeps jaxnb's own sentences, and says when the first has come."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.came = threading.Event()

    def notice(self, text: str) -> None:
        self.texts.append(text)
        self.came.set()


class Memory:
    """Most memory that the notebook and the processes of a group had, beside what they began with.

    Attributes:
        notebook: Bytes of this process.
        processes: Bytes of the process of the group that took most.
    """

    def __init__(self, session: Session) -> None:
        self._watched = [psutil.Process(), *(psutil.Process(p.pid) for p in session.processes)]
        self._before = self._now()
        self._most = list(self._before)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _now(self) -> list[int]:
        return [process.memory_info().rss for process in self._watched]

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            self._most = [max(pair) for pair in zip(self._most, self._now(), strict=True)]

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        more = [a - b for a, b in zip(self._most, self._before, strict=True)]
        self.notebook, self.processes = more[0], max(more[1:])
        print(f"notebook +{self.notebook / MIB:.0f} MiB, process +{self.processes / MIB:.0f} MiB")

    def still_held(self) -> int:
        """Returns what processes of the group hold now beside what they began with."""
        return max(a - b for a, b in zip(self._now()[1:], self._before[1:], strict=True))


@contextmanager
def status_asked(session: Session) -> Iterator[list[int]]:
    """Asks where the processes are, again and again; yields how many answered each time."""
    answers: list[int] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.wait(0.2):
            if session.group.state == "busy":
                answers.append(len(session.where()))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield answers
    finally:
        stop.set()
        thread.join()


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_ten_million_lines_from_each(make_session: Callable[..., Session]) -> None:
    session, sink = make_session(2), Notices()
    with Memory(session) as memory, status_asked(session) as answers:
        result = session.run("for i in range(10_000_000): print(i)", sink=sink)
    most, _ = share_of(2)
    for each in result.per_process.values():
        lines = each.stdout.splitlines()
        assert lines[:most] == [str(i) for i in range(most)]
        assert lines[-1] == "9999999"
        # `print` writes a newline by itself: the text of one more line still fitted.
        assert lines[most] == str(most)
        kept = lines[most + 2 :]
        assert kept == [str(i) for i in range(10_000_000 - len(kept), 10_000_000)]
        assert sum(map(len, kept)) + len(kept) <= TAIL_CHARS
        missing = f"{10_000_000 - most - len(kept):,}".replace(",", " ")
        assert lines[most + 1].startswith(f"… {missing} lines (")
    assert len(sink.texts) == 2
    assert "What follows is counted" in sink.texts[0]
    assert sink.texts[1].startswith("processes 0-1 wrote 19 ")
    assert memory.notebook < 700 * MIB
    assert memory.processes < 100 * MIB
    assert 2 in answers
    assert_usable(session)


@pytest.mark.thorough
def test_lines_without_end_are_interrupted(make_session: Callable[..., Session]) -> None:
    session, sink = make_session(4), Notices()

    def interrupt() -> None:
        assert sink.came.wait(100)
        session.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    code = "i = 0\nwhile True:\n    print(process_index, i)\n    i += 1"
    with Memory(session) as memory, pytest.raises(CellError, match="KeyboardInterrupt") as raised:
        session.run(code, sink=sink, timeout=110)
    thread.join()
    assert all(e.type_name == "KeyboardInterrupt" for e in raised.value.result.errors.values())
    assert memory.notebook < 700 * MIB
    assert memory.processes < 100 * MIB
    assert_usable(session)


@pytest.mark.parametrize("is_measured", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_one_line_of_100_megabytes(
    session: Session, make_session: Callable[..., Session], is_measured: bool
) -> None:
    """Measured on a group of its own: the other's processes may hold more from before."""
    session, sink = make_session(2) if is_measured else session, Notices()
    with Memory(session) as memory:
        result = session.run("print('x' * 100_000_000)\nprint('after')", ranks=[0], sink=sink)
    _, most = share_of(session.num_processes)
    line, said, after = result.per_process[0].stdout.splitlines()
    assert line == "x" * most
    missing = 100_000_000 + 1 - most
    assert said == f"… 1 line ({missing:,} characters) not kept".replace(",", " ")
    assert after == "after"
    assert f"{missing:,} characters".replace(",", " ") in sink.texts[-1]
    if is_measured:
        assert memory.notebook < 500 * MIB
        assert memory.processes < 500 * MIB
        assert memory.still_held() < 150 * MIB
    assert_usable(session)


@pytest.mark.thorough
def test_a_repr_of_500_megabytes(make_session: Callable[..., Session]) -> None:
    session = make_session(2)
    session.run("class Large:\n    def __repr__(self): return 'r' * 500_000_000")
    with Memory(session) as memory:
        # On one process: IPython makes the whole text before anything can cut it.
        result = session.run("Large()", ranks=[0])
    info = result.per_process[0].value_info
    assert info is not None
    text = info.mimebundle["text/plain"]
    assert len(text) <= MAX_TEXT_CHARS
    assert text.endswith(" of 500 000 000 characters not shown")
    assert memory.notebook < 100 * MIB
    assert memory.still_held() < 200 * MIB
    assert_usable(session)


WARNINGS = """
import logging, warnings
warnings.simplefilter("always")
for i in range(10_000):
    warnings.warn(f"trouble {i}")
    logging.warning("logged %d", i)
"""


def test_ten_thousand_warnings_come_whole(session: Session) -> None:
    result = session.run(WARNINGS, ranks=[0, 1])
    for each in result.per_process.values():
        for i in (0, 1, 5_000, 9_999):
            assert f"UserWarning: trouble {i}\n" in each.stderr
        assert each.stderr.count("UserWarning: trouble") == 10_000
        assert each.stderr.count("WARNING:root:logged") == 10_000
    assert_usable(session)


def test_many_flushes_keep_the_order_with_displays(session: Session) -> None:
    """Flushes that come too fast are put off, but never past what is displayed."""
    code = (
        "from IPython.display import display\n"
        "for i in range(300):\n    print(i, flush=True)\n    if i % 100 == 99: display(i)"
    )
    shown: list[str] = []

    class Order(NoSink):
        def lines(self, lines: list[object]) -> None:  # type: ignore[override]
            shown.extend(line.text for line in lines)  # type: ignore[attr-defined]

        def display(self, process_index: int, output: object) -> None:
            if process_index == 0:
                shown.append("display " + output.data["text/plain"])  # type: ignore[attr-defined]

    session.run(code, sink=Order(), outputs="first")
    expected = [str(i) for i in range(300)]
    assert [line for line in shown if not line.startswith("display")] == expected
    for i in (99, 199, 299):
        assert shown.index(f"display {i}") > shown.index(str(i))


@pytest.mark.thorough
def test_a_thread_of_an_earlier_cell_floods_nobody(make_session: Callable[..., Session]) -> None:
    session, sink = make_session(1), Notices()
    code = (
        "import threading\nflooding = threading.Event(); done = threading.Event()\n"
        "def flood():\n"
        "    for i in range(700_000):\n"
        "        print('z' * 100)\n"
        "        if i == 300_000: flooding.set()\n"
        "    done.set()\n"
        "threading.Thread(target=flood, daemon=True).start()"
    )
    with Memory(session) as memory:
        results = [
            session.run(each, sink=sink)
            for each in (code, "assert flooding.wait(100)", "assert done.wait(100)", "1")
        ]
    assert memory.notebook < 700 * MIB
    assert memory.processes < 200 * MIB
    kept = sum(result.stdout.count("z" * 100) for result in results)
    # Each cell has its own allowance: together they may hold all of it. What comes between cells
    # has another.
    told = ("than a cell keeps", "between cells were dropped")
    assert kept == 700_000 or any(each in text for text in sink.texts for each in told), kept
    assert_usable(session)
