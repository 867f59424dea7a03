"""Pulls that are cut short: deaths, interrupts, silence, little memory; then usable again."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from jaxnb.arrays import refusals
from jaxnb.arrays.gathered import GatheredArray
from jaxnb.cells.sinks import NoSink
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
from jaxnb.session import Session
from jaxnb.wire import asking
from support.faults import cleared, pressing_beside
from support.fixtures import (
    PATIENT_SECONDS,
    assert_usable,
    processes_of_tests,
    still_running,
    until,
)
from support.transfers import (
    COLUMNS,
    NBYTES,
    PATHS,
    PROCESSES,
    ROWS,
    SHARDED,
    Called,
    Meter,
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


thorough = pytest.mark.thorough


@pytest.fixture
def group(shared_group: Session, path: str, monkeypatch: pytest.MonkeyPatch) -> Session:
    """The group of this file, with fresh processes if a test has hurt it."""
    return prepared(cleared(shared_group), path, monkeypatch)


@pytest.fixture
def own_group(
    make_session: Callable[..., Session], path: str, monkeypatch: pytest.MonkeyPatch
) -> Session:
    return prepared(make_session(PROCESSES), path, monkeypatch)


def prepared(session: Session, path: str, monkeypatch: pytest.MonkeyPatch) -> Session:
    use_path(session, path, monkeypatch)
    session.run(SHARDED + X)
    return session


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


@pytest.mark.parametrize(
    ("path", "which"),
    [
        ("direct", PROCESSES - 1),
        ("messages", 0),
        pytest.param("direct", 0, marks=thorough),
        pytest.param("messages", PROCESSES - 1, marks=thorough),
    ],
)
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
    who = f"1 part of `x`, {lost}, cannot be pulled: process {which} has died"
    who += ".*can still be pulled"
    with pytest.raises(JaxnbError, match=who):
        np.asarray(group.pull("x"))
    restart(group)


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=thorough), pytest.param(2, marks=thorough)]
)
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
    with pytest.raises(JaxnbError, match=r"Process 1 of 3 .* was killed|process 1 has died"):
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
import signal
from contextlib import contextmanager
import numpy as np
from jaxnb.arrays import moving
import jaxnb
moving.PIECE_BYTES, moving.CHUNK_BYTES = 1 << 20, 1 << 18
session = jaxnb.start(2, platform="cpu")
session.run({sharded!r} + "x = spread((32, 1 << 16), P('data'))")

def stop_here(done_bytes):
    if 2 << 20 <= done_bytes < 8 << 20:
        print("halfway", flush=True)
        signal.pause()

@contextmanager
def meter(label, total_bytes):
    yield stop_here

session.meter = meter
{then}
"""

THEN = {
    "pull": "session.pull('x', lazy=False)",
    "push": "session.push(y=np.ones((32, 1 << 16), np.float32), spec=('data',))",
}


