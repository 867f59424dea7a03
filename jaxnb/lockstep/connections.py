"""Connections to the conductor, on which packets arrive whole or not at all.

On one Linux host they are Unix sockets in the group's folder: only this user enters it, and the
kernel tells who is at the other end. Else they are TCP: where the socket would be there is a file
that only this user can read, with the address and a key, and who has no key has no say.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import hmac
import json
import logging
import os
import secrets
import socket
import struct
from pathlib import Path

# Over TCP who connects sends a proof that it knows the key, and gets another one back. On one host
# nobody else can read the stream then, or put anything into it; between hosts that takes TLS.

SIZE = struct.Struct("<I")
"""Before a packet: how long it is."""

PROOF_BYTES = 32
"""How long each end's proof is."""

SEND_BYTES = 1 << 20
"""What is sent has room, so that it is taken as a whole: the system may give less."""

_READ_BYTES = 1 << 16


class HungUpError(ConnectionError):
    """The other end has closed the connection, or has ended."""


class StreamConnection:
    """One end of a stream of packets; both ends know a key.

    Args:
        connection: Connected to the other end, which makes one of these of its own.
        key: What both ends know, and nobody else.
        max_bytes: No packet that comes is longer.
        peer: The other end's process id, if it is known.
        accepts: The other end has connected, and proves first that it knows the key.

    Attributes:
        is_known: Whether the other end has proved that it knows the key.
    """

    def __init__(
        self,
        connection: socket.socket,
        key: bytes,
        max_bytes: int,
        peer: int | None = None,
        *,
        accepts: bool = False,
    ) -> None:
        self.peer, self._socket, self._max_bytes = peer, connection, max_bytes
        self.fileno, self.close = connection.fileno, connection.close
        self.is_known, self._accepts = False, accepts
        self._buffer, self._came = memoryview(bytearray(_READ_BYTES)), bytearray()
        self._sizes: list[int] = []  # of what was read and is in the buffer only
        self._whole: collections.deque[bytes] = collections.deque()
        asks, answers = (
            hashlib.blake2b(side, key=key, digest_size=PROOF_BYTES).digest()
            for side in (b"asks", b"answers")
        )
        self._own_proof, self._others_proof = (answers, asks) if accepts else (asks, answers)
        if not accepts:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
            connection.sendall(self._own_proof)

    def send(self, packet: bytes) -> None:
        """Sends a packet; from any thread, and from a signal's handler.

        By one call of the system, which takes it as a whole: threads need no lock, which a handler
        that raises could leave taken.

        Raises:
            ConnectionAbortedError: It was cut: the other end has read nothing for long.
        """
        self._send(packet, 0)

    def offer(self, packet: bytes) -> None:
        """Sends a packet if that takes no waiting; else raises, and the stream may be cut."""
        self._send(packet, socket.MSG_DONTWAIT)

    def _send(self, packet: bytes, flags: int) -> None:
        framed = SIZE.pack(len(packet)) + packet
        if self._socket.send(framed, flags) != len(framed):
            self.close()
            raise ConnectionAbortedError("the other end does not read")

    def receive(self) -> bytes:
        """Returns the next packet, the same one until :meth:`take`; raises as :meth:`arrived` does.

        What another thread sets in this one loses no packet.
        """
        while not self._whole and not self._opens():
            self._read()
        return self._whole[0]

    def take(self) -> None:
        """Takes the packet that was received."""
        self._whole.popleft()

    def arrived(self) -> list[bytes]:
        """Reads once, and returns the packets that are whole by now: one thread at a time.

        Raises:
            HungUpError: There will be no more.
            ConnectionAbortedError: The other end does not know the key, or a packet is too long.
        """
        self._read()
        packets = list(self._whole)
        self._whole.clear()
        return packets

    def _read(self) -> None:
        if not self._sizes:
            # In C alone, which nothing is raised amid: what was read is known.
            self._sizes.extend(map(self._socket.recv_into, (self._buffer,)))
        if not (size := self._sizes[0]):
            raise HungUpError("the other end has hung up")
        self._came += self._buffer[:size]
        self._sizes.clear()
        if not self.is_known:
            if len(self._came) < PROOF_BYTES:
                return
            if not hmac.compare_digest(self._came[:PROOF_BYTES], self._others_proof):
                raise ConnectionAbortedError("the other end does not know the key")
            del self._came[:PROOF_BYTES]
            self.is_known = True
            if self._accepts:
                self._socket.sendall(self._own_proof)
        while self._opens():
            pass

    def _opens(self) -> bool:
        """Whether a packet is whole; then it is among those."""
        if not self.is_known or len(self._came) < SIZE.size:
            return False
        (size,) = SIZE.unpack_from(self._came)
        if size > self._max_bytes:
            raise ConnectionAbortedError(
                f"a packet of {size} bytes that the other end has not made"
            )
        end = SIZE.size + size
        if len(self._came) < end:
            return False
        self._whole.append(bytes(self._came[SIZE.size : end]))
        del self._came[:end]
        return True


LOG = logging.getLogger(__name__)

MAX_BYTES = 1 << 22
"""No packet is longer."""

_CREDENTIALS = struct.Struct("3i")
_KEY_BYTES = 32


