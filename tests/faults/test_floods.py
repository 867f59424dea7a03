"""Cells that print without end: memory stays bounded, and what is not kept is said."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psutil
import pytest

from jaxnb.cells.allowance import share_of
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


def held_bytes(session: Session) -> list[int]:
    """Returns the memory of the notebook's process, and of each process of the group."""
    pids = [None, *(each.pid for each in session.processes)]
    return [psutil.Process(pid).memory_info().rss for pid in pids]


@pytest.mark.thorough
def test_lines_without_end_are_interrupted(make_session: Callable[..., Session]) -> None:
    session, sink = make_session(4), Notices()

    def interrupt() -> None:
        assert sink.came.wait(100)
        session.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    code = "i = 0\nwhile True:\n    print(process_index, i)\n    i += 1"
    before = held_bytes(session)
    with pytest.raises(CellError, match="KeyboardInterrupt") as raised:
        session.run(code, sink=sink, timeout=110)
    thread.join()
    assert all(e.type_name == "KeyboardInterrupt" for e in raised.value.result.errors.values())
    notebook, *processes = (b - a for a, b in zip(before, held_bytes(session), strict=True))
    assert notebook < 700 * MIB
    assert max(processes) < 100 * MIB
    assert_usable(session)


def test_one_line_of_100_megabytes(session: Session) -> None:
    sink = Notices()
    result = session.run("print('x' * 100_000_000)\nprint('after')", ranks=[0], sink=sink)
    _, most = share_of(session.num_processes)
    line, said, after = result.per_process[0].stdout.splitlines()
    assert line == "x" * most
    missing = 100_000_000 + 1 - most
    assert said == f"… 1 line ({missing:,} characters) not kept".replace(",", " ")
    assert after == "after"
    assert f"{missing:,} characters".replace(",", " ") in sink.texts[-1]
    assert_usable(session)


def test_the_end_of_a_flood_comes_with_its_cell_also_where_that_has_flushed(
    session: Session,
) -> None:
    lines = share_of(session.num_processes)[0] + 5_000
    code = f"import sys\nsys.stdout.write('x\\n' * {lines})\nsys.stdout.flush()"
    for _ in range(4):
        result = session.run(code, ranks=[0], sink=Notices())
        assert result.per_process[0].stdout == "x\n" * lines


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
