"""The notebook's side of the fork server."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import IO, Any, Protocol

from jaxnb.errors import NotEnoughMemoryError, SessionBrokenError, StartError
from jaxnb.launch.folder import LOOPBACK, command_line, for_this_user, make_folder

EventHandler = Callable[[dict[str, Any]], None]

BEGINS = b"jaxnb: the agent begins\n"
"""The line that a fork server on another host writes first. What comes before it is not the
server's: a shell's startup file may print."""

PRINTED_BYTES = 4 << 10
"""How much of that is kept, to be shown if no fork server begins."""

SILENT_SECONDS = 3.0
"""An agent that has not answered for so long, after a second, is not waited for."""

NO_LINES = "(none)"
"""What stands for the last lines where there are none."""

_CLIENTS: weakref.WeakSet[AgentClient] = weakref.WeakSet()


def _let_go_in_a_fork() -> None:
    """Has a process that the user has forked from this one hold no end of a server's pipe.

    The server would not see that this one has ended.
    """
    null = os.open(os.devnull, os.O_WRONLY)
    for client in list(_CLIENTS):
        client.let_go(null)
    os.close(null)


os.register_at_fork(after_in_child=_let_go_in_a_fork)


class Reached(Protocol):
    """What a server is commanded through: its process, as a ``Popen`` is, or a connection to it."""

    @property
    def stdin(self) -> IO[bytes] | None:
        """Where commands are written."""

    @property
    def stdout(self) -> IO[bytes] | None:
        """Where answers and events are read."""

    @property
    def pid(self) -> int:
        """Its process on this host; 0 if it has none here."""

    @property
    def returncode(self) -> int | None:
        """Its exit status; None while it goes on, or if nobody knows."""

    def send_signal(self, sig: int) -> None:
        """Sends that process a signal."""

    def kill(self) -> None:
        """Ends it at once."""

    def terminate(self) -> None:
        """Asks it to end."""

    def wait(self, timeout: float | None = None) -> int | None:
        """Waits until it has ended; raises ``TimeoutExpired``."""


def run_program(words: Sequence[str], log_path: str) -> subprocess.Popen[bytes]:
    """Starts a server on this host, or what reaches one on another.

    Args:
        words: Its command line.
        log_path: The file that its standard error is written to.
    """
    with open(log_path, "wb", opener=for_this_user) as log:
        return subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            # Jupyter interrupts and kills the kernel's whole process group.
            start_new_session=True,
        )


class AgentClient:
    """Commands a fork server, and reads what it reports.

    Args:
        process: The server, or what reaches it.
        log_path: The file that its standard error is written to.
        on_event: Called in a reader thread for every event.
        first: A line that the server is sent before all else, once it has written :data:`BEGINS`.
            None: it is a child of this process, which writes no such line and needs nothing.

    Attributes:
        name: What it is, as the subject of a sentence.
        printed: What was written to its standard output before :data:`BEGINS`.
        silent_seconds: For how long it has not answered while this process ran, if it is asked
            whether it lives.
    """

    name = "The fork server"

    def __init__(
        self,
        process: Reached,
        log_path: str,
        on_event: EventHandler,
        first: bytes | None = None,
    ) -> None:
        self._process = process
        self.on_event = on_event
        self.printed, self.silent_seconds = b"", 0.0
        self._ids = count()
        self._lock = threading.Lock()
        self._writes = threading.Lock()  # taken for as long as the server does not read
        self._pending: dict[int, tuple[Future[Any], Callable[[dict[str, Any]], Any]]] = {}
        self._ended = threading.Event()
        self._held = None if first is None else first + b"\n"
        self._log_path = Path(log_path)
        self._reader = threading.Thread(
            target=self._read_events, name="jaxnb-fork-events", daemon=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout
        _CLIENTS.add(self)
        try:
            self._reader.start()
        except BaseException:
            self.close()
            self._stdout.close()  # which the reader does
            raise

    @property
    def pid(self) -> int:
        """The process id, on this host, of the server or of what reaches it."""
        return self._process.pid

    @property
    def is_awaited(self) -> bool:
        """Whether it owes an answer."""
        return bool(self._pending)

    @property
    def is_silent(self) -> bool:
        """Whether it has not answered for so long that nothing of it is to be waited for."""
        return self.silent_seconds >= SILENT_SECONDS

    @property
    def has_begun(self) -> bool:
        """Whether there is a server, as far as is known."""
        return self._held is None

    @property
    def status(self) -> int | None:
        """The exit status of that process; None while it runs."""
        return self._process.returncode

    def request(
        self, op: str, read: Callable[[dict[str, Any]], Any] = dict, **arguments: Any
    ) -> Future[Any]:
        """Sends a command.

        Args:
            op: The command.
            read: Makes the result of the answer, in the reader thread.
            arguments: Those of the command.

        Returns:
            A future of its answer; it fails with a :class:`StartError` if the server says
            that the command failed, with a :class:`NotEnoughMemoryError` if it says that there is
            no room, with a :class:`SessionBrokenError` if the server ends.
        """
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # the server carries it out: too late to cancel
        with self._lock:
            if self._ended.is_set():
                future.set_exception(self._ended_error())
                return future
            command_id = next(self._ids)
            self._pending[command_id] = future, read
            message = json.dumps({"op": op, "id": command_id, **arguments}).encode() + b"\n"
            if self._held is not None:
                self._held += message
                return future
        with self._writes:
            self._send(message)
        return future

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError, ValueError):  # the reader sees its end
            self._stdin.write(data)
            self._stdin.flush()

    @property
    def reads(self) -> bool:
        """Whether a short command can be sent now without waiting."""
        if not self._writes.acquire(blocking=False):
            return False
        try:
            return bool(select.select([], [self._stdin], [], 0)[1])
        except ValueError:  # it is closed
            return True
        finally:
            self._writes.release()

    def give_up(self) -> None:
        """Ends the connection at once; an agent ends itself when it hears no more of its owner."""
        self._process.kill()

    def wait_until_told(self, timeout_seconds: float = 10.0) -> None:
        """Waits until the handler of events has been told of the end of what was given up."""
        if self._reader is not threading.current_thread():
            self._reader.join(timeout_seconds)

    def let_go(self, fd: int) -> None:
        """Puts a file in the place of the server's standard input, if that is open.

        What is still to be written to it is so discarded, too.
        """
        if not self._stdin.closed:
            os.dup2(fd, self._stdin.fileno(), inheritable=False)

    def silence(self, seconds: float) -> str:
        """Returns that it has not answered for so long, and what to type."""
        return (
            f"{self.name} (pid {self.pid}) has not answered for {seconds:g} s: this machine is too "
            "busy. Type `%spmd_restart`."
        )

    def end(self) -> None:
        """Tells the server to end, with all its descendants; does not wait for that."""
        # The end of its standard input does not tell it while a process that C code has forked
        # from this one holds the pipe too.
        self.request("end")
        with contextlib.suppress(ConnectionError):
            self._stdin.close()
        if not self.has_begun:
            self._process.terminate()  # a server that begins yet finds its input ended

    def close(self, timeout_seconds: float = 10.0) -> None:
        """Ends the server and all its descendants, and waits until they are gone.

        May be called again, also after a call that was interrupted.

        Raises:
            SessionBrokenError: The server did not end in time.
        """
        self.end()
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise self._late_error(timeout_seconds) from None
        if self._reader.is_alive():
            self._reader.join(timeout_seconds)

    def _late_error(self, seconds: float) -> SessionBrokenError:
        return SessionBrokenError(
            f"{self.name} (pid {self.pid}) did not end within {seconds} s and was killed; the "
            "kernel of the operating system ends its children."
        )

    def _read_events(self) -> None:
        with self._stdout, contextlib.suppress(ConnectionResetError):
            for line in self._stdout:
                if not line.endswith(b"\n"):  # it has ended in mid-line
                    break
                if self._held is not None:
                    self._pass_over(line)
                    continue
                self.silent_seconds = 0.0
                message = json.loads(line)
                handle = self._resolve if "reply" in message else self.on_event
                handle(message)
        self._process.wait()
        with self._lock:
            self._ended.set()
            pending, self._pending = list(self._pending.values()), {}
        # First: whoever hears that an answer does not come knows of the end.
        self.on_event({"event": "ended", "status": self._process.returncode})
        for future, _ in pending:
            future.set_exception(self._ended_error())

    def _pass_over(self, line: bytes) -> None:
        """Takes a line of before the server begins; sends what has waited for that if it does."""
        if line != BEGINS:
            self.printed = (self.printed + line)[-PRINTED_BYTES:]
            return
        with self._writes:
            with self._lock:
                held, self._held = self._held, None
            self._send(held or b"")

    def _resolve(self, message: dict[str, Any]) -> None:
        with self._lock:
            future, read = self._pending.pop(message.pop("reply"))
        if "error" in message:
            future.set_exception(StartError(message["error"]))
        elif "refused" in message:
            future.set_exception(NotEnoughMemoryError(message["refused"]))
        else:
            future.set_result(read(message))

    def _ended_error(self) -> SessionBrokenError | StartError:
        return SessionBrokenError(
            f"{self.name} (pid {self.pid}) ended with status {self.status}. "
            f"Its last lines:\n{self.last_lines()}"
        )

    def last_lines(self, lines: int = 20) -> str:
        """Returns the last lines that were written to its standard error."""
        try:
            text = self._log_path.read_text(errors="replace")
        except FileNotFoundError:
            return NO_LINES
        return "\n".join(text.splitlines()[-lines:]) or NO_LINES


class ForkServerClient(AgentClient):
    """Owns a fork server on this host.

    The server and all its descendants end when this object is closed, and when this process
    ends in whatever way: the server waits for the command, for the end of its standard input
    and on this process's pidfd.

    Args:
        launcher: ``"fork"``, or ``"local"`` to have children start as programs of their own.
        on_event: Called in a reader thread for every event.

    Attributes:
        directory: The group's folder, which no other user can enter: sockets, keys and logs. The
            server removes it at its end.

    Raises:
        StartError: There is no folder for it.
    """

    def __init__(self, launcher: str, on_event: EventHandler) -> None:
        self.directory = make_folder()
        self.launcher = launcher
        arguments = str(os.getpid()), self.directory, launcher
        log_path = os.path.join(self.directory, "forkserver.log")
        try:
            words = command_line("jaxnb.launch.forkserver", *arguments)
            super().__init__(run_program(words, log_path), log_path, on_event)
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise

    def request(
        self, op: str, read: Callable[[dict[str, Any]], Any] = dict, **arguments: Any
    ) -> Future[Any]:
        """Sends a command, and has the server go on if it was stopped: all would wait for it."""
        self._process.send_signal(signal.SIGCONT)
        return super().request(op, read, **arguments)

    # What several hosts are asked, as :class:`~jaxnb.launch.hosts.Agents` answers it.

    def gather(self, _progress: Callable[[str, str], None]) -> None:
        """Does nothing: it is there."""

    def names(self) -> tuple[str, ...]:
        """Returns no names of hosts: nobody has named this one."""
        return ()

    def lost(self) -> tuple[str, ...]:
        """Returns no hosts: this one is not lost."""
        return ()

    def silent(self, _process_indices: Collection[int]) -> dict[str, str]:
        """Returns no hosts: this one answers."""
        return {}

    def give_up_silent(self) -> None:
        """Does nothing, likewise."""

    def notes(self) -> list[str]:
        """Returns nothing: there is nothing to be known of one host."""
        return []

    def place(self, _counts: Sequence[int]) -> None:
        """Does nothing: all processes run here."""

    def publish(self) -> None:
        """Does nothing: all sockets are here."""

    def share_scratch(self, _files: Any, _hosts: Any, _step: Any) -> None:
        """Does nothing: all files are here."""

    def address_of(self, _process_index: int) -> str:
        """Returns the address by which the other processes reach a process."""
        return LOOPBACK

    def host_of(self, _process_index: int) -> str:
        """Returns no name."""
        return ""

    def hosts_after(self, _process_indices: Collection[int]) -> set[str]:
        """Returns the hosts on which new processes in the place of these may run: this one."""
        return {""}

    def by_hand(self, _host: str) -> str:
        """Returns nothing that has to be typed before a command to run it here."""
        return ""


_server: ForkServerClient | None = None


def start(launcher: str) -> None:
    """Starts a fork server for the next group, which need not come: it ends with this process.

    Raises:
        StartError: There is no folder for it.
    """
    global _server
    _server = ForkServerClient(launcher, lambda _: None)


def take(launcher: str, on_event: EventHandler) -> ForkServerClient:
    """Returns the fork server that was started, once; else a new one.

    Args:
        launcher: As for :class:`ForkServerClient`.
        on_event: Told of its events from now on.

    Raises:
        StartError: There is no folder for it.
    """
    global _server
    server, _server = _server, None
    if server is None or server.launcher != launcher:
        return ForkServerClient(launcher, on_event)
    server.on_event = on_event
    return server
