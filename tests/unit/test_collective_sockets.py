"""Finding a process's sockets by the port, and shutting their connections down."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from jaxnb.engine.collective_sockets import listening_ports, shut_down

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """A socket that listens on loopback."""
    with socket.socket(request.param, socket.SOCK_STREAM) as found:
        found.bind(("127.0.0.1" if request.param == socket.AF_INET else "::1", 0))
        found.listen()
        yield found


def connected(listener: socket.socket, stack: ExitStack) -> Pair:
    client = stack.enter_context(socket.socket(listener.family, socket.SOCK_STREAM))
    client.connect(listener.getsockname())
    return client, stack.enter_context(listener.accept()[0])


def port_of(each: socket.socket) -> int:
    port: int = each.getsockname()[1]
    return port


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


def test_both_ends_of_a_connection_to_a_port_are_shut(listener: socket.socket) -> None:
    with ExitStack() as stack:
        client, server = connected(listener, stack)
        assert shut_down({port_of(listener)}) == 2
        assert client.recv(1) == server.recv(1) == b""
        assert port_of(listener) in listening_ports()


def test_other_connections_are_left_alone(listener: socket.socket) -> None:
    with ExitStack() as stack:
        other = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        client, server = connected(other, stack)
        connected(listener, stack)
        shut_down({port_of(listener)})
        client.sendall(b"x")
        assert server.recv(1) == b"x"


def test_no_descriptor_is_left_open(listener: socket.socket) -> None:
    with ExitStack() as stack:
        connected(listener, stack)
        before = os.listdir("/proc/self/fd")
        listening_ports()
        shut_down({port_of(listener)})
        assert os.listdir("/proc/self/fd") == before


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