def shared_memory_of(processes: list[psutil.Process]) -> set[str]:
    """Returns the files of shared memory that processes have open or mapped."""
    found: set[str] = set()
    for process in processes:
        folder = Path(f"/proc/{process.pid}")
        for link in (folder / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                found.add(os.readlink(link))
        found |= {line.split(maxsplit=5)[-1] for line in (folder / "maps").read_text().splitlines()}
    return {name for name in found if name.startswith(("/dev/shm/", "/memfd:"))}


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("direct", "pull"),
        pytest.param("messages", "push", marks=thorough),
        pytest.param("direct", "push", marks=thorough),
        pytest.param("messages", "pull", marks=thorough),
    ],
)
def test_a_notebook_that_is_killed_halfway_leaves_nothing(
    path: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAXNB_DIRECT_MEMORY", {"direct": "1", "messages": "0"}[path])
    before = set(processes_of_tests())
    with subprocess.Popen(
        [sys.executable, "-c", NOTEBOOK.format(sharded=SHARDED, then=THEN[what])],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "halfway\n"
            group = [p for pid, p in processes_of_tests().items() if pid not in before]
            assert len(group) > 4
            shared = shared_memory_of(group)
            assert not [name for name in shared if name.startswith("/memfd:")]
        finally:
            process.kill()
    assert still_running(group) == []
    assert not [name for name in shared if Path(name).exists()]


# ---------------------------------------------------------------------- interrupts


def test_an_interrupt_halfway_ends_a_pull_and_frees_its_buffers(
    group: Session, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    press = Called(press_interrupt)
    at_half(group, path, press, 1, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        group.pull("x", lazy=False)
    assert press.was_called
    assert_path(group, path)
    assert group.state == "ready"
    assert_nothing_open(group)
    pull_all(group)
    assert_usable(group)


@pytest.mark.thorough
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
    "wait",
    [
        pytest.param("import time; time.sleep(1000)", id="sleep"),
        pytest.param("while True: pass", id="loop", marks=thorough),
    ],
)
def test_an_interrupt_frees_processes_that_prepare_for_ever(session: Session, wait: str) -> None:
    session.run(SLOW.format(wait=wait))
    pids = [p.pid for p in session.processes]
    with pressed_when_asked(session), pytest.raises(KeyboardInterrupt):
        session.pull("slow")
    assert [p.pid for p in session.processes] == pids
    assert_nothing_open(session)
    assert_usable(session)


STRIKES = """
import signal, time
from jaxnb.lockstep import process_interrupts
from jaxnb.session import process_endpoint
whole = process_endpoint.failure, process_interrupts.ignore
def struck(call):
    def strike_and_call(*arguments):
        signal.raise_signal(signal.SIGINT)
        return call(*arguments)
    return strike_and_call
def prepare():
    process_endpoint.failure, process_interrupts.ignore = map(struck, whole)
    time.sleep(1000)
"""


def test_an_interrupt_that_comes_again_and_again_ends_no_process(session: Session) -> None:
    """SIGINT is sent until a process has replied: it strikes on the way out too, and later."""
    session.run(STRIKES + SLOW.format(wait="prepare()"))
    pids = [p.pid for p in session.processes]
    with pressed_when_asked(session), pytest.raises(KeyboardInterrupt):
        session.pull("slow")
    session._life.cluster.signal(list(range(session.num_processes)), signal.SIGINT)
    session.run("process_endpoint.failure, process_interrupts.ignore = whole")
    assert [p.pid for p in session.processes] == pids
    assert_nothing_open(session)
    assert_usable(session)


@pytest.mark.timing
def test_an_interrupt_reaches_a_process_that_begins_late(session: Session) -> None:
    session.run(SLOW.format(wait="while True: pass"))
    late = psutil.Process(session.processes[1].pid)
    late.suspend()

    def press_and_wake(press: Callable[[], None]) -> None:
        threading.Event().wait(0.5)
        press()
        threading.Event().wait(2 * asking.FREE_SECONDS)
        late.resume()

    with pressing_beside(press_and_wake), pytest.raises(KeyboardInterrupt):
        session.pull("slow")
    assert session.state == "ready"
    assert_nothing_open(session)
    assert_usable(session)


@pytest.mark.thorough
def test_an_interrupt_ends_the_wait_for_a_turn(session: Session) -> None:
    def press_when_in_line(press: Callable[[], None]) -> None:
        until(lambda: len(session._work.turns._queue) > 1, "the pull was in line")
        press()

    with ThreadPoolExecutor(1) as pool:
        sink = Began()
        running = pool.submit(session.run, "import time\nprint(1)\ntime.sleep(1000)", sink=sink)
        assert sink.event.wait(PATIENT_SECONDS)
        with pressing_beside(press_when_in_line), pytest.raises(KeyboardInterrupt):
            session.pull("jax")
        assert not running.done()
        session.interrupt()
        assert isinstance(running.exception(PATIENT_SECONDS), CellError)
    assert session.pull("process_index")[2] == 2
    assert_usable(session)


@pytest.mark.timing
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


@pytest.mark.timing
def test_a_process_that_is_stopped_halfway_is_named(
    group: Session, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_patience(monkeypatch)
    process = psutil.Process(group.processes[1].pid)
    at_half(group, path, process.suspend, 1, monkeypatch)
    try:
        if path == "direct":  # its memory can be read all the same
            pull_all(group)
        else:
            with pytest.raises(JaxnbError, match=r"Process 1 of 3 gave no answer within 1 s"):
                group.pull("x", lazy=False)
        assert process.status() == psutil.STATUS_STOPPED
        stopped = (
            "Process 1 of 3 gave no answer within 1 s (process 1 is stopped: "
            f"`kill -CONT {process.pid}` lets it go on), so `x` was pulled only in part"
        )
        with pytest.raises(JaxnbError, match=re.escape(stopped)):
            group.pull("x", lazy=False)
        there = group.pull("x", ranks=[0, 2])
        np.testing.assert_array_equal(there[:16], expected()[:16])
    finally:
        process.resume()
    assert group.state == "ready"
    assert_usable(group)
    assert_nothing_open(group)
    np.testing.assert_array_equal(group.pull("x", lazy=False), expected())


# ---------------------------------------------------------------------- beside cells


@pytest.mark.thorough
def test_a_pull_waits_for_the_cell_of_another_thread(group: Session) -> None:
    with ThreadPoolExecutor(2) as pool:
        sink = Began()
        running = pool.submit(
            group.run, "import time\nprint(1)\nwhile not globals().get('go'): time.sleep(0.01)",
            sink=sink, raise_on_error=False,
        )  # fmt: skip
        assert sink.event.wait(PATIENT_SECONDS)
        pulled = pool.submit(group.pull, "x", lazy=False)
        until(lambda: len(group._work.turns._queue) > 1, "the pull was in line")
        assert not pulled.done()
        group.interrupt()
        running.result(PATIENT_SECONDS)
        np.testing.assert_array_equal(pulled.result(PATIENT_SECONDS), expected())
    assert_usable(group)


@pytest.mark.timing
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
    with pytest.raises(JaxnbError, match=r"Process 0 of 2 is in cell \[2\]"):
        group.pull("x")
    np.testing.assert_array_equal(group.pull("r", ranks=[1]), np.arange(4096.0).reshape(64, 64))
    there = group.pull("x", ranks=[1])
    np.testing.assert_array_equal(there[32:], np.arange(4096.0).reshape(64, 64)[32:])
    with pytest.raises(JaxnbError, match="cannot be pulled: process 0 "):
        np.asarray(there)
    group.restart()
    assert_usable(group)


@pytest.mark.thorough
@pytest.mark.parametrize("end", ["restart", pytest.param("close", marks=thorough)])
def test_a_pull_ends_with_its_group(
    own_group: Session, path: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = own_group.pull("x")
    assert_ends_with_its_group(own_group, path, end, lambda: pull_all(own_group), monkeypatch)
    with pytest.raises({"restart": ArrayGoneError, "close": SessionClosedError}[end]):
        np.asarray(there)
    if end == "restart":
        restart(own_group)
    else:
        with pytest.raises(SessionClosedError):
            own_group.pull("x")


@pytest.mark.thorough
def test_a_pull_after_an_interrupted_restart_says_so(group: Session) -> None:
    def interrupt(stage: str, detail: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        group.restart(interrupt)
    with pytest.raises(SessionBrokenError, match="a restart was interrupted"):
        group.pull("x")
    restart(group)


# ---------------------------------------------------------------------- memory


def refuse(group: Session, there: GatheredArray, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(refusals, "available_bytes", lambda: NBYTES - 1)
        with pytest.raises(NotEnoughMemoryError, match=r"`?x`? needs 12.0 MiB .* 12.0 MiB .* free"):
            np.asarray(there)
        with pytest.raises(MemoryError):
            group.pull("x", lazy=False)
        np.testing.assert_array_equal(there[:8], expected()[:8])


def test_a_pull_that_is_larger_than_free_memory_is_refused(
    group: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = group.pull("x")
    refuse(group, there, monkeypatch)
    assert_nothing_open(group)
    np.testing.assert_array_equal(there, expected())
    assert_usable(group)


LIMITED = """
import os, resource, sys
sys.path.insert(0, {tests!r})
import numpy as np, psutil
import jaxnb
from jaxnb.errors import NotEnoughMemoryError
from support.fixtures import assert_usable
from support.transfers import SHARDED

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


@pytest.mark.thorough
@thorough
def test_a_real_limit_on_memory_refuses_a_pull_and_a_push() -> None:
    told = run_script(LIMITED)
    assert re.search(r"pull: `?x`? needs 256 MiB .* \d+ MiB of memory is free", told)
    assert re.search(r"push: `y` needs 512 MiB .* \d+ MiB of memory is free", told)


SMALL_SHM = """
import os, sys
sys.path.insert(0, {tests!r})
import numpy as np
import jaxnb
from support.fixtures import assert_usable
from support.transfers import SHARDED

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


@thorough  # takes a mount of its own
@pytest.mark.may_be_skipped
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


@pytest.mark.thorough
@thorough  # how much memory a process has is not in its hands alone
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
