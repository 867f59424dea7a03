"""The fork server: one process that has imported everything, and forks the others.

It is started as ``python -m jaxnb.launch.forkserver OWNER_PID CLUSTER_DIR``, reads commands
from its standard input and writes events to its standard output, one JSON object a line. It
has one thread and starts no backend, so forking is safe at any time.

Commands (each answered by ``{"reply": id, ...}``):
    ``controller``: fork the ipyparallel controller; answers with its connection information.
    ``service``: fork JAX's coordination service; answers with its address.
    ``engines``: fork engines; answers with their pids.
    ``signal``: send a signal to engines; with ``interrupts`` SIGINT, and to what they have started.
    ``stop``: end the children of the named roles, and wait for them.
    ``end``: end all descendants and this process; there is no answer.

Events: ``{"event": "died", ...}`` for a child that ended without having been told to, and
``{"event": "text", ...}`` for what an engine's C code wrote to file descriptors 1 and 2.

When the owner ends, in whatever way, it ends all its descendants and itself.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

from jaxnb.launch import lifeline
from jaxnb.launch.forkloop import Child, ForkLoop


class ForkServer(ForkLoop):
    """The server: commands in, forks and ends out."""

    def __init__(self, command_fd: int, event_fd: int, owner_pid: int, cluster_dir: str) -> None:
        super().__init__(event_fd, cluster_dir)
        self._command_fd = command_fd
        self._buffer = b""
        self._imported = False
        self._stops: list[tuple[int, set[int]]] = []
        self._listen(command_fd, self._on_command_bytes)
        signal.set_wakeup_fd(self._wake_fds[1], warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: self._end())
        self._listen(self._wake_fds[0], self._on_child_signal)
        self._owner_fd = lifeline.open_process(owner_pid)
        if self._owner_fd is not None:
            self._listen(self._owner_fd, self._end)

    # ------------------------------------------------------------------ the loop

    def run(self) -> None:
        """Imports in two stages, and serves commands for as long as the owner lives."""
        # The controller can start (and sleep: ipyparallel's waits 0.25 s for its sockets)
        # while jax is being imported here.
        import ipyparallel.controller.app
        import ipyparallel.engine.app  # noqa: F401

        self._poll(0)
        from jaxnb.launch.preload import preload

        preload()
        # What has been imported stays: no collection in a child need look at it, and so write
        # into the pages that all children share.
        gc.freeze()
        self._imported = True
        self._buffer_to_commands()
        while True:
            self._poll(self._next_timeout())

    # ------------------------------------------------------------------ commands

    def _on_command_bytes(self) -> None:
        try:
            data = os.read(self._command_fd, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self._end()
        self._buffer += data
        self._buffer_to_commands()

    def _buffer_to_commands(self) -> None:
        *lines, self._buffer = self._buffer.split(b"\n")
        held = []
        for line in lines:
            command = json.loads(line)
            # All others need the second stage of imports.
            if self._imported or command["op"] in ("controller", "end"):
                self._execute(command)
            else:
                held.append(line)
        if held:
            self._buffer = b"\n".join([*held, self._buffer])

    def _execute(self, command: dict[str, Any]) -> None:
        try:
            getattr(self, f"_do_{command['op']}")(command)
        except Exception:
            self._emit(reply=command["id"], error=traceback.format_exc())

    def _do_controller(self, command: dict[str, Any]) -> None:
        from jaxnb.launch import controller_app

        config = controller_app.controller_config(self._cluster_dir, command["cluster_id"])
        read_fd, write_fd = os.pipe()
        child = self._fork(
            "controller",
            0,
            lambda: controller_app.run(config, write_fd),
            keep=(write_fd,),
        )
        os.close(write_fd)
        child.reply_to = command["id"]
        self._await_line(read_fd, child, lambda line: {"connection": json.loads(line)})

    def _do_service(self, command: dict[str, Any]) -> None:
        from jaxnb.launch import process_coordination

        read_fd, write_fd = os.pipe()
        num_processes = command["num_processes"]
        child = self._fork(
            "service",
            0,
            lambda: process_coordination.serve(self._cluster_dir, num_processes, write_fd),
            keep=(write_fd,),
        )
        os.close(write_fd)
        child.reply_to = command["id"]
        self._await_line(read_fd, child, lambda line: {"address": line.strip()})

    def _await_line(self, fd: int, child: Child, answer: Callable[[str], dict[str, Any]]) -> None:
        """Answers the command that made ``child`` with the line that the child writes."""
        received = bytearray()

        def on_readable() -> None:
            data = os.read(fd, 1 << 16)
            received.extend(data)
            if data and not received.endswith(b"\n"):
                return
            self._selector.unregister(fd)
            os.close(fd)
            if received.endswith(b"\n") and child.reply_to is not None:
                reply, child.reply_to = child.reply_to, None
                self._emit(reply=reply, pid=child.pid, **answer(received.decode()))
            # Else the child died; _on_death answers.

        self._listen(fd, on_readable)

    def _do_engines(self, command: dict[str, Any]) -> None:
        from jaxnb.launch import engine_start

        pids = []
        for position in range(command["n"]):
            start = engine_start.prepare(command, position)
            run = partial(engine_start.run, start, self._cluster_dir)
            child = self._fork("engine", start.join.process_index, run)
            pids.append(child.pid)
        self._emit(reply=command["id"], pids=pids)

    def _do_signal(self, command: dict[str, Any]) -> None:
        missing = []
        for pid in command["pids"]:
            child = self._children.get(pid)
            if child is None or child.role != "engine":
                missing.append(pid)
                continue
            if command.get("interrupts"):
                lifeline.interrupt(pid)
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, command["signal"])
        self._emit(reply=command["id"], missing=missing)

    def _do_stop(self, command: dict[str, Any]) -> None:
        roles = set(command["roles"])
        pids = {c.pid for c in self._children.values() if c.role in roles}
        for child in self._children.values():
            if child.pid in pids:
                child.told_to_stop = True
                # The service has nothing to say goodbye to.
                sig = signal.SIGKILL if child.role == "service" else signal.SIGTERM
                os.kill(child.pid, sig)
                os.kill(child.pid, signal.SIGCONT)  # one that is stopped would sleep on
        self._deadlines.append((time.monotonic() + command["grace_seconds"], pids))
        self._stops.append((command["id"], pids))
        self._answer_stops()

    def _do_end(self, command: dict[str, Any]) -> None:
        self._end()

    # ------------------------------------------------------------------ children

    def _on_child_signal(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_fds[0], 1 << 12)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            child = self._children.pop(pid, None)
            if child is not None:  # else an adopted orphan
                self._on_death(child, os.waitstatus_to_exitcode(status))
        self._answer_stops()

    def _on_death(self, child: Child, status: int) -> None:
        if child.output_fd >= 0:
            self._on_output(child)
        if child.output_fd >= 0:
            self._close_output(child)
        tail = child.last_words()
        if child.reply_to is not None:
            error = f"the {child.role} ended with status {status} while starting\n{tail}"
            self._emit(reply=child.reply_to, error=error)
        elif not child.told_to_stop:
            self._emit(
                event="died",
                role=child.role,
                index=child.index,
                pid=child.pid,
                status=status,
                tail=tail,
            )

    def _answer_stops(self) -> None:
        for entry in list(self._stops):
            command_id, pids = entry
            if not pids & set(self._children):
                self._stops.remove(entry)
                self._kill_orphans()
                self._emit(reply=command_id)


def main() -> None:
    """Runs the server: ``python -m jaxnb.launch.forkserver OWNER_PID CLUSTER_DIR``."""
    owner_pid, cluster_dir = int(sys.argv[1]), sys.argv[2]
    gc.disable()  # importing makes objects and no garbage
    lifeline.adopt_orphans()
    command_fd, event_fd = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    ForkServer(command_fd, event_fd, owner_pid, cluster_dir).run()


if __name__ == "__main__":
    main()
