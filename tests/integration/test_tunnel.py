"""The tunnel between hosts: two fork servers with a folder each, and TLS between them."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
import zmq

from jaxnb.errors import StartError
from jaxnb.launch import tunnel
from jaxnb.launch.deaths import Death, describe_death
from jaxnb.launch.forkclient import ForkServerClient
from support.fixtures import PATIENT_SECONDS

ADDRESSES = ["127.0.0.1", *(["::1"] if socket.has_dualstack_ipv6() else [])]


TLS_ALERT = b"\x15"


class Host:
    """One of the hosts: a fork server and its folder."""

    def __init__(self, launcher: str) -> None:
        self.events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.server = ForkServerClient(launcher, self.events.put)
        self.folder = Path(self.server.directory)

    def ask(self, op: str, **arguments: Any) -> Any:
        return self.server.request(op, **arguments).result(PATIENT_SECONDS)

    def serve(self, name: str) -> socket.socket:
        """Listens in the folder, as the services of a group do."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.folder / name))
        return ready(listener)

    def connect(self, name: str) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(PATIENT_SECONDS)
        connection.connect(str(self.folder / name))
        return connection


def ready(listener: socket.socket) -> socket.socket:
    listener.settimeout(PATIENT_SECONDS)
    listener.listen()
    return listener


def accept(listener: socket.socket) -> socket.socket:
    connection, _ = listener.accept()
    connection.settimeout(PATIENT_SECONDS)
    return connection


class Pair:
    """Two hosts: the first has a door, and the second may have forwards to it."""

    def __init__(
        self, address: str = "127.0.0.1", launcher: str = "fork", certificate: str = ""
    ) -> None:
        self.address = address
        self.certificate = certificate or tunnel.make_certificate()
        self.first, self.second = Host(launcher), Host(launcher)
        self.door = self.first.ask("door", address=address, certificate=self.certificate)
        self.port = int(self.door["line"])

    def forward(self, *names: str, **settings: Any) -> int:
        """Has the second host reach sockets of the first; returns the process that does it."""
        routes = [(name, self.address, self.port) for name in names]
        answer = self.second.ask(
            "forwards", **{"routes": routes, "certificate": self.certificate, **settings}
        )
        assert answer["line"] == "ready"
        return int(answer["pid"])

    @contextlib.contextmanager
    def connected(self, name: str = "x") -> Iterator[tuple[socket.socket, socket.socket]]:
        """Yields both ends of a connection through the tunnel: the client's and the service's."""
        with (
            self.first.serve(name) as listener,
            self.second.connect(name) as client,
            accept(listener) as service,
        ):
            yield client, service

    def close(self) -> None:
        self.first.server.close()
        self.second.server.close()
        assert not self.first.folder.exists()
        assert not self.second.folder.exists()


@pytest.fixture
def make_pair() -> Iterator[Callable[..., Pair]]:
    with contextlib.ExitStack() as stack:

        def make(*args: Any, **settings: Any) -> Pair:
            pair = Pair(*args, **settings)
            stack.callback(pair.close)
            return pair

        yield make


@pytest.fixture(scope="module")
def shared_pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


@pytest.fixture
def pair(shared_pair: Pair) -> Iterator[Pair]:
    """Two hosts; the forwards of a test end with it, and leave no socket."""
    yield shared_pair
    roles = ["forwards", "service forwards"]
    shared_pair.second.ask("stop", roles=roles, grace_seconds=PATIENT_SECONDS)
    shared_pair.first.ask("stop", roles=["service"], grace_seconds=0)
    assert not any(each.is_socket() for each in shared_pair.second.folder.iterdir())
    for each in shared_pair.first.folder.iterdir():
        if each.is_socket():
            each.unlink()


def receive(connection: socket.socket, size: int) -> bytes:
    """Returns what comes, until so much has come or the connection ends."""
    with connection.makefile("rb") as stream:
        return stream.read(size)


def echoes(client: socket.socket, service: socket.socket) -> bool:
    client.sendall(b"question")
    asked = receive(service, 8)
    service.sendall(b"answer")
    return (asked, receive(client, 6)) == (b"question", b"answer")


# ---------------------------------------------------------------------- what goes through


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_socket_is_reached_under_its_name_on_another_host(
    make_pair: Callable[..., Pair], address: str
) -> None:
    pair = make_pair(address, launcher="local")
    pair.forward("x")
    with pair.connected() as ends:
        assert echoes(*ends)
    files = {each.name for each in pair.second.folder.iterdir()}
    assert files == {"forkserver.log", "owner", "x"}  # the key is in none of them
    assert (pair.second.folder / "x").stat().st_mode & 0o077 == 0


