"""Strict mode: a connection to another process, which loses nothing to an interrupt."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from multiprocessing.connection import Client, Connection, Listener

from jaxnb.engine.agreement_words import END, beginning

PEER_CREDENTIALS = struct.Struct("3i")
"""A process id, a user id and a group id, as Linux tells them of who has connected."""

_BUFFER_BYTES = 1 << 12
"""A message takes some hundred; a larger one makes it grow."""


class Peer:
    """A connection, and what has come over it.

    An interrupt may strike anywhere, also when the system has handed bytes over and Python has
    not been told yet how many. So that is not asked: they are put where only zeros were, and
    there is no zero in a message. It is read before it is removed, and may be read twice.

    Args:
        connection: The connection; closed with this.

    Attributes:
        word: What the other process is about to dispatch, as it has said it.
        is_refused: Whether this process has refused that.
        said: What this process is about to dispatch.
        has_refused: Whether the other process has refused that.
        has_left: Whether the other process has left the cell, or takes part in nothing more.
        left_note: How it has.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        connection.settimeout(None)  # whatever the user has set by socket.setdefaulttimeout()
        if connection.family != socket.AF_UNIX:
            # Small messages go without waiting for the receipt of those before.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(_BUFFER_BYTES)
        self._forget()

    def _forget(self) -> None:
        self.word: bytes | None = None  # what it is about to dispatch
        self.is_refused = False  # that, by this process
        self.said = b""  # what this process is about to dispatch
        self.has_refused = False  # that, by the other one
        self.has_left, self.left_note = False, ""

    @property
    def has_more(self) -> bool:
        """Whether something has come already that was not received."""
        return self._buffer[0] != 0

    def fileno(self) -> int:
        """Returns the connection's file; -1 if it was closed."""
        return self._socket.fileno()

    def begin(self, run: str) -> None:
        """Begins a cell; what came of earlier ones is dropped.

        A process that dispatches nothing reads nothing: without this the system's memory for the
        connection would be full some day, and the other process would wait in sending.
        """
        self._forget()
        of_this = beginning(run)
        while (message := self.first_now()) is not None and not message.startswith(of_this):
            self.drop_first()

    def send(self, message: bytes) -> None:
        """Sends a message; it is small, so this waits for nobody."""
        self._socket.sendall(message)

    def say(self, word: bytes) -> None:
        """Tells what this process is about to dispatch."""
        self.said = word
        self.is_refused = self.has_refused = False
        self.send(word)

    def says(self, word: bytes) -> bool:
        """Takes a word, if that is the first message; waits for it.

        Returns:
            Whether it was. If not, nothing was taken.

        Raises:
            EOFError: There will be no more.
            OSError: The connection is broken, or was closed.
        """
        if self.word is not None or self.has_left:
            return False
        if not self.has_more:
            self._receive()
        if not self._buffer.startswith(word):
            return False
        self.word = word
        self._drop(len(word))
        return True

    def first_now(self) -> bytes | None:
        """Returns what :meth:`first` does, if that has come; there may never be one."""
        try:
            return self.first(socket.MSG_DONTWAIT)
        except (EOFError, OSError) as error:
            raise_if_of_user(error)
            return None

    def first(self, flags: int = 0) -> bytes:
        """Returns the first message that was not dropped; waits for it.

        Args:
            flags: How to ask the system.

        Raises:
            EOFError: There will be no more.
            OSError: The connection is broken, or was closed.
        """
        while (end := self._buffer.find(END)) < 0:
            self._receive(flags)
        return bytes(self._buffer[: end + len(END)])

    def _receive(self, flags: int = 0) -> None:
        received = self._buffer.find(0)
        if received < 0:
            self._buffer = self._buffer + bytes(len(self._buffer))
            return
        with memoryview(self._buffer) as whole, whole[received:] as free:
            if not self._socket.recv_into(free, flags=flags):
                raise EOFError

    def drop_first(self) -> None:
        """Drops what :meth:`first` returns, and lets the next one be the first."""
        self._drop(self._buffer.find(END) + len(END))

    def _drop(self, size: int) -> None:
        # At once, as the rest of what Python does in C.
        self._buffer[:] = self._buffer[size:] + bytes(size)

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()


def listen(host: str, folder: str) -> Listener:
    """Returns a listener for other processes; who calls has yet to show that it knows the key.

    Within a host it is a Unix socket: agreeing takes a fourth less time than over TCP, or better,
    and no other user can reach it. The folder is removed with the group, whatever ends this
    process.

    Args:
        host: The address to listen on, where there is no folder.
        folder: Where the socket is to be.

    Raises:
        OSError: The system does not let this process listen.
    """
    if not folder:
        return Listener((host, 0), "AF_INET", backlog=socket.SOMAXCONN)
    path = os.path.join(folder, f"strict-{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):  # of a process of the group that had the same id
        os.unlink(path)
    return Listener(path, "AF_UNIX", backlog=socket.SOMAXCONN)


def is_of_this_user(connection: Connection) -> bool:
    """Whether who has connected is of the same user, as far as that is known.

    Not over TCP; and where the system does not tell, the folder's mode is what keeps others out.
    """
    with socket.socket(fileno=os.dup(connection.fileno())) as shared:
        if shared.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
            return True
        told = shared.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER_CREDENTIALS.size)
    _, user, _ = PEER_CREDENTIALS.unpack(told)
    return bool(user == os.geteuid())


def name_of(listener: Listener) -> str:
    """Returns what other processes call it by."""
    address = listener.address
    return json.dumps(address if isinstance(address, tuple) else os.fsdecode(address))


def call(name: str, key: bytes) -> Connection:
    """Connects this process to a listener; each has shown the other that it knows the key.

    Raises:
        OSError: It is not to be reached.
        multiprocessing.AuthenticationError: It does not know the key.
    """
    address = json.loads(name)
    found = Client(address if isinstance(address, str) else tuple(address), authkey=key)
    assert isinstance(found, Connection)
    return found


def wait_at_most(connection: Connection, seconds: float) -> None:
    """Has reads from a connection fail after so many seconds; 0 for as long as it takes."""
    with socket.socket(fileno=os.dup(connection.fileno())) as shared:
        shared.settimeout(None)  # whatever the user has set by socket.setdefaulttimeout()
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(seconds), 0))


def raise_if_of_user(error: Exception) -> None:
    """Raises what a signal's handler of the user's may have raised: TimeoutError is an OSError."""
    if isinstance(error, OSError) and error.errno is None:
        raise error
