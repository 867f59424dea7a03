"""The notebook's side of the fork server."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any

from jaxnb.errors import NotEnoughMemoryError, SessionBrokenError, StartError
from jaxnb.launch.folder import command_line, for_this_user, make_folder

EventHandler = Callable[[dict[str, Any]], None]


class ForkServerClient:
    """Owns a fork server.

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
        self.on_event = on_event
        self._ids = count()
        self._lock = threading.Lock()
        self._pending: dict[int, tuple[Future[Any], Callable[[dict[str, Any]], Any]]] = {}
        self._ended = False
        self._log_path = Path(self.directory) / "forkserver.log"
        self._reader = threading.Thread(
            target=self._read_events, name="jaxnb-fork-events", daemon=True
        )
        try:
            self._process = self._start_process()
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        try:
            self._reader.start()
        except BaseException:
            self.close()
            self._stdout.close()  # which the reader does
            raise

    def _start_process(self) -> subprocess.Popen[bytes]:
        arguments = str(os.getpid()), self.directory, self.launcher
        with open(self._log_path, "wb", opener=for_this_user) as log:
            return subprocess.Popen(
                command_line("jaxnb.launch.forkserver", *arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # Jupyter interrupts and kills the kernel's whole process group.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The fork server's process id."""
        return self._process.pid

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
            if self._ended:
                future.set_exception(self._ended_error())
                return future
            command_id = next(self._ids)
            self._pending[command_id] = future, read
            message = json.dumps({"op": op, "id": command_id, **arguments}).encode() + b"\n"
            with contextlib.suppress(BrokenPipeError, ValueError):  # the reader sees its end
                self._stdin.write(message)
                self._stdin.flush()
        return future

    def close(self, timeout_seconds: float = 10.0) -> None:
        """Ends the server and all its descendants, and waits until they are gone.

        May be called again, also after a call that was interrupted.

        Raises:
            SessionBrokenError: The server did not end in time.
        """
        # The end of its standard input would not tell it while a process that the user has
        # forked from this one holds the pipe too.
        self.request("end")
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise SessionBrokenError(
                f"The fork server (pid {self.pid}) did not end within {timeout_seconds} s and "
                "was killed; the kernel of the operating system ends its children."
            ) from None
        if self._reader.is_alive():
            self._reader.join(timeout_seconds)

    def _read_events(self) -> None:
        with self._stdout:
            for line in self._stdout:
                message = json.loads(line)
                handle = self._resolve if "reply" in message else self.on_event
                handle(message)
        self._process.wait()
        with self._lock:
            self._ended = True
            pending, self._pending = list(self._pending.values()), {}
        for future, _ in pending:
            future.set_exception(self._ended_error())
        self.on_event({"event": "ended", "status": self._process.returncode})

    def _resolve(self, message: dict[str, Any]) -> None:
        with self._lock:
            future, read = self._pending.pop(message["reply"])
        if "error" in message:
            future.set_exception(StartError(message["error"]))
        elif "refused" in message:
            future.set_exception(NotEnoughMemoryError(message["refused"]))
        else:
            future.set_result(read(message))

    def _ended_error(self) -> SessionBrokenError:
        return SessionBrokenError(
            f"The fork server (pid {self.pid}) ended with status {self._process.returncode}. "
            f"Its last lines:\n{self.last_lines()}"
        )

    def last_lines(self, lines: int = 20) -> str:
        """Returns the last lines that the server wrote to its standard error."""
        try:
            text = self._log_path.read_text(errors="replace")
        except FileNotFoundError:
            return "(none)"
        return "\n".join(text.splitlines()[-lines:]) or "(none)"


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
