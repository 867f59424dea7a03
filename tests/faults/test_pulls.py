"""Pulls that are cut short: deaths, interrupts, silence, little memory; then usable again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from jaxnb.arrays import refusals
from jaxnb.errors import (
    ArrayGoneError,
    JaxnbError,
    NotEnoughMemoryError,
    ProcessDiedError,
)
from jaxnb.session import Session
from support.faults import cleared
from support.fixtures import (
    assert_usable,
    processes_of_tests,
    still_running,
)
from support.transfers import (
    COLUMNS,
    NBYTES,
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
    until_someone_dies,
    use_path,
)

X = f"x = spread(({ROWS}, {COLUMNS}), P('data'))\nr = spread((64, 64), P())\n"


@pytest.fixture
def group(shared_group: Session, path: str, monkeypatch: pytest.MonkeyPatch) -> Session:
    """The group of this file, with fresh processes if a test has hurt it."""
    group = cleared(shared_group)
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


# ---------------------------------------------------------------------- deaths


@pytest.mark.parametrize(("path", "which"), [("direct", PROCESSES - 1), ("messages", 0)])
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


@pytest.mark.thorough
def test_whenever_a_process_dies_a_pull_is_whole_or_names_it(group: Session) -> None:
    _, error = until_someone_dies(group, 0, lambda: pull_all(group))
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
    [("direct", "pull"), pytest.param("messages", "push", marks=pytest.mark.thorough)],
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
            there = [Path(name) for name in shared if Path(name).exists()]
            # Data do not go through shared memory: there are 8 MiB of them.
            assert sum(path.stat().st_size for path in there) < 1 << 20
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


SLOW = """
class Slow:
    def __reduce__(self):
        {wait}
        return int, (7,)
slow = Slow()
"""


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


# ---------------------------------------------------------------------- beside cells


@pytest.mark.thorough
def test_a_pull_ends_with_its_group(
    group: Session, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = group.pull("x")
    assert_ends_with_its_group(group, path, lambda: pull_all(group), monkeypatch)
    with pytest.raises(ArrayGoneError):
        np.asarray(there)
    restart(group)


# ---------------------------------------------------------------------- memory


def test_a_pull_that_is_larger_than_free_memory_is_refused(
    group: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = group.pull("x")
    with monkeypatch.context() as patch:
        patch.setattr(refusals, "available_bytes", lambda: NBYTES - 1)
        with pytest.raises(
            NotEnoughMemoryError, match=r"Pulling `x` needs 12.0 MiB .* 12.0 MiB .* free"
        ):
            np.asarray(there)
        with pytest.raises(MemoryError):
            group.pull("x", lazy=False)
        np.testing.assert_array_equal(there[:8], expected()[:8])
    assert_nothing_open(group)
    np.testing.assert_array_equal(there, expected())
    assert_usable(group)


# ---------------------------------------------------------------------- leaks


@pytest.mark.thorough  # how much memory a process has is not in its hands alone
def test_a_hundred_pulls_and_pushes_take_no_more_memory_than_some(
    session: Session, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_path(session, path, monkeypatch, small=False)
    session.run(SHARDED + "x = spread((64, 1 << 14), P('data'))")
    x = np.ones((64, 1 << 14), np.float32)
    watched = [psutil.Process(), *(psutil.Process(p.pid) for p in session.processes)]
    for n in range(40):
        session.pull("x", lazy=False)
        session.push(y=x, spec=("data",))
        session.push(z=x[:8])
        if n in (14, 39):
            session.run("None")  # what was sent last, and is not waited for, has come then
        if n == 14:
            early = [(p.memory_info().rss, p.num_fds(), p.num_threads()) for p in watched]
    late = [(p.memory_info().rss, p.num_fds(), p.num_threads()) for p in watched]
    for (nbytes, files, threads), (more, files_now, threads_now) in zip(early, late, strict=True):
        # One array that stays each time would be 100 MiB here, and 37 MiB in each process.
        assert more - nbytes < 24 << 20
        assert files_now == files
        assert threads_now <= threads
    assert_nothing_open(session)
    assert_usable(session)
