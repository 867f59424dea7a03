"""What a default start opens to others: nothing beyond this host, and nothing to other users."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import zmq
from jupyter_client.session import Session as Signer

from jaxnb.engine.agreement_peers import UNIX_PREFIX
from jaxnb.model import SentinelAddress
from jaxnb.session import Session
from jaxnb_fixtures import assert_usable, processes_of_tests

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


@pytest.mark.parametrize("launcher", ["fork", "local"])
def test_nothing_listens_beyond_this_host(
    make_session: Callable[..., Session], launcher: str
) -> None:
    """Of no process: not the notebook, the controller, the service, nor those that run cells."""
    before = set(processes_of_tests())
    own = {c.laddr for c in psutil.Process().net_connections("inet") if c.laddr}
    session = make_session(2, launcher=launcher)
    session.run("x = jax.device_count()")
    bound = opened_by(before)
    assert {p.pid for p in session.processes} <= set(bound)
    assert len(bound) > 3, "the controller and the coordination service are missing"
    listening = [entry for entries in bound.values() for entry in entries]
    assert len(listening) > 10
    assert {ip for ip, _, _ in listening} <= LOOPBACK, bound
    mine = [c for c in psutil.Process().net_connections("inet") if c.laddr and c.laddr not in own]
    assert {c.laddr.ip for c in mine} <= LOOPBACK
    assert not [c for c in mine if c.status == psutil.CONN_LISTEN], "the notebook listens itself"
    session.recover()  # a new service, and new sockets for collectives
    again = [entry for entries in opened_by(before).values() for entry in entries]
    assert {ip for ip, _, _ in again} <= LOOPBACK


@pytest.mark.parametrize("launcher", ["fork", "local"])
def test_the_clusters_files_are_for_this_user_only(
    make_session: Callable[..., Session], launcher: str
) -> None:
    """They hold the key that every request is signed with."""
    folder = Path(tempfile.gettempdir())
    before = set(folder.iterdir())
    with no_umask():
        session = make_session(2, launcher=launcher)
        session.run("1")
        session.restart()
    (cluster,) = set(folder.iterdir()) - before
    # Nobody else can enter the folder, whatever the mode of what is in it.
    assert stat.S_IMODE(cluster.stat().st_mode) == 0o700
    assert session._transport is not None
    key = session._transport.key
    holders = [p for p in cluster.rglob("*") if p.is_file() and key in p.read_bytes()]
    assert holders
    assert {p: stat.S_IMODE(p.stat().st_mode) for p in holders} == dict.fromkeys(holders, 0o600)


def test_the_key_is_in_no_command_line_or_environment(
    make_session: Callable[..., Session],
) -> None:
    """Other users of the host can read a command line."""
    session = make_session(2)
    assert session._transport is not None
    key = session._transport.key.decode()
    for process in processes_of_tests().values():
        with suppress(psutil.NoSuchProcess):
            assert key not in " ".join(process.cmdline())


def test_strangers_at_every_port_do_no_harm(make_session: Callable[..., Session]) -> None:
    """Whoever is on this host can connect; the ports of collectives are JAX's own."""
    before = set(processes_of_tests())
    session = make_session(2)
    collectives = {port for report in session._reports for port in report.collective_ports}
    ports = {port for entries in opened_by(before).values() for _, port, _ in entries}
    for port in sorted(ports - collectives):
        for garbage in GARBAGE:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as stranger:
                stranger.sendall(garbage)
    assert sorted(session.where()) == [0, 1]
    assert_usable(session)


def names_listened_at(session: Session) -> list[str]:
    """Returns the names of Unix sockets at which processes take part in strict mode."""
    mine = f"@{UNIX_PREFIX}"  # what the system shows for the zero before it
    processes = [psutil.Process(info.pid) for info in session.processes]
    names = [c.laddr for process in processes for c in process.net_connections("unix")]
    return sorted({name for name in names if name.startswith(mine)})


