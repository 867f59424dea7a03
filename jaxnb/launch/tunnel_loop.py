"""The tunnel's connections: bytes both ways between a Unix socket and TLS, in one thread for all.

A connection is a generator: it says which sockets it waits for, and goes on once one is ready.
With asyncio's streams a message took 1.15 times as long, and 256 MiB 1.6 times; they cannot end one
direction of TLS only.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import selectors
import socket
import ssl
import sys
import time
from collections.abc import Callable, Generator
from typing import NoReturn, TypeVar, cast

LOG = logging.getLogger(__name__)

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

Result = TypeVar("Result")
Steps = Generator[dict[int, int], None, Result]
"""The course of a connection: yields the descriptors, with events, that it waits for."""

OPENING_SECONDS = 60.0
"""So long a connection may take until the door has answered; a link may be down for 30 s."""

CHUNK_BYTES = 1 << 18
"""So much is read at once; then others have their turn."""

_RECORD_BYTES = 1 << 14
_LONGEST_LINE = 256
_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 30, "TCP_KEEPCNT": 5}

# Of the process, which has one thread. What was decrypted can be longer than what was read, as the
# beginning of a record may have come before.
_BUFFER = memoryview(bytearray(CHUNK_BYTES + 4 * _RECORD_BYTES))


class Plain:
    """A Unix socket that never waits.

    Attributes:
        has_ended: Nothing more will come from it.
        unsent: What it could not take yet.
        is_deaf: It will take nothing more.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket, self.fd = connection, connection.fileno()
        self.has_ended = self.is_deaf = self._ends = False
        self.unsent = memoryview(b"")

    def read(self) -> memoryview:
        """Returns what has come, valid until the next read; empty if nothing has, or at the end."""
        try:
            size = self._socket.recv_into(_BUFFER)
        except BlockingIOError:
            return _BUFFER[:0]
        except ConnectionResetError:  # who was there has closed it before reading all
            size = 0
        self.has_ended = not size
        return _BUFFER[:size]

    def write(self, data: memoryview) -> None:
        """Sends bytes, which nothing unsent may precede; what has no room becomes unsent."""
        self._send(data)
        self.unsent = memoryview(bytes(self.unsent))  # the next read writes over the buffer

    def end(self) -> None:
        """Sends that nothing more will come, after all that is unsent."""
        self._ends = True
        self.flush()

    def flush(self) -> None:
        """Sends what is unsent, as far as there is room."""
        if self.unsent:
            self._send(self.unsent)
        if self._ends and not (self.unsent or self.is_deaf):
            self._socket.shutdown(socket.SHUT_WR)
            self.is_deaf = True

    def _send(self, data: memoryview) -> None:
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except (BrokenPipeError, ConnectionResetError):
            # Who was there has ended; what it has sent before is still to be read.
            self.is_deaf, sent = True, len(data)
        self.unsent = data[sent:]


class Secured(Plain):
    """A TCP socket with TLS.

    Bytes are encrypted in memory: reading waits for bytes only, and writing for room only.
    """

    def __init__(self, connection: socket.socket, context: ssl.SSLContext) -> None:
        super().__init__(connection)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):  # macOS has two of them
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        is_server = context.protocol == ssl.PROTOCOL_TLS_SERVER
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=is_server)

    def read(self) -> memoryview:
        """Returns what has come, as :meth:`Plain.read` does.

        Raises:
            OSError: The connection between the hosts broke, which is the end of both sides.
        """
        self._receive(CHUNK_BYTES)
        size = 0
        with contextlib.suppress(ssl.SSLWantReadError):
            while count := self._read_into(_BUFFER[size:]):
                size += count
            self.has_ended = True
        return _BUFFER[:size]

    def _read_into(self, buffer: memoryview) -> int:
        try:
            return cast(int, self._tls.read(len(buffer), buffer))
        except ssl.SSLZeroReturnError:  # the other side has ended, as this one has
            return 0

    def _receive(self, most_bytes: int) -> None:
        with contextlib.suppress(BlockingIOError):
            data = self._socket.recv(most_bytes)
            if data:
                self._incoming.write(data)
            else:
                self._incoming.write_eof()

    def write(self, data: memoryview) -> None:
        """Sends bytes as :meth:`Plain.write` does."""
        while data:
            data = data[self._tls.write(data) :]
        self._send(memoryview(self._outgoing.read()))

    def end(self) -> None:
        """Sends that nothing more will come, after all that is unsent."""
        with contextlib.suppress(ssl.SSLWantReadError):  # the other side goes on
            self._tls.unwrap()
        self.unsent = memoryview(bytes(self.unsent) + self._outgoing.read())
        self.flush()

    def shake_hands(self) -> Steps[None]:
        """Has both ends show the certificate."""
        while True:
            try:
                self._tls.do_handshake()
                return
            except ssl.SSLWantReadError:
                pass
            finally:
                self._send(memoryview(self._outgoing.read()))  # the reason too, if it failed
            yield {self.fd: READ}
            self._receive(_RECORD_BYTES)

    def line(self) -> Steps[str]:
        """Returns a line, and leaves what comes after it."""
        line = b""
        while True:
            self._receive(_RECORD_BYTES)
            with contextlib.suppress(ssl.SSLWantReadError):
                while (byte := self._tls.read(1)) != b"\n":
                    if not byte or len(line) == _LONGEST_LINE:
                        raise ConnectionAbortedError("the other end has not sent a line")
                    line += byte
                return os.fsdecode(line)
            yield {self.fd: READ}

    def write_line(self, text: str) -> None:
        """Sends a line."""
        self.write(memoryview(os.fsencode(f"{text}\n")))


