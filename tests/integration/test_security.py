"""What a default start opens: nothing beyond this host, and on it JAX's collectives only."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

import jaxnb
from integration.conftest import LAUNCHERS
from jaxnb.session import Session
from support.fixtures import PATIENT_SECONDS, assert_usable, processes_of_tests

LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
GARBAGE = (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\xff" * 4096, b"\x00" * 64)


def opened_by(before: set[int]) -> dict[int, list[tuple[str, int, str]]]:
    """Returns address, port and status of sockets that processes new since then have bound."""
    found = {}
    for pid, process in processes_of_tests().items():
        if pid in before:
            continue
        with suppress(psutil.NoSuchProcess):
            found[pid] = [
                (c.laddr.ip, c.laddr.port, c.status)
                for c in process.net_connections("inet")
                if c.laddr and (c.status == psutil.CONN_LISTEN or c.type == socket.SOCK_DGRAM)
            ]
    return found


@contextmanager
def no_umask() -> Iterator[None]:
    """Files and folders are as open as whoever makes them lets them be."""
    old = os.umask(0)
    try:
        yield
    finally:
        os.umask(old)


def assert_only_collectives_listen(session: Session, before: set[int], own: set[object]) -> None:
    """On this host's ports only, and no process but the group's: not the notebook, no helper."""
    session.run("x = jax.device_count()")
    bound = opened_by(before)
    assert set(session.helper_pids().values()) <= set(bound)
    listening = [entry for entries in bound.values() for entry in entries]
    assert {ip for ip, _, _ in listening} <= LOOPBACK, bound
    assert len(listening) == session.num_processes, bound  # each its own for gloo
    assert {pid for pid, ports in bound.items() if ports} == {p.pid for p in session.processes}
    assert {c.laddr for c in psutil.Process().net_connections("inet") if c.laddr} <= own


def assert_files_are_private(session: Session) -> None:
    """And none holds the key that every request is signed with."""
    cluster = Path(session._life.cluster.directory)
    # Nobody else can enter the folder, whatever the mode of what is in it.
    assert stat.S_IMODE(cluster.stat().st_mode) == 0o700
    key = session._life.transport.key
    files = [p for p in cluster.rglob("*") if p.is_file()]
    assert not any(key in p.read_bytes() for p in files)
    assert any(p.suffix == ".log" for p in files)
    theirs = {p.name for p in files if stat.S_IMODE(p.stat().st_mode) != 0o600}
    assert theirs <= {"README"}  # ipyparallel's, a copy
    folders = [p for p in cluster.rglob("*") if p.is_dir()]
    assert {p.name for p in folders if stat.S_IMODE(p.stat().st_mode) != 0o700} == set()


def assert_key_is_not_seen(session: Session, before: set[int]) -> None:
    """Other users of the host can read a command line, and what a cell starts an environment."""
    secrets = [session._life.transport.key.decode(), *session._life.cluster.identities.values()]
    seen = session.run(
        "import os, subprocess, sys\n"
        "child = [sys.executable, '-c', 'import os; print(dict(os.environ))']\n"
        "own = dict(os.environ)\n"
        "inherited = subprocess.run(child, capture_output=True, text=True).stdout\n"
        "str(own) + inherited + str(get_ipython().getoutput('env'))"
    )
    for index in range(2):
        everything = seen.per_process[index].value
        assert "PATH" in everything
        assert not [each for each in secrets if each in everything]
        assert "IPP_" not in everything
    for pid, process in processes_of_tests().items():
        with suppress(psutil.NoSuchProcess):
            line = " ".join(process.cmdline())
            assert not [each for each in secrets if each in line]
            if pid not in before:
                assert secrets[0] not in str(process.environ())


@LAUNCHERS
def test_what_a_group_opens_is_for_this_user_on_this_host(
    make_session: Callable[..., Session], launcher: str
) -> None:
    before = set(processes_of_tests())
    own = {c.laddr for c in psutil.Process().net_connections("inet") if c.laddr}
    with no_umask():
        session = make_session(2, launcher=launcher)
        assert_only_collectives_listen(session, before, own)
        session.recover()  # a new service, and new sockets for collectives
        assert_only_collectives_listen(session, before, own)
        session.restart()
        session.run("1")
    assert_files_are_private(session)
    assert_key_is_not_seen(session, before)


@pytest.fixture(scope="module")
def module_pair() -> Iterator[Session]:
    with jaxnb.start(2, platform="cpu") as session:
        yield session


@pytest.fixture
def pair(module_pair: Session, patient_answers: None) -> Session:
    """A group of two processes, which a test must leave usable."""
    return module_pair


@pytest.mark.thorough
def test_garbage_in_every_socket_does_no_harm(pair: Session) -> None:
    session = pair
    sockets = [p for p in Path(session._life.cluster.directory).iterdir() if p.is_socket()]
    assert len(sockets) > 15
    for path in sockets:
        for garbage in GARBAGE:
            with suppress(OSError), connected_to(str(path)) as stranger:
                stranger.sendall(garbage)
    assert sorted(session.where()) == [0, 1]
    assert_usable(session)


@contextmanager
def connected_to(address: str | tuple[str, int]) -> Iterator[socket.socket]:
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family) as stranger:
        stranger.settimeout(PATIENT_SECONDS)
        stranger.connect(address)
        yield stranger
