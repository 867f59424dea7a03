"""Finding a process's sockets by the port, and shutting their connections down."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from jaxnb.engine.collective_sockets import SocketCutter, listening_ports

pytestmark = [pytest.mark.timing, pytest.mark.may_be_skipped]


Pair = tuple[socket.socket, socket.socket]


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """A socket that listens on loopback."""
    with socket.socket(request.param, socket.SOCK_STREAM) as found:
        try:
            found.bind(("127.0.0.1" if request.param == socket.AF_INET else "::1", 0))
        except OSError as error:
            pytest.skip(f"this host has no such loopback: {error}")
        found.listen()
        yield found


@pytest.fixture
def cutter() -> Iterator[SocketCutter]:
    found = SocketCutter()
    yield found
    found.release()


def connected(listener: socket.socket, stack: ExitStack) -> Pair:
    client = stack.enter_context(socket.socket(listener.family, socket.SOCK_STREAM))
    client.connect(listener.getsockname())
    return client, stack.enter_context(listener.accept()[0])


def port_of(each: socket.socket) -> int:
    port: int = each.getsockname()[1]
    return port


def fill(sender: socket.socket) -> int:
    """Writes until nothing more fits; returns how many bytes that were."""
    sender.setblocking(False)
    sent = 0
    try:
        while True:
            sent += sender.send(bytes(1 << 16))
    except BlockingIOError:
        return sent


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


def is_at_end(each: socket.socket) -> bool:
    """Whether there is nothing to read, and never will be."""
    each.setblocking(False)
    try:
        return each.recv(1) == b""
    except BlockingIOError:
        return False


def test_it_listens_where_a_socket_listens_only(listener: socket.socket) -> None:
    with ExitStack() as stack:
        client, _ = connected(listener, stack)
        datagrams = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        datagrams.bind(("127.0.0.1", 0))
        bound = stack.enter_context(socket.socket())
        bound.bind(("127.0.0.1", 0))
        for each in socket.socketpair():
            stack.enter_context(each)
        found = listening_ports()
        assert port_of(listener) in found
        assert found.isdisjoint({port_of(client), port_of(bound)})
    port = port_of(listener)
    listener.close()
    assert found - listening_ports() == {port}


def test_both_ends_of_a_connection_to_a_port_are_shut_for_reading(
    listener: socket.socket, cutter: SocketCutter
) -> None:
    with ExitStack() as stack:
        client, server = connected(listener, stack)
        assert cutter.cut({port_of(listener)}) == 2
        assert client.recv(1) == server.recv(1) == b""
        assert port_of(listener) in listening_ports()
        client.send(b"x")  # the other end notices nothing
        assert cutter.cut({port_of(listener)}) == 2


def test_a_connection_that_is_made_later_is_shut_too(
    listener: socket.socket, cutter: SocketCutter
) -> None:
    with ExitStack() as stack:
        connected(listener, stack)
        cutter.cut({port_of(listener)})
        later, _ = connected(listener, stack)
        wait_until(lambda: is_at_end(later))
        cutter.hold()
        of_the_next_group, _ = connected(listener, stack)
        assert cutter.cut({0}) == 4
        assert not is_at_end(of_the_next_group)


def test_no_writing_fails_when_the_other_end_is_closed(
    listener: socket.socket, cutter: SocketCutter
) -> None:
    """Nor waits for somebody to read: gloo would forget who waits for that."""
    with ExitStack() as stack:
        client, server = connected(listener, stack)
        cutter.cut({port_of(listener)})
        assert fill(client) > 0
        server.close()
        for _ in range(3):
            wait_until(lambda: bool(select.select([], [client], [], 0)[1]))
            assert fill(client) > 0


def test_what_is_unread_is_left_to_who_reads(listener: socket.socket, cutter: SocketCutter) -> None:
    with ExitStack() as stack:
        client, server = connected(listener, stack)
        client.sendall(b"the rest of a message")
        cutter.cut({port_of(listener)})
        assert server.recv(1 << 10) == b"the rest of a message"
        assert server.recv(1) == b""


def test_a_connection_is_not_shut_while_something_is_left_to_be_written(
    listener: socket.socket, cutter: SocketCutter
) -> None:
    with ExitStack() as stack:
        client, server = connected(listener, stack)
        loop = stack.enter_context(select.epoll())
        loop.register(client, select.EPOLLIN | select.EPOLLOUT)
        assert cutter.cut({port_of(listener)}) == 2
        assert server.recv(1) == b""
        assert not is_at_end(client)
        loop.modify(client, select.EPOLLIN)
        wait_until(lambda: is_at_end(client))


def test_other_connections_are_left_alone(listener: socket.socket, cutter: SocketCutter) -> None:
    with ExitStack() as stack:
        other = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        client, server = connected(other, stack)
        connected(listener, stack)
        cutter.cut({port_of(listener)})
        client.sendall(b"x")
        assert server.recv(1) == b"x"


def test_nothing_is_left_when_it_lets_go(listener: socket.socket, cutter: SocketCutter) -> None:
    with ExitStack() as stack:
        client, server = connected(listener, stack)
        before, threads = os.listdir("/proc/self/fd"), threading.active_count()
        listening_ports()
        for _ in range(2):
            cutter.cut({port_of(listener)})
            assert len(os.listdir("/proc/self/fd")) == len(before) + 2
            cutter.release()
            assert os.listdir("/proc/self/fd") == before
            assert threading.active_count() == threads
        server.close()
        assert client.recv(1) == b""


def test_whether_a_socket_waits_is_left_as_it_is() -> None:
    """Also where the user has called ``socket.setdefaulttimeout()``."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert server.getblocking()
        socket.setdefaulttimeout(0.1)
        try:
            assert server.getsockname()[1] in listening_ports()
        finally:
            socket.setdefaulttimeout(None)
        assert os.get_blocking(server.fileno())


def test_what_comes_after_a_connection_was_shut_does_not_reach_its_owner(
    listener: socket.socket, cutter: SocketCutter
) -> None:
    """Gloo would take it for the rest of a message, of a collective that has failed by then."""
    with ExitStack() as stack:
        pairs = [connected(listener, stack) for _ in range(20)]
        assert cutter.cut([port_of(listener)]) == 40
        for client, served in pairs:
            client.sendall(b"late")
            served.sendall(b"late")
        for client, served in pairs:
            assert (client.recv(9), served.recv(9)) == (b"", b"")
        for each in (end for pair in pairs for end in pair):
            each.close()


def test_what_is_being_sent_is_sent_once_the_other_end_is_closed(
    listener: socket.socket, cutter: SocketCutter
) -> None:
    with ExitStack() as stack:
        client, served = connected(listener, stack)
        cutter.cut([port_of(listener)])
        done = threading.Event()
        sender = threading.Thread(target=lambda: (client.sendall(bytes(1 << 24)), done.set()))
        sender.start()
        assert not done.wait(0.05)
        served.close()
        sender.join(20)
        assert done.is_set()
