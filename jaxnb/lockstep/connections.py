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
import itertools
import json
import logging
import os
import secrets
import socket
import struct
from collections.abc import Callable
from pathlib import Path

# Who connects draws a random number and sends it first. A packet carries a code made from that, the
# key and the packet's own number, so what another has made up, changed, or sent a second time, on
# this connection or on another, is found, and ends the connection. It can be read on its way, and
# whoever is on the way can leave packets out.

HEAD = struct.Struct("<IQ16s")
"""Before a packet: its size, its number, its code."""

DRAWN_BYTES = 32
"""Size of the random number that comes first."""

SEND_BYTES = 1 << 20
"""What is sent has room, so that it is taken as a whole: the system may give less."""

_READ_BYTES = 1 << 16


class HungUpError(ConnectionError):
    """The other end has closed the connection, or has ended."""


class SealedConnection:
    """One end of a stream whose packets carry codes.

    Args:
        connection: Connected to the other end, which makes one of these of its own.
        key: What both ends know, and nobody else.
        max_bytes: No packet that comes is longer.
        peer: The other end's process id, if it is known.
        is_new: Of who accepts: takes the number that the other end has drawn, and returns whether
            nobody has sent it before.

    Attributes:
        is_known: Whether a packet has come that only who knows the key can have made.
    """

    def __init__(
        self,
        connection: socket.socket,
        key: bytes,
        max_bytes: int,
        peer: int | None = None,
        is_new: Callable[[bytes], bool] | None = None,
    ) -> None:
        self.peer, self._socket, self._key, self._max_bytes = peer, connection, key, max_bytes
        self.fileno, self.close = connection.fileno, connection.close
        self.is_known = False
        self._is_new = is_new
        self._buffer, self._came = memoryview(bytearray(_READ_BYTES)), bytearray()
        self._sizes: list[int] = []  # of what was read and is in the buffer only
        self._whole: collections.deque[bytes] = collections.deque()
        self._counts = itertools.count(1)
        self._last, self._missing = 0, set[int]()
        self._keys: tuple[bytes, bytes] | None = None  # of what is sent, of what comes
        if is_new is None:
            drawn = secrets.token_bytes(DRAWN_BYTES)
            self._keys = self._key_of(drawn, b"asks"), self._key_of(drawn, b"answers")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
            connection.sendall(drawn)

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
        if self._keys is None:
            raise ConnectionAbortedError("nothing can be said before the other end has begun")
        number = next(self._counts)
        sealed = HEAD.pack(len(packet), number, _code(self._keys[0], number, packet)) + packet
        if self._socket.send(sealed, flags) != len(sealed):
            self.close()
            raise ConnectionAbortedError("the other end does not read")

    def receive(self) -> bytes:
        """Returns the next packet, the same one until :meth:`take`; raises as :meth:`arrived` does.

        What another thread sets in this one loses no packet.
        """
        while not self._whole and not (self._keys and self._opens(self._keys[1])):
            self._read()
        return self._whole[0]

    def take(self) -> None:
        """Takes the packet that was received."""
        self._whole.popleft()

    def arrived(self) -> list[bytes]:
        """Reads once, and returns the packets that are whole by now: one thread at a time.

        Raises:
            HungUpError: There will be no more.
            ConnectionAbortedError: What came is not the other end's.
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
        if self._keys is None:
            if len(self._came) < DRAWN_BYTES:
                return
            drawn = bytes(self._came[:DRAWN_BYTES])
            if self._is_new is None or not self._is_new(drawn):
                raise ConnectionAbortedError("a number that another connection has begun with")
            self._keys = self._key_of(drawn, b"answers"), self._key_of(drawn, b"asks")
            del self._came[:DRAWN_BYTES]
        while self._opens(self._keys[1]):
            pass

    def _key_of(self, drawn: bytes, side: bytes) -> bytes:
        return hashlib.blake2b(side + drawn, key=self._key, digest_size=32).digest()

    def _opens(self, key: bytes) -> bool:
        """Whether a packet is whole; then it is among those."""
        if len(self._came) < HEAD.size:
            return False
        size, number, code = HEAD.unpack_from(self._came)
        end = HEAD.size + size
        if size <= self._max_bytes:
            if len(self._came) < end:
                return False
            packet = bytes(self._came[HEAD.size : end])
            if hmac.compare_digest(code, _code(key, number, packet)) and self._is_next(number):
                self.is_known = True
                del self._came[:end]
                self._whole.append(packet)
                return True
        raise ConnectionAbortedError(f"a packet of {size} bytes that the other end has not made")

    def _is_next(self, number: int) -> bool:
        """Whether a packet of that number has not come; threads may send theirs in any order."""
        if number > self._last:
            self._missing.update(range(self._last + 1, number))
            self._last = number
            return True
        is_missing = number in self._missing
        self._missing.discard(number)
        return is_missing


def _code(key: bytes, number: int, packet: bytes) -> bytes:
    made = hashlib.blake2b(number.to_bytes(8, "little"), key=key, digest_size=16)
    made.update(packet)
    return made.digest()


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
    is_new: Callable[[bytes], bool] | None = None,
) -> Connection:
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return SealedConnection(connection, key, max_bytes, peer, is_new)
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
        self._drawn: set[bytes] = set()
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
            return _over_tcp(accepted, self._key, self._max_bytes, is_new=self._is_new)
        return None

    def _is_new(self, drawn: bytes) -> bool:
        is_new = drawn not in self._drawn
        self._drawn.add(drawn)
        return is_new


Connection = UnixConnection | SealedConnection
Door = UnixDoor | TcpDoor
