"""How the conductor has a process interrupted: it asks for a press, and hears when it was made.

It asks who has started it, the fork server, in lines over a pair of sockets: ``press 3`` for
process 3, answered by ``pressed 3``. The fork server knows the process ids; where process 3 is on
another host, it has that host's fork server asked.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

_ASKS, _ANSWERS = "press ", "pressed "


class Lines:
    """Lines that come on a socket, each whole.

    Args:
        end: One end of a pair of stream sockets.

    Attributes:
        have_ended: Whether there will be no more.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end, self._rest, self.have_ended = end, b"", False
        self.fileno, self.close = end.fileno, end.close

    def arrived(self) -> list[str]:
        """Reads once, and returns the lines that are whole by now."""
        data = b""
        with contextlib.suppress(ConnectionError):  # it has ended, and has not read all
            data = self._end.recv(1 << 16)
        self.have_ended = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode() for line in lines]


class Asker:
    """The conductor's end; never waits.

    Args:
        end: One end of a pair of stream sockets; closed by ``close``.

    Attributes:
        have_ended: Whether no press will be made any more.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end, self._lines, self.have_ended = end, Lines(end), False
        self.fileno, self.close = end.fileno, end.close

    def ask(self, process: int) -> bool:
        """Asks for a press; returns whether that had room."""
        with contextlib.suppress(BlockingIOError):
            return self._end.send(f"{_ASKS}{process}\n".encode()) > 0
        return False

    def made(self) -> list[int]:
        """Reads once, and returns the processes that were pressed, each once for an :meth:`ask`."""
        lines = self._lines.arrived()
        self.have_ended = self._lines.have_ended
        return [int(line.removeprefix(_ANSWERS)) for line in lines]


class Answerer(Lines):
    """The fork server's end; also of a helper that asks for nothing.

    Args:
        end: The other end.
        press: Interrupts a process; returns whether that is done, or else :meth:`answer` follows.
    """

    def __init__(self, end: socket.socket, press: Callable[[int], bool]) -> None:
        super().__init__(end)
        self._press = press

    def arrived(self) -> list[str]:
        """Reads once, and makes the presses; returns the lines that ask for none."""
        others = []
        for line in super().arrived():
            if not line.startswith(_ASKS):
                others.append(line)
            elif self._press(process := int(line.removeprefix(_ASKS))):
                self.answer(process)
        return others

    def answer(self, process: int) -> None:
        """Tells the conductor that a process was pressed.

        It asks for one press of a process at a time: there is room for the answers.
        """
        with contextlib.suppress(OSError):  # it has just ended
            self._end.sendall(f"{_ANSWERS}{process}\n".encode())