@contextmanager
def connected_to(address: str | tuple[str, int]) -> Iterator[socket.socket]:
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family) as stranger:
        stranger.settimeout(20)
        stranger.connect(address)
        yield stranger


@pytest.mark.parametrize("kind", ["one host", "several hosts"])
def test_strangers_where_strict_mode_listens_do_no_harm(
    make_session: Callable[..., Session], kind: str
) -> None:
    """Within a host it opens no port at all."""
    session = make_session(2)
    before = {port for entries in opened_by(set()).values() for _, port, _ in entries}
    if kind == "several hosts":
        session.run("from jaxnb.engine import agreement_peers; agreement_peers.LOOPBACK = ()")
    session.run(
        "from jaxnb.engine import agreement; agreement.GREETING_SECONDS = 1\n"
        "mesh = jax.make_mesh((2,), ('d',))\n"
        "x = jax.make_array_from_callback((2,), NamedSharding(mesh, P('d')),\n"
        "                                 lambda i: np.ones(2)[i])\n"
        "f = jax.jit(jnp.sum)"
    )
    assert session.run("float(f(x))", check="strict").value == 2
    found = [e for entries in opened_by(set()).values() for e in entries if e[1] not in before]
    assert {ip for ip, _, _ in found} <= LOOPBACK
    names = names_listened_at(session)
    if kind == "several hosts":
        addresses: list[str | tuple[str, int]] = [("127.0.0.1", port) for _, port, _ in found]
        assert not names
    else:
        addresses = [name.replace("@", "\0", 1) for name in names]
        assert not found
    assert len(addresses) == 2
    for address in addresses:
        for garbage in GARBAGE:
            with suppress(OSError), connected_to(address) as stranger:
                stranger.sendall(garbage)
        with connected_to(address) as stranger:
            challenge = stranger.recv(1 << 10)
            assert b"#CHALLENGE#" in challenge
            assert stranger.recv(1 << 10) == b""  # it is hung up on, as it says nothing
    assert session.run("float(f(x))", check="strict").value == 2
    assert_usable(session)


def sentinel_of(session: Session, index: int) -> SentinelAddress:
    address = session._reports[index].sentinel
    assert address is not None
    return address


@contextmanager
def connected(address: SentinelAddress) -> Iterator[zmq.Socket[bytes]]:
    context = zmq.Context()
    channel = context.socket(zmq.DEALER)
    channel.connect(address.url)
    try:
        yield channel
    finally:
        context.destroy(linger=1000)


def test_a_message_said_again_by_another_is_dropped(make_session: Callable[..., Session]) -> None:
    """Someone who could read one message, signature and all, has gained nothing."""
    session = make_session(2)
    assert session._transport is not None
    signer = Signer(key=session._transport.key)
    address = sentinel_of(session, 0)
    heard = signer.serialize(
        signer.msg("where", {"token": address.token, "sent": time.monotonic()})
    )
    with connected(address) as channel:
        channel.send_multipart(heard)
        assert channel.poll(5000)
    with connected(address) as stranger:
        stranger.send_multipart(heard)
        assert not stranger.poll(300)
    with connected(sentinel_of(session, 1)) as stranger:  # to the other process
        stranger.send_multipart(heard)
        assert not stranger.poll(300)
    session.recover()
    with connected(sentinel_of(session, 0)) as stranger:
        stranger.send_multipart(heard)
        assert not stranger.poll(300)
    assert_usable(session)


def test_a_sentinel_hears_no_message_without_a_signature(
    make_session: Callable[..., Session],
) -> None:
    session = make_session(1)
    address = sentinel_of(session, 0)
    unsigned = Signer(key=b"")
    with connected(address) as stranger:
        for kind in ("where", "free"):
            message = unsigned.msg(
                kind, {"token": address.token, "sent": time.monotonic(), "ports": []}
            )
            stranger.send_multipart(unsigned.serialize(message))
        assert not stranger.poll(300)
    assert sorted(session.where()) == [0]
    assert_usable(session)