def test_zeromq_goes_through(pair: Pair) -> None:
    pair.forward("router")
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.rcvtimeo = router.sndtimeo = int(1000 * PATIENT_SECONDS)
        router.bind(f"ipc://{pair.first.folder}/router")
        for _ in range(2):  # who comes later, too
            with context.socket(zmq.DEALER) as dealer:
                dealer.rcvtimeo, dealer.linger = router.rcvtimeo, 0
                dealer.connect(f"ipc://{pair.second.folder}/router")
                parts = [b"few", bytes(range(256)) * 40_000, b""]
                dealer.send_multipart(parts)
                router.send_multipart(router.recv_multipart())
                assert dealer.recv_multipart() == parts


JOIN = """
import os, sys
import jax, numpy as np
from jaxnb.compat import jax_runtime
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_cpu_collectives_implementation", "gloo")
index = int(sys.argv[1])
jax_runtime.connect_coordination_service(sys.argv[2], index, 2, timeout_seconds=60)
jax_runtime.bind_gloo_to("127.0.0.1")
from jax.experimental import multihost_utils
print(int(multihost_utils.process_allgather(np.array([10 ** index])).sum()), flush=True)
os._exit(0)  # as jaxnb's processes end
"""


def test_jax_processes_of_two_hosts_join_and_compute(pair: Pair) -> None:
    service = pair.first.ask("service", num_processes=2)
    address = service["line"].strip()
    name = Path(unquote(address.removeprefix("unix:"))).name
    pair.forward(name, role="service forwards")
    folders = (pair.first.folder, pair.second.folder)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", JOIN, str(i), f"unix:{quote(os.fspath(folder / name))}"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for i, folder in enumerate(folders)
    ]
    found = [process.communicate(timeout=2 * PATIENT_SECONDS)[0] for process in processes]
    assert [text.splitlines()[-1] for text in found] == ["11", "11"]  # after gloo's own lines
    pair.first.ask("stop", roles=["service"], grace_seconds=0)
    # They end with the service; others are still there.
    pair.forward("x")
    pair.second.ask("stop", roles=["service forwards"], grace_seconds=PATIENT_SECONDS)
    assert not (pair.second.folder / name).exists()
    with pair.connected() as ends:
        assert echoes(*ends)


def test_bytes_arrive_equal_both_ways_at_once(pair: Pair) -> None:
    """Each side sends all before it reads: more than all buffers on the way hold."""
    pair.forward("x")
    sent = [os.urandom(1 << 20) * 64 for _ in range(2)]
    came = [b"", b""]
    with pair.connected() as ends:

        def exchange(side: int) -> None:
            sending = threading.Thread(target=ends[side].sendall, args=(sent[side],))
            sending.start()
            came[side] = receive(ends[side], len(sent[1 - side]))
            sending.join()

        threads = [threading.Thread(target=exchange, args=(side,)) for side in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert came[::-1] == sent


# ---------------------------------------------------------------------- ends


@pytest.mark.parametrize("ends_it", [0, 1], ids=["client", "service"])
def test_the_end_of_a_side_comes_after_its_bytes(pair: Pair, ends_it: int) -> None:
    pair.forward("x")
    with pair.connected() as ends:
        data = bytes(8 << 20)

        def send() -> None:
            ends[ends_it].sendall(data)
            ends[ends_it].close()

        sending = threading.Thread(target=send)
        sending.start()
        assert receive(ends[1 - ends_it], len(data) + 1) == data
        sending.join()
        with pytest.raises(ConnectionError):  # more than all buffers on the way hold
            ends[1 - ends_it].sendall(data * 16)


def test_one_direction_may_end_before_the_other(pair: Pair) -> None:
    pair.forward("x")
    with pair.connected() as (client, service):
        client.sendall(b"question")
        client.shutdown(socket.SHUT_WR)
        assert receive(service, 100) == b"question"
        service.sendall(b"answer")
        service.close()
        assert receive(client, 100) == b"answer"


@pytest.mark.parametrize("killed", ["door", "forwards"])
def test_the_death_of_either_end_of_the_tunnel_ends_both_sides(
    make_pair: Callable[..., Pair], killed: str
) -> None:
    pair = make_pair(launcher="local")
    pids = {"forwards": pair.forward("x"), "door": pair.door["pid"]}
    with pair.connected() as ends:
        assert echoes(*ends)
        os.kill(pids[killed], signal.SIGKILL)
        assert [receive(end, 1) for end in ends] == [b"", b""]
    host = pair.first if killed == "door" else pair.second
    event = host.events.get(timeout=PATIENT_SECONDS)
    assert event.pop("event") == "died"
    told = {"door": "The tunnel from other hosts", "forwards": "The tunnel to other hosts"}
    assert describe_death(Death(**event), 4) == (
        f"{told[killed]} (pid {pids[killed]}) was killed by SIGKILL"
    )
    if killed == "door":  # as when the host has gone: who connects is told at once
        with pair.second.connect("x") as client:
            assert receive(client, 1) == b""


# ---------------------------------------------------------------------- who may come


def contexts(pair: Pair) -> dict[str, ssl.SSLContext]:
    """Returns with what strangers come, and a member of the group."""
    folder = tempfile.gettempdir()
    other = tunnel._context(tunnel.make_certificate(), folder, ssl.PROTOCOL_TLS_CLIENT)
    none = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    own = tunnel._context(pair.certificate, folder, ssl.PROTOCOL_TLS_CLIENT)
    for each in (other, none):
        each.check_hostname = False
        each.verify_mode = ssl.CERT_NONE
    return {"other": other, "none": none, "own": own}


def dial(pair: Pair, context: ssl.SSLContext | None = None) -> socket.socket:
    connection = socket.create_connection((pair.address, pair.port), PATIENT_SECONDS)
    return connection if context is None else context.wrap_socket(connection)


def test_strangers_get_nothing(pair: Pair) -> None:
    pair.forward("x")
    with pair.first.serve("x") as listener:
        for certificate in ("none", "other", "plain"):
            # The door sends away who has no certificate by an alert, or by hanging up.
            with (
                contextlib.suppress(ssl.SSLError, ConnectionError),
                dial(pair, contexts(pair).get(certificate)) as stranger,
            ):
                stranger.sendall(b"x\n" * 1000)
                assert receive(stranger, 100)[:1] in (b"", TLS_ALERT)
        # The first who comes to the service is not a stranger.
        with pair.second.connect("x") as client, accept(listener) as service:
            assert echoes(client, service)


def test_a_door_without_the_certificate_gets_nothing(pair: Pair) -> None:
    """Who takes the place of the other host reads nothing, and is believed nothing."""
    with socket.create_server(("127.0.0.1", 0)) as false_door:
        false_door.settimeout(PATIENT_SECONDS)
        server = tunnel._context(
            tunnel.make_certificate(), tempfile.gettempdir(), ssl.PROTOCOL_TLS_SERVER
        )
        server.verify_mode = ssl.CERT_NONE
        pair.forward("x", routes=[("x", *false_door.getsockname())])
        with pair.second.connect("x") as client:
            client.sendall(b"secret")
            with accept(false_door) as accepted, pytest.raises(ssl.SSLError):
                server.wrap_socket(accepted, server_side=True).recv(1)
            with pytest.raises(ConnectionResetError):
                client.recv(1)


def test_silent_strangers_keep_nobody_waiting(pair: Pair) -> None:
    pair.forward("x")
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(dial(pair)) for _ in range(tunnel.MOST_OPENING + 2)]
        for ends in (stack.enter_context(pair.connected()),):
            assert echoes(*ends)
        # The oldest had to go.
        assert receive(strangers[0], 1) == b""


