"""Groups of real processes for tests, and the watch for what they leave behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import stat
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

import jaxnb
from jaxnb.cells.sinks import NoSink
from jaxnb.errors import JaxnbError
from jaxnb.session import Session
from support.hosts import Hosts, cannot, two_hosts

TOKEN = "JAXNB_TEST_TOKEN"
"""In the environment of this process, and so of every process that a test starts."""

CLEAR = """%reset -f
import jaxnb.launch.process_join as b
get_ipython().push(b.namespace(), interactive=False)
del b
"""

PATIENT_SECONDS = 90.0
"""How long a test waits for what has to happen: its end tells what comes from what never does, and
nothing about speed, which is for ``make bench``."""

END_SECONDS = PATIENT_SECONDS
"""A process of a group may take this long to end after its owner has."""

os.environ[TOKEN] = uuid.uuid4().hex


class Notices(NoSink):
    """Keeps what is said beside a cell's output."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def notice(self, text: str) -> None:
        self.said.append(text)


class WrongNumbersError(AssertionError):
    """A group computed something wrong: never taken for an unsteady test."""


class LostVariablesError(AssertionError):
    """A group lost variables that it had to keep: never taken for an unsteady test."""


# Groups of other programs on this machine have their folders elsewhere.
_TEMPORARY = tempfile.TemporaryDirectory(prefix="tests-of-jaxnb-", ignore_cleanup_errors=True)
os.environ["TMPDIR"] = tempfile.tempdir = _TEMPORARY.name


_HAS_TOKEN: dict[psutil.Process, str] = {}
"""The token of each process that has one; empty for those that are older than this one."""

_OLD = psutil.Process().create_time()


def processes_of_tests(token: str | None = None) -> dict[int, psutil.Process]:
    """Returns the living processes with the token, this one apart, by pid."""
    token = token or os.environ[TOKEN]
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and _token_of(process) == token:
                found[process.pid] = process
    return found


def _token_of(process: psutil.Process) -> str:
    """Returns the token in a process's environment: looked up once, as each test asks of all."""
    if (known := _HAS_TOKEN.get(process)) is not None:
        return known
    token = process.environ().get(TOKEN, "")
    # A child that has been forked and has yet to exec has none of its own.
    if token or process.create_time() < _OLD:
        _HAS_TOKEN[process] = token
    return token


def listening_sockets() -> set[tuple[str, int]]:
    """Returns the addresses of the internet that this process listens on.

    From its own descriptors: the kernel's table has all connections of the host in it.
    """
    found = set()
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # it has been closed meanwhile
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                is_inet = one.family in (socket.AF_INET, socket.AF_INET6)
                if is_inet and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    found.add(one.getsockname()[:2])
    return found


@dataclass(frozen=True)
class Left:
    """What exists at one moment and can be left behind."""

    processes: frozenset[int]
    parents: tuple[tuple[int, int], ...]
    folders: frozenset[str]
    sockets: frozenset[tuple[str, int]]
    threads: frozenset[str]

    @classmethod
    def now(cls) -> Left:
        """Takes stock."""
        processes = processes_of_tests()
        return cls(
            frozenset(processes),
            tuple(sorted((pid, _parent_of(process)) for pid, process in processes.items())),
            frozenset(map(str, Path(tempfile.gettempdir()).glob("jaxnb-*"))),
            frozenset(listening_sockets()),
            frozenset(t.name for t in threading.enumerate() if t.name.startswith("jaxnb")),
        )


