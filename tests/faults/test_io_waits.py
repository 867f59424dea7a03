"""One process reads, writes or waits for a child while the others wait for it: that is said."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.test_freeing import PROCESSES, SETUP, Panels, assert_kept, press_interrupt
from jaxnb import freeing
from jaxnb.errors import CellTimeoutError
from jaxnb.session import Session

pytestmark = pytest.mark.timing

# Process 1 waits without end, unless somebody writes to the FIFO.
IN_IO = {
    "open(fifo).read()": "opening {fifo}",
    "os.read(both, 1)": "reading {fifo}",
    "subprocess.run(['sleep', '1000'])": "waiting for child process ",
    "subprocess.run(['sleep', '1000'], capture_output=True)": "waiting for a pipe",
    "here, there = socket.socketpair(); here.recv(1)": "reading a socket",
    "t = threading.Thread(target=os.read, args=(both, 1), daemon=True); t.start(); t.join()": (
        "reading {fifo}"
    ),
}

OTHERWISE = {
    "time.sleep(1000)": ("asleep", "slow"),
    "while True: pass": ("computing", "slow"),
    "gate = threading.Lock(); gate.acquire(); gate.acquire()": ("waiting for a lock", "lock"),
}


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


@pytest.fixture
def group(
    make_session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch, fifo: Path
) -> Session:
    monkeypatch.setattr(freeing, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(freeing, "ALL_WAIT_SECONDS", 1.0)
    session = make_session(PROCESSES, check="off")
    session.run(f"import os, socket, subprocess, time\nfifo = {str(fifo)!r}\n{SETUP}")
    return session


def on_one(code: str) -> str:
    opened = "both = os.open(fifo, os.O_RDWR); " if "both" in code else ""
    return f"if process_index == 1:\n    {opened}{code}\nfloat(f(x))"


def test_what_the_others_wait_for_is_told_with_its_cause(group: Session, fifo: Path) -> None:
    said = {code: (f"I/O: {doing.format(fifo=fifo)}", "I/O") for code, doing in IN_IO.items()}
    for code, (doing, cause) in {**said, **OTHERWISE}.items():
        sink = Panels(press_interrupt)
        result = group.run(on_one(code), sink=sink, raise_on_error=False, timeout=60)
        assert sink.panels, (code, result.errors)
        (work,) = sink.panels[0].at_work
        assert (work.processes, work.doing[: len(doing)], work.cause) == ((1,), doing, cause)
        assert sink.panels[0].cause == result.cause == cause
        assert (group.history[-1].outcome, group.history[-1].cause) == ("interrupted", cause)
        assert result.errors[1].type_name == "KeyboardInterrupt"
        assert_kept(group)
    with pytest.raises(CellTimeoutError) as caught:
        group.run(on_one("subprocess.run(['sleep', '1000'])"), timeout=3)
    assert caught.value.result is not None
    assert caught.value.result.cause == "I/O"
    assert (group.history[-1].outcome, group.history[-1].cause) == ("timed out", "I/O")
    assert_kept(group)


def test_what_comes_has_been_nothing_wrong(group: Session, fifo: Path) -> None:
    written: list[int] = []

    def write() -> None:
        if not written:  # the reader has opened it: this does not wait
            with fifo.open("w") as file:
                written.append(file.write("40"))

    sink = Panels(write)
    result = group.run(on_one("assert int(open(fifo).read()) == 40"), sink=sink, timeout=60)
    assert sink.panels[0].at_work[0].cause == "I/O"
    assert result.errors == {}
    assert result.cause == group.history[-1].cause == ""
    # Nor has it to do with an error that comes later.
    written.clear()
    code = on_one("assert int(open(fifo).read()) == 40") + "\nfloat(f(x)); 1 / 0"
    result = group.run(code, sink=Panels(write), timeout=60, raise_on_error=False)
    assert len(result.errors) == PROCESSES
    assert result.cause == group.history[-1].cause == ""
    assert_kept(group)
