"""A recovery ends no process that was healthy: one that cannot pack, or is silent while it does."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxnb.cells.sinks import StderrNotices
from jaxnb.errors import JaxnbError
from jaxnb.recovery import carrier
from jaxnb.session import Session
from support.faults import Finger, assert_kept

HELD = """
import ctypes, os

class Held:
    def __reduce__(self):  # opens a FIFO in C code that holds the interpreter's lock
        if process_index == 0:
            ctypes.PyDLL(None).open({!r}.encode(), os.O_RDONLY)
        return int, (7,)

a, held = 5 + process_index, Held()
"""


def test_variables_outlive_a_packing_that_raises(
    make_session: Callable[..., Session], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mmap", "statistics", "fractions", "pickle", "queue"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('of the user')")
    monkeypatch.chdir(tmp_path)
    session = make_session(2)
    pids = [each.pid for each in session.processes]
    session.run("import sys; a = 5 + process_index; sys.modules['jaxnb.recovery'] = None")
    with pytest.raises(JaxnbError, match=r"could not pack its variables: .*Nothing has changed"):
        session.recover()
    assert [each.pid for each in session.processes] == pids
    assert session.state == "ready"
    session.run("del sys.modules['jaxnb.recovery']")
    session.recover()  # the files do not disturb it
    assert [each.pid for each in session.processes] != pids
    assert_kept(session, "assert a == 5 + process_index")


def test_an_object_that_holds_python_while_it_packs_costs_nothing(
    make_session: Callable[..., Session], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, fifo = make_session(2), tmp_path / "fifo"
    os.mkfifo(fifo)
    pids = [each.pid for each in session.processes]
    session.run(HELD.format(str(fifo)))
    monkeypatch.setattr(carrier, "SILENT_SECONDS", -1.0)  # who is given up is so at once
    told: list[str] = []

    def press(_: StderrNotices, text: str) -> None:
        told.append(text)
        finger.press()

    monkeypatch.setattr(StderrNotices, "notice", press)
    with Finger() as finger, pytest.raises(KeyboardInterrupt, match="Nothing has changed"):
        session.recover()
    assert "process 0 does not answer while it packs its variables: pickling" in told[0]
    fifo.write_text("")  # it ends
    assert_kept(session, "assert a == 5 + process_index and type(held) is Held")
    assert [each.pid for each in session.processes] == pids

    silent = threading.Event()
    monkeypatch.setattr(StderrNotices, "notice", lambda _, text: silent.set())
    end = threading.Thread(target=lambda: silent.wait() and fifo.write_text(""), daemon=True)
    end.start()
    recovered = session.recover()
    end.join()
    assert (recovered.lost, recovered.given_up) == ((), {})
    assert_kept(session, "assert a == 5 + process_index and held == 7")
