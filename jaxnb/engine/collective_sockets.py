"""The sockets of gloo, the CPU's collectives: found, and shut to free whoever waits on them.

What gloo does when a connection fails decides how they are shut:

- A wait to *receive* ends with an error when the connection has nothing more to read: the reading
  side is shut. It is read to its end by then, since gloo reads as soon as there is something.
- A wait to *send* ends with an error only if nothing of the message has been written. Of one that
  is written in part gloo forgets, when the connection fails, who waits for it: that one would sleep
  until the collective's time-out of half an hour. The same holds for what cannot be written because
  the other end is closed, which gloo takes for "later". So no writing may fail, and none may be
  left half done: the writing side stays open, the other process keeps its end open, by a descriptor
  of our own, and reads what comes where gloo has closed its own; and a connection with something
  left to write is shut only when that is written.
- A message for a collective that has failed already, on another connection, is never read: gloo has
  read its head and finds nobody to take the rest. From then on it does not look at that connection
  again, shut or not, and its thread turns in circles; who waits on it later waits without end. To
  shut the reading side does not keep out what comes later. So the system drops that, on all
  connections, before the first of them is shut; once gloo has closed its own, what was dropped
  comes again. Where the system cannot, nothing but the end of the process ends it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import select
import socket
import struct
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass

PAUSE_SECONDS = 0.005
"""How soon it is looked again whether something has been written, or gloo has closed its end."""

FIND_SECONDS = 0.1
"""How soon new connections are looked for again, which takes a call for each open file."""

READ_BYTES = 1 << 18

_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27  # Linux's, on all processors that JAX has

_FILTER = b"".join(
    struct.pack("@HBBI", *each)
    for each in (  # code, how far to jump if so and if not, operand
        (0x30, 0, 0, 12),  # the byte that holds the length of TCP's header, in its upper half
        (0x54, 0, 0, 0xF0),
        (0x74, 0, 0, 2),  # in bytes
        (0x07, 0, 0, 0),
        (0x80, 0, 0, 0),  # the length of the packet from that header on
        (0x1D, 0, 1, 0),
        (0x06, 0, 0, 0xFFFFFFFF),  # no data, such as an acknowledgement: let in
        (0x06, 0, 0, 0),  # dropped
    )
)
"""A program for the kernel's packet filter (``linux/filter.h``), which drops what brings data."""