def _parent_of(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        return process.ppid()
    return 0


def until(is_so: Callable[[], object], what: str = "what a test waits for") -> None:
    """Waits until something is so, however long a busy machine takes; fails if it never comes."""
    deadline = time.monotonic() + PATIENT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, f"it never came to be that {what}"
        threading.Event().wait(0.01)


def still_running(processes: Iterable[psutil.Process]) -> list[str]:
    """Waits for processes to end; describes those that do not.

    One that has died may stay a zombie: process 1 of a container need not reap what it inherits.
    """

    looked_at = list(processes)  # it may be a generator, which gives them once

    def running() -> list[psutil.Process]:
        found = []
        for process in looked_at:
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    deadline = time.monotonic() + END_SECONDS
    while (left := running()) and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    described = []
    for process in left:
        with contextlib.suppress(psutil.Error):  # it may end while it is looked at
            described.append(f"{process.pid} {' '.join(process.cmdline())[:100]}")
    return described


def _in_the_place_of_another(before: Left, after: Left) -> set[int]:
    """Returns processes that a group of before has instead of others: its service, re-formed."""
    replaced: set[int] = set()
    for parent in before.processes:
        gone = [pid for pid, old in before.parents if old == parent and pid not in after.processes]
        new = [pid for pid, old in after.parents if old == parent and pid not in before.processes]
        replaced.update(new[: len(gone)])
    return replaced


def assert_nothing_left(before: Left) -> None:
    """Fails if anything exists that did not exist before; processes have a moment to end."""
    after = Left.now()
    new = after.processes - before.processes - _in_the_place_of_another(before, after)
    if new:
        processes = processes_of_tests()
        names = still_running(processes[pid] for pid in new if pid in processes)
        assert not names, f"processes left behind: {names}"
        after = Left.now()
    for what in ("folders", "sockets", "threads"):
        new_things = getattr(after, what) - getattr(before, what)
        assert not new_things, f"{what} left behind: {sorted(new_things)}"


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves a process, a folder, a socket or a thread."""
    if request.node.get_closest_marker("unit") or request.node.get_closest_marker("packaging"):
        yield
        return
    before = Left.now()
    yield
    assert_nothing_left(before)


@pytest.fixture(scope="session")
def shared_session() -> Iterator[Session]:
    """One group for all tests that leave it usable: 4 processes × 2 CPU devices."""
    with jaxnb.start(4, devices_per_process=2, platform="cpu") as session:
        yield session


@pytest.fixture
def session(shared_session: Session) -> Session:
    """The shared group with a cleared namespace; with fresh processes if a test has hurt it."""
    try:
        shared_session.run(CLEAR, timeout=PATIENT_SECONDS)
    except JaxnbError:
        shared_session.restart()
    return shared_session


@pytest.fixture
def make_session() -> Iterator[Callable[..., Session]]:
    """Starts groups that end with the test."""
    with contextlib.ExitStack() as stack:

        def make(*args: Any, **settings: Any) -> Session:
            settings.setdefault("platform", "cpu")
            session = stack.enter_context(jaxnb.start(*args, **settings))
            sessions.append(session)
            return session

        sessions: list[Session] = []
        make.sessions = sessions  # type: ignore[attr-defined]  # for the report of a failure
        yield make


@pytest.fixture(scope="session")
def shared_hosts() -> Iterator[Hosts]:
    """Two hosts for all tests; those that use them are skipped where there can be none."""
    if reason := cannot():
        pytest.skip(reason)
    with two_hosts() as both:
        yield both


@pytest.fixture
def hosts(shared_hosts: Hosts) -> Iterator[Hosts]:
    """The two hosts, joined; fails a test that leaves a process or a file on one."""
    yield shared_hosts
    shared_hosts.restore()
    until(lambda: not shared_hosts.left(), f"nothing is left on the hosts: {shared_hosts.left()}")


def own_frames(text: str) -> list[str]:
    """Returns the files of jaxnb's that a traceback names: a user is shown none.

    The folder of a checkout has the same name, and a virtual environment may be in it.
    """
    return re.findall(r"jaxnb/(?:arrays|cells|compat|lockstep|session|wire)/\w+\.py", text)


@contextlib.contextmanager
def interrupt_when_read(path: Path, until: Callable[[], bool] = lambda: True) -> Iterator[str]:
    """Makes a FIFO, and sends this process SIGINT once another one reads it.

    Args:
        path: Where the FIFO is made.
        until: Also this has to be so; it is asked again and again.

    Yields:
        Code that reads it, which lasts until the context is left.
    """
    os.mkfifo(path)
    done = threading.Event()
    opened: list[int] = []

    def interrupt() -> None:
        opened.append(os.open(path, os.O_WRONLY))  # returns when somebody reads
        while not done.is_set() and not until():
            done.wait(0.01)
        if not done.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        yield f"open({str(path)!r}).read()"
    finally:
        done.set()
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # lets the thread go, if nobody came
        thread.join()
        os.close(reader)
        os.close(opened[0])


def whereabouts(session: Session) -> str:
    """Returns where a group's processes are: what to look at when a test has hung."""
    lines = [f"{session.state}, {session.deaths}"]
    try:
        found = session.where()
    except JaxnbError as error:
        return f"{lines[0]}\n{error}"
    for process in session.processes:
        where = found.get(process.process_index)
        lines.append(f"process {process.process_index} (pid {process.pid}) is {process.state}")
        if where is None:
            lines.append("    it does not tell where it is")
            continue
        lines.append(f"    at its cell for {where.cell_seconds} s")
        lines += [f"    {e.file}:{e.line} {e.function}: {e.source}" for e in where.stack[-12:]]
    return "\n".join(lines)


def assert_usable(session: Session) -> None:
    """Fails unless a collective over all processes gives the right answer on each."""
    n = session.num_processes
    code = (
        "import jax.experimental.multihost_utils as mh\n"
        "int(mh.process_allgather(np.array([process_index + 1])).sum())"
    )
    total = session.run(code).value
    if total != n * (n + 1) // 2:
        raise WrongNumbersError(f"the sum over {n} processes is {total}")
