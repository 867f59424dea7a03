"""Connections to the conductor, on which packets arrive whole or not at all.

They are Unix stream sockets in the group's folder, which only this user enters; each packet has its
length before it.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
from pathlib import Path
from typing import NoReturn

LOG = logging.getLogger(__name__)

SIZE = struct.Struct("<I")
"""Before a packet: how long it is."""

MAX_BYTES = 1 << 22
"""No packet is longer."""

ATOMIC_BYTES = 35 << 10
"""A process's packet and its length have no more: threads send at once, and handlers raise amid it.

Linux puts so much, 32 KiB and most of a page, into one buffer if half of the room has space for it.
That is sent whole, or not at all if a handler raises while the call waits for room; and nothing of
another thread's comes amid it.
"""

SEND_BYTES = 1 << 20
"""What is sent has so much room, or as much as the system allows: by default a fifth of it."""

_READ_BYTES = (1 << 16,)
_CREDENTIALS = struct.Struct("3i")


class HungUpError(ConnectionError):
    """The other end has closed the connection, or has ended."""


class Connection:
    """One end of a connection; one thread at a time reads.

    Args:
        connection: Connected to the other end, which makes one of these of its own.
        max_bytes: No packet that comes is longer.
    """

    def __init__(self, connection: socket.socket, max_bytes: int = MAX_BYTES) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        self._send, self._recv = connection.send, connection.recv
        self._most = SIZE.size + max_bytes
        self.fileno, self.close = connection.fileno, connection.close
        self._came: list[bytes] = []  # what was read; the first begins with the next packet
        self._end = 0  # of that packet, once it is whole

    def send(self, packet: bytes, sent: list[int] | None = None) -> None:
        """Sends a packet; from any thread, and from a signal's handler.

        By one call of the system, which takes it as a whole: threads need no lock, which a handler
        that raises could leave taken.

        Args:
            packet: The packet.
            sent: Has one entry more if it was sent, whatever is raised amid that.

        Raises:
            ConnectionAbortedError: It was cut: the other end has read nothing for long.
        """
        framed = SIZE.pack(len(packet)) + packet
        if sent is None:
            size = self._send(framed)
        else:
            # In C alone, which nothing is raised amid: what was sent is known.
            sent.extend(map(self._send, (framed,)))
            size = sent[-1]
        if size != len(framed):
            self._abort()

    def offer(self, packet: bytes) -> None:
        """Sends a packet if that takes no waiting; else raises, and the stream may be cut."""
        framed = SIZE.pack(len(packet)) + packet
        if self._send(framed, socket.MSG_DONTWAIT) != len(framed):
            self._abort()

    def _abort(self) -> NoReturn:
        self.close()
        raise ConnectionAbortedError("the other end does not read")

    def receive(self) -> bytes:
        """Returns the next packet, the same one until :meth:`take`; raises as :meth:`arrived` does.

        What another thread sets in this one (``PyThreadState_SetAsyncExc``) loses no packet.
        """
        while True:
            if self._came and (packet := self._first()) is not None:
                return packet
            self._read()

    def take(self) -> None:
        """Takes the packet that was received."""
        if len(self._came[0]) == self._end:
            del self._came[0]
        else:
            self._came[0] = self._came[0][self._end :]

    def arrived(self) -> list[bytes]:
        """Reads once, and returns the packets that are whole by now.

        Raises:
            HungUpError: There will be no more.
            ConnectionAbortedError: A packet is too long.
            OSError: Nothing has come in time.
        """
        self._read()
        packets = []
        while self._came and (packet := self._first()) is not None:
            packets.append(packet)
            self.take()
        return packets

    def _read(self) -> None:
        # In C alone, which nothing is raised amid: what was read is known.
        self._came.extend(map(self._recv, _READ_BYTES))
        if not self._came[-1]:
            raise HungUpError("the other end has hung up")

    def _first(self) -> bytes | None:
        """Returns the next packet if it is whole.

        Each change of what was read is one step of the interpreter's, which nothing is raised amid.
        """
        if len(self._came) > 1:
            self._came[:] = (b"".join(self._came),)
        came = self._came[0]
        if len(came) < SIZE.size:
            return None
        end = SIZE.size + SIZE.unpack_from(came)[0]
        if end > self._most:
            raise ConnectionAbortedError(
                f"a packet of {end - SIZE.size} bytes that the other end has not made"
            )
        self._end = end
        return came[SIZE.size : end] if len(came) >= end else None


def connected(path: Path, seconds: float | None = None) -> Connection:
    """Connects to the conductor that listens at a path.

    Args:
        path: Where it listens.
        seconds: For so long what reads waits; None: for ever, whatever the user's code has set.

    Raises:
        OSError: It has ended.
    """
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(seconds)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    return Connection(connection)


class Door:
    """Where the conductor listens: at a path that only this user reaches.

    Args:
        path: Where the socket will be.
        max_bytes: No packet that comes is longer.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
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
        try:
            refuse_other_users(accepted)
        except PermissionError as error:
            LOG.warning("%s", error)
            accepted.close()
            return None
        return Connection(accepted, self._max_bytes)


def refuse_other_users(connection: socket.socket) -> None:
    """Raises PermissionError if another user, not root, is at the other end of a Unix socket.

    Where the system does not tell, the folder that the socket is in has to keep others out.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(found)
    if uid not in (os.geteuid(), 0):
        raise PermissionError(f"refused process {pid} of user {uid}")