def listening(path: Path, host: str | None, max_bytes: int = MAX_BYTES) -> Door:
    """Listens at a path that only this user reaches.

    Args:
        path: Where the socket will be, or the file with address and key.
        host: The address to listen on over TCP; None for a Unix socket, where the system has them
            as they are needed here, else for TCP on loopback.
        max_bytes: No packet that comes is longer.
    """
    if host is None and not hasattr(socket, "SO_PEERCRED"):
        host = "127.0.0.1"  # macOS: no Unix sockets that keep packets whole, either
    return UnixDoor(path, max_bytes) if host is None else TcpDoor(path, host, max_bytes)


def connected(path: Path, seconds: float | None = None) -> Connection:
    """Connects to the conductor that listens at a path.

    Args:
        path: Where it listens.
        seconds: For so long what reads waits; None: for ever, whatever the user's code has set.

    Raises:
        OSError: It has ended.
    """
    if path.is_socket():
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(seconds)
        try:
            connection.connect(str(path))
        except OSError:
            connection.close()
            raise
        return UnixConnection(connection, MAX_BYTES)
    door = json.loads(path.read_bytes())
    connection = socket.create_connection((door["host"], door["port"]), seconds)
    connection.settimeout(seconds)
    return _over_tcp(connection, bytes.fromhex(door["key"]), MAX_BYTES, peer=door["pid"])


def _over_tcp(
    connection: socket.socket,
    key: bytes,
    max_bytes: int,
    peer: int | None = None,
    *,
    accepts: bool = False,
) -> Connection:
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return StreamConnection(connection, key, max_bytes, peer, accepts=accepts)
    except OSError:
        connection.close()
        raise


class UnixDoor:
    """Where the conductor listens on one host: at a path that only this user reaches."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._max_bytes = max_bytes
        before = os.umask(0o177)
        try:
            self._socket.bind(str(path))
        finally:
            os.umask(before)
        self._socket.listen(128)
        self.fileno, self.close = self._socket.fileno, self._socket.close

    def accept(self) -> Connection | None:
        """Returns who has come; None if it is another user, who is sent away."""
        accepted, _ = self._socket.accept()
        pid, uid = _credentials(accepted)
        if uid not in (os.geteuid(), 0):
            LOG.warning("refused process %d of user %d", pid, uid)
            accepted.close()
            return None
        return UnixConnection(accepted, self._max_bytes)


def _credentials(connection: socket.socket) -> tuple[int, int]:
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(found)
    return pid, uid


class UnixConnection:
    """One end of a connection whose packets the system keeps whole.

    Attributes:
        peer: The other end's process id.
        is_known: Whether it is known that the other end may say something.
    """

    def __init__(self, connection: socket.socket, max_bytes: int) -> None:
        self._socket = connection
        # Of whichever thread reads; to allocate as much for each packet costs more than the packet.
        self._buffer = memoryview(bytearray(max_bytes))
        self._sizes: list[int] = []  # of the packet in it, if there is one
        self.send = connection.send  # from any thread, and from a signal's handler
        self.peer = _credentials(connection)[0]
        self.is_known = True
        self.fileno, self.close = connection.fileno, connection.close

    def offer(self, packet: bytes) -> None:
        """Sends a packet if that takes no waiting; else raises."""
        self._socket.send(packet, socket.MSG_DONTWAIT)

    def receive(self) -> bytes:
        """Returns the next packet, the same one until :meth:`take`; raises as :meth:`arrived` does.

        What another thread sets in this one (``PyThreadState_SetAsyncExc``) loses no packet.
        """
        if not self._sizes:
            # In C alone, which nothing is raised amid: a packet that was read is known.
            self._sizes.extend(map(self._socket.recv_into, (self._buffer,)))
        if size := self._sizes[0]:
            return bytes(self._buffer[:size])
        raise HungUpError("the other end has hung up")

    def take(self) -> None:
        """Takes the packet that was received."""
        self._sizes.clear()

    def arrived(self) -> list[bytes]:
        """Reads once, and returns the packets that are whole by now: one thread at a time.

        Raises:
            HungUpError: There will be no more.
            OSError: Nothing has come in time.
        """
        packet = self.receive()
        self.take()
        return [packet]


class TcpDoor:
    """Where the conductor listens over TCP; address and key are in a file of this user's."""

    def __init__(self, path: Path, host: str, max_bytes: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=128)
        self._max_bytes, self._key = max_bytes, secrets.token_bytes(_KEY_BYTES)
        door = {
            "host": host,
            "port": self._socket.getsockname()[1],
            "key": self._key.hex(),
            "pid": os.getpid(),
        }
        # Made whole beside it: who sees it can read it.
        beside = path.with_name(f"{path.name}.new")
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(door, file)
        beside.rename(path)
        self.fileno, self.close = self._socket.fileno, self._socket.close

    def accept(self) -> Connection | None:
        """Returns who has come; None if it has hung up again."""
        accepted, _ = self._socket.accept()
        with contextlib.suppress(OSError):
            return _over_tcp(accepted, self._key, self._max_bytes, accepts=True)
        return None


Connection = UnixConnection | StreamConnection
Door = UnixDoor | TcpDoor