def test_a_door_leads_to_sockets_of_its_folder_only(pair: Pair) -> None:
    with pair.first.serve("x"):
        beside = f"../{pair.first.folder.name}/x"
        for name in ("", ".", "..", beside, str(pair.first.folder / "x"), "x\0", "absent", "owner"):
            with dial(pair, contexts(pair)["own"]) as member:
                member.sendall(f"{name}\n".encode())
                assert b" cannot be reached: " in receive(member, 1000), name
        with dial(pair, contexts(pair)["own"]) as member, contextlib.suppress(ConnectionError):
            member.sendall(b"x" * 100_000)
            assert receive(member, 1) == b""


# ---------------------------------------------------------------------- the certificate


CA = """
[ca]
default_ca = of_test
[of_test]
database = {folder}/index
new_certs_dir = {folder}
serial = {folder}/serial
default_md = sha256
policy = any
[any]
commonName = supplied
[req]
distinguished_name = name
[name]
"""


def test_clocks_of_hosts_may_differ(make_pair: Callable[..., Pair], tmp_path: Path) -> None:
    (tmp_path / "config").write_text(CA.format(folder=tmp_path))
    (tmp_path / "index").touch()
    (tmp_path / "serial").write_text("01")
    for command in (
        "req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key -out request "
        "-subj /CN=x -config config",
        "ca -batch -selfsign -in request -keyfile key -out made -notext -config config "
        "-startdate 20990101000000Z -enddate 20990102000000Z",
    ):
        subprocess.run(["openssl", *command.split()], cwd=tmp_path, check=True, capture_output=True)
    certificate = (tmp_path / "key").read_text() + (tmp_path / "made").read_text()
    pair = make_pair(certificate=certificate, launcher="local")
    pair.forward("x")
    with pair.connected() as ends:
        assert echoes(*ends)


def test_what_cannot_start_says_why(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StartError, match=r"cannot listen on 192\.0\.2\.77"):
        pair.first.ask("door", address="192.0.2.77", certificate=pair.certificate)
    (pair.second.folder / "taken").mkdir()
    with pytest.raises(StartError, match=r"tunnel between the hosts: .*taken: .*in use"):
        pair.forward("taken")
    (pair.second.folder / "taken").rmdir()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(StartError, match="needs the program `openssl`"):
        tunnel.make_certificate()