_FILTER_BUFFER = ctypes.create_string_buffer(_FILTER, len(_FILTER))
_DROP_DATA = struct.pack("@HP", len(_FILTER) // 8, ctypes.addressof(_FILTER_BUFFER))


def _tcp_sockets() -> Iterator[tuple[int, socket.socket]]:
    """Yields this process's TCP sockets, each open by another descriptor for as long as it is used.

    The sockets are asked themselves: ``/proc/net/tcp`` lists all connections of the host, which
    takes the kernel 5 ms where there are few of them.
    """
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # other threads close theirs meanwhile
            if not os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                continue
            with _shared(int(entry)) as shared:
                is_ip = shared.family in (socket.AF_INET, socket.AF_INET6)
                if is_ip and shared.type == socket.SOCK_STREAM:
                    yield int(entry), shared


def _shared(fd: int) -> socket.socket:
    """Returns an open socket as an object of its own; whether it waits stays as it is.

    Where the user has called ``socket.setdefaulttimeout()`` Python has each new object wait for
    nothing, and with it all that share the socket.
    """
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    shared = socket.socket(fileno=os.dup(fd))
    if fcntl.fcntl(fd, fcntl.F_GETFL) != flags:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
    return shared


def _is_listening(shared: socket.socket) -> bool:
    return bool(shared.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def listening_ports() -> set[int]:
    """Returns the ports that this process listens on."""
    return {each.getsockname()[1] for _, each in _tcp_sockets() if _is_listening(each)}


@dataclass
class _Connection:
    """A connection that is to be shut, or has been.

    Attributes:
        fd: Gloo's descriptor, as long as it is gloo's.
        inode: What the descriptor stands for; the number alone may be another file's later.
        kept: The connection, open by a descriptor of our own.
        is_shut: Whether its reading side was shut.
    """

    fd: int
    inode: int
    kept: socket.socket
    is_shut: bool = False

    def is_closed_by_its_owner(self) -> bool:
        try:
            return os.fstat(self.fd).st_ino != self.inode
        except OSError:
            return True

    def shut(self) -> None:
        self.is_shut = True
        with contextlib.suppress(OSError):  # it is not connected any more
            self.kept.shutdown(socket.SHUT_RD)

    def deafen(self) -> None:
        """Has the system drop what comes from now on; it comes again after :meth:`drain`."""
        with contextlib.suppress(OSError):  # not on this system
            self.kept.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, _DROP_DATA)

    def drain(self) -> None:
        """Takes what the other end still writes: nobody else reads it."""
        with contextlib.suppress(OSError):  # it has none
            self.kept.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
        with contextlib.suppress(OSError):  # nothing has come, or it was reset
            while self.kept.recv(READ_BYTES, socket.MSG_DONTWAIT):
                pass


class SocketCutter:
    """Shuts connections for reading, and keeps them open for the other ends' writing.

    Its thread lives from the first :meth:`cut` to :meth:`release`, and shuts connections that are
    made meanwhile too, until :meth:`hold`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: dict[int, _Connection] = {}  # by inode
        self._ports: frozenset[int] = frozenset()
        self._found_at = 0.0
        self._released = threading.Event()
        self._thread: threading.Thread | None = None

    def deafen(self, ports: Collection[int]) -> None:
        """Keeps out what comes over the connections that :meth:`cut` would shut now.

        It is called in all processes before :meth:`cut` is in the first of them: what fails there
        has the next collectives begin, which must not meet those here that still wait.
        """
        with self._lock:
            self._ports = frozenset(ports)
            self._find()
            for each in self._idle():
                each.deafen()

    def cut(self, ports: Collection[int], *, is_all: bool = False) -> int:
        """Shuts the connections of which one end is one of the ports.

        What waits on them in gloo, in whatever thread, gets an error within milliseconds, or when
        what it is sending has been sent. The collectives of this process are of no use from then
        on: the group is of no use then.

        Args:
            ports: The ports that the group's processes have gloo listen on.
            is_all: Shut those too over which something is left to be written: whoever waits for
                that waits on, but not who waits to receive.

        Returns:
            How many connections there are.
        """
        with self._lock:
            self._ports = frozenset(ports)
            self._find()
            self._shut_idle(is_all=is_all)
            if self._connections and self._thread is None:
                self._released.clear()
                self._thread = threading.Thread(
                    target=self._serve, name="jaxnb-socket-cutter", daemon=True
                )
                self._thread.start()
            return len(self._connections)

    def hold(self) -> None:
        """Shuts no more connections: those that are made from now on are of the next group."""
        with self._lock:
            self._ports = frozenset()

    def release(self) -> None:
        """Closes what was kept open; nobody in the group may be in one of its old collectives."""
        self._released.set()
        thread = self._thread
        if thread is not None:
            thread.join()
        with self._lock:
            self._thread, self._ports = None, frozenset()
            for each in self._connections.values():
                each.kept.close()
            self._connections.clear()

    def _shut_idle(self, *, is_all: bool = False) -> None:
        """Shuts the connections over which nothing is left to be written."""
        idle = self._idle(is_all=is_all)
        for each in idle:
            each.deafen()
        for each in idle:
            each.shut()

    def _idle(self, *, is_all: bool = False) -> list[_Connection]:
        """Returns the connections that are not shut, and over which nothing is left to write."""
        open_ = [each for each in self._connections.values() if not each.is_shut]
        writing = _inodes_with_something_to_write() if open_ and not is_all else set()
        return [each for each in open_ if each.inode not in writing]

    def _find(self) -> None:
        self._found_at = time.monotonic()
        for fd, shared in _tcp_sockets():
            with contextlib.suppress(OSError):  # it is not connected (any more)
                ends = {shared.getsockname()[1], shared.getpeername()[1]}
                inode = os.fstat(shared.fileno()).st_ino
                if not ends.isdisjoint(self._ports) and inode not in self._connections:
                    kept = _shared(shared.fileno())
                    self._connections[inode] = _Connection(fd, inode, kept)

    def _serve(self) -> None:
        pause = PAUSE_SECONDS
        while not self._released.wait(pause):
            # What has not happened soon happens late, if at all: who waits should use no processor.
            pause = min(pause * 1.2, FIND_SECONDS)
            with self._lock:
                if self._ports and time.monotonic() - self._found_at > FIND_SECONDS:
                    self._find()
                self._shut_idle()
                for each in self._connections.values():
                    # Not before: gloo would take the rest of a message for the next one.
                    if each.is_shut and each.is_closed_by_its_owner():
                        each.drain()


_EVENTS = re.compile(r"^tfd:\s*\d+\s+events:\s*([0-9a-f]+).*\bino:([0-9a-f]+)", re.MULTILINE)


def _inodes_with_something_to_write() -> set[int]:
    """Returns the inodes of sockets of which some loop in this process waits to write more."""
    found: set[int] = set()
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # other threads close theirs meanwhile
            if os.readlink(f"/proc/self/fd/{entry}") == "anon_inode:[eventpoll]":
                with open(f"/proc/self/fdinfo/{entry}") as file:
                    text = file.read()
                found.update(
                    int(inode, 16)
                    for events, inode in _EVENTS.findall(text)
                    if int(events, 16) & select.EPOLLOUT
                )
    return found


cutter = SocketCutter()
"""Of this process."""
