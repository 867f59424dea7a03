"""Pulls that are cut short: deaths, interrupts, silence, little memory; then usable again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from jaxnb import asking, pulling
from jaxnb.errors import (
    ArrayGoneError,
    CellError,
    CellTimeoutError,
    JaxnbError,
    NotEnoughMemoryError,
    ProcessDiedError,
    SessionBrokenError,
    SessionClosedError,
)
from jaxnb.gathered import GatheredArray
from jaxnb.session import Session
from jaxnb.sinks import NoSink
from jaxnb_fixtures import END_SECONDS, assert_usable, processes_of_tests
from jaxnb_transfers import (
    COLUMNS,
    NBYTES,
    PATHS,
    PROCESSES,
    ROWS,
    SHARDED,
    SOON_SECONDS,
    Meter,
    Timed,
    assert_ends_with_its_group,
    assert_names_who_dies_halfway,
    assert_nothing_open,
    assert_path,
    at_half,
    bears_interrupts,
    expected,
    kill,
    press_interrupt,
    pressed_when_asked,
    shorten_patience,
    until_someone_dies,
    use_path,
)

X = f"x = spread(({ROWS}, {COLUMNS}), P('data'))\nr = spread((64, 64), P())\n"


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def group(
    make_session: Callable[..., Session], path: str, monkeypatch: pytest.MonkeyPatch
) -> Session:
    group = make_session(PROCESSES)
    use_path(group, path, monkeypatch)
    group.run(SHARDED + X)
    return group


def pull_all(group: Session) -> None:
    np.testing.assert_array_equal(group.pull("x", lazy=False), expected())


def restart(group: Session) -> None:
    group.meter = Meter(lambda: None)
    group.restart()
    assert_usable(group)
    group.run(SHARDED + X)
    np.testing.assert_array_equal(group.pull("x"), expected())


class Began(NoSink):
    """A sink that tells when a cell has printed."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def lines(self, lines: list[Any]) -> None:
        self.event.set()


# ---------------------------------------------------------------------- deaths