def carry(near: Plain, far: Secured) -> Steps[None]:
    """Carries bytes both ways until both sides have ended; more is read once a side has room."""
    ways = (near, far), (far, near)
    while True:
        wanted = {near.fd: 0, far.fd: 0}
        for source, sink in ways:
            sink.flush()
            can_go = not (source.has_ended or sink.unsent or sink.is_deaf)
            if can_go:
                if data := source.read():
                    sink.write(data)
                if source.has_ended:
                    sink.end()
            if sink.unsent:
                wanted[sink.fd] |= WRITE
            elif not (source.has_ended or sink.is_deaf):
                wanted[source.fd] |= READ
        if not any(wanted.values()):
            return
        yield {fd: events for fd, events in wanted.items() if events}


Opening = Callable[[socket.socket, contextlib.ExitStack], Steps[tuple[Plain, Secured]]]
"""Makes both ends of a connection that was accepted; what it opens is closed with the stack."""


class Connection:
    """A connection on its course, from its acceptance to its end.

    Attributes:
        is_open: Bytes are carried.
        awaited: What it waits for.
    """

    def __init__(self, accepted: socket.socket, opening: Opening) -> None:
        self.is_open = False
        self.awaited: dict[int, int] = {}
        steps = self._course(accepted, opening)
        self.go_on, self.close = steps.__next__, steps.close

    def _course(self, accepted: socket.socket, opening: Opening) -> Steps[None]:
        with contextlib.ExitStack() as sockets:
            sockets.enter_context(accepted)
            near, far = yield from opening(accepted, sockets)
            self.is_open = True
            yield from carry(near, far)


class Tunnel:
    """Serves the connections of this process, in one thread; none waits for another.

    Args:
        most_opening: So many connections may be on their way to be open; the oldest is ended then.
    """

    def __init__(self, most_opening: int = sys.maxsize) -> None:
        self._most_opening = most_opening
        self._selector = selectors.DefaultSelector()
        self._due: dict[Connection, float] = {}  # of those that are not open, the oldest first

    def listen(self, listener: socket.socket, opening: Opening) -> None:
        """Has each connection opened that comes to a socket."""
        listener.setblocking(False)
        self._selector.register(listener, READ, lambda: self._accept(listener, opening))

    def stop_listening(self, listener: socket.socket) -> None:
        """Accepts no more on a socket."""
        self._selector.unregister(listener)
        listener.close()

    def serve(self) -> NoReturn:
        """Serves until the process is ended."""
        while True:
            due = next(iter(self._due.values()), None)
            timeout = None if due is None else max(0.0, due - time.monotonic())
            for key, _ in self._selector.select(timeout):
                key.data()
            if due is not None:
                now = time.monotonic()
                for connection in [each for each, at in self._due.items() if at <= now]:
                    self._end(connection, "nothing has come from the other end")

    def _accept(self, listener: socket.socket, opening: Opening) -> None:
        try:
            accepted, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):  # who came has hung up again
            return
        if len(self._due) >= self._most_opening:
            self._end(next(iter(self._due)), f"{len(self._due)} others have not answered either")
        self.begin(accepted, opening)

    def begin(self, accepted: socket.socket, opening: Opening) -> None:
        """Opens a connection, and carries it."""
        connection = Connection(accepted, opening)
        self._due[connection] = time.monotonic() + OPENING_SECONDS
        self._go_on(connection)

    def _go_on(self, connection: Connection) -> None:
        try:
            wanted = connection.go_on()
        except StopIteration:
            self._end(connection)
        except OSError as error:
            self._end(connection, str(error))
        else:
            if connection.is_open:
                self._due.pop(connection, None)
            if wanted != connection.awaited:
                self._watch(connection, wanted)

    def _watch(self, connection: Connection, wanted: dict[int, int]) -> None:
        before, connection.awaited = connection.awaited, wanted
        for fd in before.keys() - wanted.keys():
            self._selector.unregister(fd)
        for fd, events in wanted.items():
            if fd not in before:
                go_on = functools.partial(self._go_on, connection)
                self._selector.register(fd, events, go_on)
            elif events != before[fd]:
                self._selector.modify(fd, events, self._selector.get_key(fd).data)

    def _end(self, connection: Connection, why: str = "") -> None:
        if why:
            LOG.warning("a connection between hosts was ended: %s", why)
        self._watch(connection, {})
        self._due.pop(connection, None)
        connection.close()