@pytest.mark.parametrize("which", [0, PROCESSES - 1])
def test_a_process_that_dies_halfway_is_named_and_the_rest_can_be_rescued(
    group: Session, path: str, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    doing = "`x` was pulled"
    assert_names_who_dies_halfway(group, path, which, lambda: pull_all(group), doing, monkeypatch)
    np.testing.assert_array_equal(group.pull("r"), np.arange(4096.0).reshape(64, 64))
    rows = ROWS // PROCESSES
    there = [i for i in range(PROCESSES) if i != which]
    for i in there:
        part = slice(i * rows, (i + 1) * rows)
        np.testing.assert_array_equal(group.pull("x")[part], expected()[part])
    lost = rf"\[{which * rows}:{which * rows + rows}, 0:{COLUMNS}\]"
    who = f"1 part of `x`, {lost}, cannot be had: process {which}, which held it, has died"
    with pytest.raises(JaxnbError, match=who):
        np.asarray(group.pull("x"))
    restart(group)


@pytest.mark.parametrize("seed", range(3))
def test_whenever_a_process_dies_a_pull_is_whole_or_names_it(group: Session, seed: int) -> None:
    _, error = until_someone_dies(group, seed, lambda: pull_all(group))
    # By the time of a pull it may be known: then it is not asked, and its part is missing.
    assert isinstance(error, ProcessDiedError) or "has died" in str(error)
    restart(group)


def test_an_array_that_is_here_outlives_its_processes_and_one_that_is_not_says_who_died(
    group: Session,
) -> None:
    here, there = group.pull("x", lazy=False), group.pull("x")
    kill(group.processes[1].pid)
    with pytest.raises(JaxnbError, match=r"Process 1 of 3 .* was killed|process 1, which held"):
        np.asarray(there)
    with pytest.raises(JaxnbError, match="process 1"):
        np.asarray(group.pull("x"))
    np.testing.assert_array_equal(here, expected())
    np.testing.assert_array_equal(there[:8], expected()[:8])
    group.restart()
    with pytest.raises(ArrayGoneError, match="restarted"):
        np.asarray(there)
    np.testing.assert_array_equal(here, expected())
    restart(group)


NOTEBOOK = """
import os, sys, signal
import numpy as np
sys.path.insert(0, {tests!r})
from jaxnb import moving
import jaxnb
from jaxnb_transfers import Meter, SHARDED
moving.PIECE_BYTES, moving.CHUNK_BYTES = 1 << 20, 1 << 18
session = jaxnb.start(2, platform="cpu")
session.run(SHARDED + "x = spread((32, 1 << 16), P('data'))")

def stop_here():
    print("halfway", flush=True)
    signal.pause()

session.meter = Meter(stop_here, 2 << 20)
{then}
"""


@pytest.mark.parametrize(
    "then",
    [
        "session.pull('x', lazy=False)",
        "session.push(y=np.ones((32, 1 << 16), np.float32), spec=('data',))",
    ],
    ids=["pull", "push"],
)
@pytest.mark.parametrize("switch", ["1", "0"], ids=PATHS)
def test_a_notebook_that_is_killed_halfway_leaves_nothing(
    then: str, switch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAXNB_DIRECT_MEMORY", switch)
    before, shared = set(processes_of_tests()), set(os.listdir("/dev/shm"))
    tests = str(Path(__file__).parents[1])
    with subprocess.Popen(
        [sys.executable, "-c", NOTEBOOK.format(tests=tests, then=then)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "halfway\n"
        group = [p for pid, p in processes_of_tests().items() if pid not in before]
        assert len(group) > 4
        files = [f for p in group for f in Path(f"/proc/{p.pid}/fd").iterdir()]
        assert not [f for f in files if f.is_symlink() and "memfd:" in os.readlink(f)]
        process.kill()
    _, alive = psutil.wait_procs(group, timeout=END_SECONDS)
    assert not [p.cmdline() for p in alive if p.is_running()]
    assert set(os.listdir("/dev/shm")) == shared


# ---------------------------------------------------------------------- interrupts


def test_an_interrupt_halfway_ends_a_pull_and_frees_its_buffers(
    group: Session, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    press = Timed(press_interrupt)
    at_half(group, path, press, 1, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        group.pull("x", lazy=False)
    press.assert_recent()
    assert_path(group, path)
    assert group.state == "ready"
    assert_nothing_open(group)
    pull_all(group)
    assert_usable(group)


def test_an_interrupt_on_the_last_byte_is_not_lost(group: Session) -> None:
    group.meter = Meter(press_interrupt, NBYTES - 1)
    meter = group.meter
    meter._tick = lambda done, total: press_interrupt() if done == total else None  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        group.pull("x", lazy=False)
    assert_nothing_open(group)
    group.meter = Meter(lambda: None)
    np.testing.assert_array_equal(group.pull("x", lazy=False), expected())


SLOW = """
class Slow:
    def __reduce__(self):
        {wait}
        return int, (7,)
slow = Slow()
"""


@pytest.mark.parametrize(
    "wait", ["import time; time.sleep(1000)", "while True: pass"], ids=["sleep", "loop"]
)
def test_an_interrupt_frees_processes_that_prepare_for_ever(session: Session, wait: str) -> None:
    session.run(SLOW.format(wait=wait))
    pids = [p.pid for p in session.processes]
    with pressed_when_asked(session) as press, pytest.raises(KeyboardInterrupt):
        session.pull("slow")
    press.assert_recent()
    assert [p.pid for p in session.processes] == pids
    assert_nothing_open(session)
    assert_usable(session)


def test_an_interrupt_reaches_a_process_that_begins_late(session: Session) -> None:
    session.run(SLOW.format(wait="while True: pass"))
    late = psutil.Process(session.processes[1].pid)
    late.suspend()
    timers = [
        threading.Timer(0.5, press_interrupt),
        threading.Timer(0.5 + 2 * asking.FREE_SECONDS, late.resume),
    ]
    for timer in timers:
        timer.start()
    with pytest.raises(KeyboardInterrupt):
        session.pull("slow")
    for timer in timers:
        timer.join()
    assert session.state == "ready"
    assert_nothing_open(session)
    assert_usable(session)


def test_an_interrupt_ends_the_wait_for_a_turn(make_session: Callable[..., Session]) -> None:
    session = make_session(PROCESSES)
    with ThreadPoolExecutor(1) as pool:
        sink = Began()
        running = pool.submit(session.run, "import time\nprint(1)\ntime.sleep(1000)", sink=sink)
        assert sink.event.wait(20)
        press = Timed(press_interrupt)

        def press_when_in_line() -> None:
            while len(session._turns._queue) < 2:
                time.sleep(0.001)
            press()

        presser = threading.Thread(target=press_when_in_line)
        presser.start()
        with pytest.raises(KeyboardInterrupt):
            session.pull("jax")
        press.assert_recent()
        presser.join()
        assert not running.done()
        session.interrupt()
        assert isinstance(running.exception(20), CellError)
    assert session.pull("process_index")[2] == 2
    assert_usable(session)


def test_interrupts_at_any_moment_leave_the_group_usable(
    session: Session, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_path(session, path, monkeypatch)
    session.run(SHARDED + f"x = spread(({ROWS}, {COLUMNS}), P('data'))")
    for _ in bears_interrupts(7, 0.06, lambda _: pull_all(session)):
        pass
    assert_nothing_open(session)
    pull_all(session)
    assert_usable(session)


# ---------------------------------------------------------------------- silence


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> float:
    """Makes the patience with silent processes short; returns it."""
    shorten_patience(monkeypatch)
    return 1.0


def test_a_process_that_is_stopped_halfway_is_named(
    group: Session, path: str, impatient: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = psutil.Process(group.processes[1].pid)
    at_half(group, path, process.suspend, 1, monkeypatch)
    try:
        if path == "direct":  # its memory can be read all the same
            pull_all(group)
        else:
            with pytest.raises(JaxnbError, match=r"Process 1 of 3 gave no answer within 1 s"):
                group.pull("x", lazy=False)
        assert process.status() == psutil.STATUS_STOPPED
        started = time.monotonic()
        with pytest.raises(JaxnbError, match=r"Process 1 of 3 gave no answer within 1 s"):
            group.pull("x", lazy=False)
        assert time.monotonic() - started < impatient + SOON_SECONDS
        there = group.pull("x", ranks=[0, 2])
        np.testing.assert_array_equal(there[:16], expected()[:16])
    finally:
        process.resume()
    assert group.state == "ready"
    assert_usable(group)
    assert_nothing_open(group)
    np.testing.assert_array_equal(group.pull("x", lazy=False), expected())


# ---------------------------------------------------------------------- beside cells


def test_a_pull_waits_for_the_cell_of_another_thread(group: Session) -> None:
    with ThreadPoolExecutor(2) as pool:
        sink = Began()
        running = pool.submit(
            group.run, "import time\nprint(1)\nwhile not globals().get('go'): time.sleep(0.01)",
            sink=sink, raise_on_error=False,
        )  # fmt: skip
        assert sink.event.wait(20)
        pulled = pool.submit(group.pull, "x", lazy=False)
        while len(group._turns._queue) < 2:
            time.sleep(0.001)
        assert not pulled.done()
        group.interrupt()
        running.result(20)
        np.testing.assert_array_equal(pulled.result(20), expected())
    assert_usable(group)


def test_two_pulls_at_once_take_turns(group: Session) -> None:
    group.run(f"y = spread(({ROWS}, {COLUMNS}), P('data'), 1)")
    with ThreadPoolExecutor(4) as pool:
        names = ["x", "y"] * 10
        pulled = list(pool.map(lambda name: group.pull(name, lazy=False), names))
    for name, value in zip(names, pulled, strict=True):
        np.testing.assert_array_equal(value, expected() + (name == "y"))
    assert_usable(group)


def test_a_pull_after_a_cell_that_was_given_up_says_who_is_in_it(
    make_session: Callable[..., Session], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = make_session(2)
    use_path(group, path, monkeypatch)
    group.run(SHARDED + "x = spread((64, 64), P('data')); r = spread((64, 64), P())")
    with pytest.raises(CellTimeoutError, match="%spmd_recover"):
        group.run(
            "import signal, time\n"
            "if process_index == 0:\n"
            "    signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
            "    time.sleep(1000)",
            timeout=0.2,
        )
    started = time.monotonic()
    with pytest.raises(JaxnbError, match=r"Process 0 of 2 is in cell \[2\]"):
        group.pull("x")
    assert time.monotonic() - started < SOON_SECONDS
    np.testing.assert_array_equal(group.pull("r", ranks=[1]), np.arange(4096.0).reshape(64, 64))
    there = group.pull("x", ranks=[1])
    np.testing.assert_array_equal(there[32:], np.arange(4096.0).reshape(64, 64)[32:])
    with pytest.raises(JaxnbError, match="process 0, which held"):
        np.asarray(there)
    group.restart()
    assert_usable(group)


@pytest.mark.parametrize("end", ["restart", "close"])
def test_a_pull_ends_with_its_group(
    group: Session, path: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = group.pull("x")
    assert_ends_with_its_group(group, path, end, lambda: pull_all(group), monkeypatch)
    with pytest.raises({"restart": ArrayGoneError, "close": SessionClosedError}[end]):
        np.asarray(there)
    if end == "restart":
        restart(group)
    else:
        with pytest.raises(SessionClosedError):
            group.pull("x")


def test_a_pull_after_an_interrupted_restart_says_so_at_once(group: Session) -> None:
    def interrupt(stage: str, detail: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        group.restart(interrupt)
    started = time.monotonic()
    with pytest.raises(SessionBrokenError, match="a restart was interrupted"):
        group.pull("x")
    assert time.monotonic() - started < SOON_SECONDS
    restart(group)


# ---------------------------------------------------------------------- memory


def resident_bytes(session: Session) -> int:
    return sum(psutil.Process(p.pid).memory_info().rss for p in session.processes)


def refuse(group: Session, there: GatheredArray, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(pulling, "available_bytes", lambda: NBYTES - 1)
        with pytest.raises(NotEnoughMemoryError, match=r"`?x`? takes 12.0 MiB .* 12.0 MiB .* free"):
            np.asarray(there)
        with pytest.raises(MemoryError):
            group.pull("x", lazy=False)
        np.testing.assert_array_equal(there[:8], expected()[:8])


def test_a_pull_that_is_larger_than_free_memory_is_refused(
    group: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = group.pull("x")
    refuse(group, there, monkeypatch)  # what is allocated once
    before = resident_bytes(group)
    refuse(group, there, monkeypatch)
    assert resident_bytes(group) - before < NBYTES // 4
    assert_nothing_open(group)
    np.testing.assert_array_equal(there, expected())
    assert_usable(group)


LIMITED = """
import os, resource, sys
sys.path.insert(0, {tests!r})
import numpy as np, psutil
import jaxnb
from jaxnb.errors import NotEnoughMemoryError
from jaxnb_fixtures import assert_usable
from jaxnb_transfers import SHARDED

with jaxnb.start(2, platform="cpu") as session:
    session.run(SHARDED + "x = spread((64, 1 << 20), P('data')); y = 1; jax.block_until_ready(x)")
    there = session.pull("x")
    there[:1]
    big = np.ones((64, 1 << 20), np.float32)
    rss = lambda: sum(psutil.Process(p.pid).memory_info().rss for p in session.processes)
    before, me = rss(), psutil.Process()
    limit = me.memory_info().vms + (200 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    try:
        np.asarray(there)
    except NotEnoughMemoryError as error:
        print("pull:", error)
    assert rss() - before < 16 << 20, rss() - before
    try:
        session.push(y=big, mesh="mesh")
    except NotEnoughMemoryError as error:
        print("push:", error)
    assert rss() - before < 16 << 20, rss() - before
    assert session.pull("y") == 1
    assert (there[-1] == np.arange(63 << 20, 64 << 20).astype(np.float32)).all()
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    assert float(np.asarray(there)[-1, -1]) == float(np.float32((64 << 20) - 1))
    assert_usable(session)
"""


def run_script(code: str, **settings: Any) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", code.replace("{tests!r}", repr(str(Path(__file__).parents[1])))],
        capture_output=True,
        text=True,
        check=False,
        **settings,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_real_limit_on_memory_refuses_a_pull_and_a_push() -> None:
    told = run_script(LIMITED)
    assert re.search(r"pull: `?x`? takes 256 MiB .* \d+ MiB of memory are free", told)
    assert re.search(r"push: `y` takes 512 MiB .* \d+ MiB of memory are free", told)


SMALL_SHM = """
import os, sys
sys.path.insert(0, {tests!r})
import numpy as np
import jaxnb
from jaxnb_fixtures import assert_usable
from jaxnb_transfers import SHARDED

assert os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize == 1 << 20
with jaxnb.start(2, platform="cpu") as session:
    session.run(SHARDED + "x = spread((16, 1 << 20), P('data'))")
    x = np.asarray(session.pull("x"))
    session.push(y=x, spec=("data",))
    assert session.run("bool((x == y).all())").value is True
    assert os.listdir("/dev/shm") == []
    assert_usable(session)
    print("done")
"""


def may_mount() -> str:
    """Returns why this process cannot mount in a namespace of its own; empty if it can."""
    tried = subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/dev/shm"],
        capture_output=True,
        text=True,
        check=False,
    )
    return tried.stderr


@pytest.mark.parametrize("switch", ["1", "0"], ids=PATHS)
def test_nothing_goes_through_shared_memory(switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why := may_mount():
        pytest.skip(f"mounting a small /dev/shm is not permitted here: {why.strip()}")
    monkeypatch.setenv("JAXNB_DIRECT_MEMORY", switch)
    code = SMALL_SHM.replace("{tests!r}", repr(str(Path(__file__).parents[1])))
    ended = subprocess.run(
        ["unshare", "-m", "sh", "-c",
         'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$0" -c "$1"', sys.executable, code],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.stdout == "done\n", ended.stderr


# ---------------------------------------------------------------------- leaks


def footprint(session: Session) -> dict[str, list[int]]:
    processes = [psutil.Process(), *(psutil.Process(p.pid) for p in session.processes)]
    return {
        "bytes": [p.memory_info().rss for p in processes],
        "files": [p.num_fds() for p in processes],
        "threads": [p.num_threads() for p in processes],
    }


def test_a_hundred_pulls_and_pushes_take_no_more_memory_than_some(
    session: Session, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_path(session, path, monkeypatch, small=False)
    session.run(SHARDED + "x = spread((64, 1 << 14), P('data'))")
    x = np.ones((64, 1 << 14), np.float32)
    for n in range(40):
        session.pull("x", lazy=False)
        session.push(y=x, spec=("data",))
        session.push(z=x[:8])
        if n == 14:
            early = footprint(session)
    late = footprint(session)
    grown = [b - a for a, b in zip(early["bytes"], late["bytes"], strict=True)]
    # One array that stays each time would be 100 MiB here, and 37 MiB in each process.
    assert max(grown) < 24 << 20, grown
    assert late["files"] == early["files"]
    assert max(np.subtract(late["threads"], early["threads"])) <= 0
    assert_nothing_open(session)
    assert_usable(session)
