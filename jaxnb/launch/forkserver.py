"""The fork server: one process that has imported everything, and forks the others.

It is started as ``python -m jaxnb.launch.forkserver OWNER_PID CLUSTER_DIR LAUNCHER``, reads
commands from its standard input and writes events to its standard output, one JSON object a line.
It has one thread and starts no backend, so forking is safe at any time. With the launcher
``local`` it imports nothing, and its children become programs that do so themselves.

Commands (each answered by ``{"reply": id, ...}``, with ``error`` if it failed, with ``refused`` if
there is no room for it):
    ``controller``: fork the ipyparallel controller; answers with its pid and, as a line, how to
        reach it.
    ``service``: fork JAX's coordination service; answers likewise.
    ``engines``: fork engines; answers with their pids, by process index.
    ``signal``: send a signal to engines, named by process index; with ``interrupts``, send SIGINT
        to them and to what they started.
    ``look``: answer each engine's state and processor time as the operating system reports them, by
        process index.
    ``facts``: answer what this host has: see :class:`~jaxnb.model.group.HostFacts`.
    ``scratch``: make the folder for variables on their way to the next engines; answers with its
        path, by process index. ``scratch_complete`` writes a last file into it, ``scratch_hold``
        takes over one of an earlier server, and ``scratch_end`` removes it, or leaves it for good.
    ``stop``: end the children of the named roles, and kill those that are left after
        ``grace_seconds``; answers once all have ended.
    ``end``: end all descendants and this process; there is no answer.

Events: ``{"event": "died", ...}`` for a child that ended without having been told to, and
``{"event": "text", ...}`` for what an engine's C code wrote to file descriptors 1 and 2.

When the owner ends, in whatever way, it ends all its descendants and itself.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import selectors
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, NoReturn

import psutil

from jaxnb.errors import NotEnoughMemoryError
from jaxnb.launch import host, lifeline
from jaxnb.launch.child import TAIL_BYTES, Child
from jaxnb.launch.deaths import oom_kills, undated
from jaxnb.launch.folder import command_line
from jaxnb.launch.scratch import Scratch

PARTIAL_SECONDS = 0.2
"""The beginning of a line is handed on if the rest has not come by then."""


class ForkLoop:
    """Waits for many file descriptors in one thread; forks children and reads their output.

    Args:
        event_fd: Where events and answers are written.
        cluster_dir: The cluster's folder, removed at the end.
        scratch: The folder for variables on their way.
        spawns: Children become programs of their own.
    """

    def __init__(self, event_fd: int, cluster_dir: str, scratch: Scratch, *, spawns: bool) -> None:
        self._event_fd = event_fd
        self._cluster_dir = cluster_dir
        self._scratch = scratch
        self._spawns = spawns
        self._pid = os.getpid()
        self._children: dict[int, Child] = {}
        self._selector = selectors.DefaultSelector()
        self._deadlines: list[tuple[float, set[int]]] = []
        self._wake_fds = os.pipe()
        os.set_blocking(self._wake_fds[1], False)

    def _listen(self, fd: int, handler: Callable[[], None]) -> None:
        os.set_blocking(fd, False)
        self._selector.register(fd, selectors.EVENT_READ, handler)

    def _poll(self, timeout: float | None) -> None:
        for key, _ in self._selector.select(timeout):
            # An earlier handler of this turn may have closed the file, and another may have
            # been opened under its number.
            current = self._selector.get_map().get(key.fd)
            if current is not None and current.data is key.data:
                key.data()
        self._kill_the_late()
        now = time.monotonic()
        for child in self._children.values():
            if child.flush_at <= now:
                self._flush_output(child)

    def _next_timeout(self) -> float | None:
        """Returns the seconds until the next deadline; None if there is none."""
        due = [deadline for deadline, _ in self._deadlines]
        due += [child.flush_at for child in self._children.values()]
        soonest = min(due, default=math.inf)
        return None if soonest == math.inf else max(0.0, soonest - time.monotonic())

    def _emit(self, **message: Any) -> None:
        data = json.dumps(message).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self._event_fd, data) :]
        except BrokenPipeError:
            self._end()

    def _fork(self, role: str, index: int, arguments: dict[str, Any]) -> Child:
        """Forks a child, which becomes what :func:`jaxnb.launch.children.run` makes of it."""
        arguments = {**arguments, "cluster_dir": self._cluster_dir}
        read_fd, write_fd = os.pipe()
        parent = self._pid
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._become_child(parent, write_fd, role, arguments)
        os.close(write_fd)
        child = Child(pid, role, index, read_fd)
        self._children[pid] = child
        self._listen(read_fd, lambda: self._on_output(child))
        return child

    def _become_child(
        self, parent: int, output_fd: int, role: str, arguments: Mapping[str, Any]
    ) -> NoReturn:
        status = 1
        try:
            gc.enable()
            lifeline.die_with_parent(parent)
            signal.set_wakeup_fd(-1)
            for sig in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(sig, signal.SIG_DFL)
            os.setpgid(0, 0)
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(output_fd, 1)
            os.dup2(output_fd, 2)
            inherited = {key.fd for key in list(self._selector.get_map().values())}
            inherited |= {self._event_fd, self._wake_fds[1], output_fd, null}
            self._selector.close()
            for fd in inherited - {0, 1, 2, arguments.get("ready_fd")}:
                with contextlib.suppress(OSError):
                    os.close(fd)
            if self._spawns:
                self._become_program(role, arguments)
            from jaxnb.launch import children

            children.run(role, arguments)
            status = 0
        except SystemExit as end:
            if isinstance(end.code, str):
                print(end.code, file=sys.__stderr__)
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:
            for stream in (sys.__stdout__, sys.__stderr__):
                with contextlib.suppress(Exception):
                    stream.flush()  # type: ignore[union-attr]
            os._exit(status)

    def _become_program(self, role: str, arguments: Mapping[str, Any]) -> NoReturn:
        """Starts the child's program, to which a file without a name says what it is to be."""
        import tempfile

        with tempfile.TemporaryFile("w+", dir=self._cluster_dir) as file:
            json.dump([role, arguments], file)
            file.seek(0)
            os.dup2(file.fileno(), 0)
        if "ready_fd" in arguments:
            os.set_inheritable(arguments["ready_fd"], True)
        words = command_line("jaxnb.launch.children", self._cluster_dir, str(self._pid))
        os.execve(words[0], words, arguments.get("environment", os.environ))

    def _on_output(self, child: Child) -> None:
        # The death of the child, handled in the same turn of the loop, may have closed it.
        if child.output_fd < 0:
            return
        try:
            data = os.read(child.output_fd, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self._close_output(child)
            return
        child.forget_old_words()
        child.tail += data
        child.wrote_at = time.monotonic()
        del child.tail[:-TAIL_BYTES]
        text = child.chatter.feed(child.decoder.decode(data))
        self._emit_text(child, child.dump.feed(text))
        is_pending = child.chatter.is_pending or child.dump.held or child.decoder.getstate()[0]
        child.flush_at = time.monotonic() + PARTIAL_SECONDS if is_pending else math.inf

    def _emit_text(self, child: Child, text: str) -> None:
        if text and child.role == "engine":
            self._emit(event="text", pid=child.pid, index=child.index, text=undated(text))

    def _flush_output(self, child: Child, *, is_end: bool = False) -> None:
        """Hands on what was held back of what a child wrote; at its end, without the crash dump."""
        rest = child.decoder.decode(b"", final=True) if is_end else ""
        text = child.dump.feed(child.chatter.feed(rest) + child.chatter.flush())
        self._emit_text(child, text if is_end else text + child.dump.flush())
        child.flush_at = math.inf

    def _close_output(self, child: Child) -> None:
        if child.output_fd >= 0:
            self._flush_output(child, is_end=True)
            self._selector.unregister(child.output_fd)
            os.close(child.output_fd)
            child.output_fd = -1

    def _kill_the_late(self) -> None:
        now = time.monotonic()
        for deadline, pids in self._deadlines:
            # By pid, not by role: a restart may have forked new children of that role since.
            for pid in pids & set(self._children) if deadline <= now else ():
                os.kill(pid, signal.SIGKILL)
        self._deadlines = [entry for entry in self._deadlines if entry[0] > now]

    def _kill_orphans(self) -> None:
        """Ends what ended children left behind (``!sleep 1000 &``), ours by adoption."""
        for process in psutil.Process().children():
            if process.pid not in self._children:
                for member in [*process.children(recursive=True), process]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        member.kill()

    def _end(self, *, keeps_variables: bool = False) -> None:
        """Ends every descendant, removes the cluster's folder, and ends this process.

        Args:
            keeps_variables: Somebody lives who knows where they are, if all are there.
        """
        signal.set_wakeup_fd(-1)
        # New orphans arrive as their parents die, so again until none is left.
        while descendants := psutil.Process().children(recursive=True):
            for process in descendants:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, 0)[0]:
                    pass
        self._scratch.end(keeps=keeps_variables)
        shutil.rmtree(self._cluster_dir, ignore_errors=True)
        os._exit(0)


class ForkServer(ForkLoop):
    """The server: commands in, forks and ends out."""

    def __init__(
        self, command_fd: int, event_fd: int, owner_pid: int, cluster_dir: str, *, spawns: bool
    ) -> None:
        super().__init__(event_fd, cluster_dir, Scratch(owner_pid), spawns=spawns)
        self._command_fd = command_fd
        self._buffer = b""
        self._imported = False
        self._stops: list[tuple[int, set[int]]] = []
        self._oom_kills = oom_kills()
        self._listen(command_fd, self._on_command_bytes)
        signal.set_wakeup_fd(self._wake_fds[1], warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: self._end(keeps_variables=True))
        self._listen(self._wake_fds[0], self._on_child_signal)
        self._owner_fd = lifeline.open_process(owner_pid)
        if self._owner_fd is not None:
            self._listen(self._owner_fd, self._end)

    # ------------------------------------------------------------------ the loop

    def run(self) -> None:
        """Imports in two stages, and serves commands for as long as the owner lives."""
        if not self._spawns:
            self._import()
        self._imported = True
        self._buffer_to_commands()
        while True:
            self._poll(self._next_timeout())

    def _import(self) -> None:
        self._poll(0)
        # The controller can start (and sleep: ipyparallel's waits 0.25 s for its sockets)
        # while jax is being imported here.
        import ipyparallel.controller.app
        import ipyparallel.engine.app  # noqa: F401

        self._poll(0)
        from jaxnb.launch.children import preload

        preload()
        # Freeze what is imported: a collection in a child would write into the pages that all
        # children share.
        gc.freeze()

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
            if self._imported or command["op"] in ("facts", "controller", "end"):
                self._execute(command)
            else:
                held.append(line)
        if held:
            self._buffer = b"\n".join([*held, self._buffer])

    def _execute(self, command: dict[str, Any]) -> None:
        try:
            getattr(self, f"_do_{command['op']}")(command)
        except NotEnoughMemoryError as error:
            self._emit(reply=command["id"], refused=str(error))
        except Exception:
            self._emit(reply=command["id"], error=traceback.format_exc())

    def _do_helper(self, command: dict[str, Any]) -> None:
        """Forks a child that writes a line once it serves, with which the command is answered."""
        read_fd, write_fd = os.pipe()
        arguments = {k: value for k, value in command.items() if k not in ("op", "id")}
        child = self._fork(command["op"], 0, {**arguments, "ready_fd": write_fd})
        os.close(write_fd)
        child.reply_to = command["id"]
        received = bytearray()

        def on_readable() -> None:
            data = os.read(read_fd, 1 << 16)
            received.extend(data)
            if data and not received.endswith(b"\n"):
                return
            self._selector.unregister(read_fd)
            os.close(read_fd)
            if received.endswith(b"\n") and child.reply_to is not None:
                reply, child.reply_to = child.reply_to, None
                self._emit(reply=reply, pid=child.pid, line=received.decode())
            # Else the child died; _on_death answers.

        self._listen(read_fd, on_readable)

    _do_controller = _do_service = _do_helper

    def _do_engines(self, command: dict[str, Any]) -> None:
        starts = command["starts"]
        engines = [self._fork("engine", each["join"]["process_index"], each) for each in starts]
        self._emit(reply=command["id"], pids=[(each.index, each.pid) for each in engines])

    def _do_signal(self, command: dict[str, Any]) -> None:
        for engine in self._engines():
            if engine.index not in command["processes"]:
                continue
            if command.get("interrupts"):
                lifeline.interrupt(engine.pid)
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(engine.pid, command["signal"])
        self._emit(reply=command["id"])

    def _engines(self) -> list[Child]:
        return [child for child in self._children.values() if child.role == "engine"]

    def _do_look(self, command: dict[str, Any]) -> None:
        looks = [(engine.index, host.look(engine.pid)) for engine in self._engines()]
        self._emit(reply=command["id"], looks=looks)

    def _do_facts(self, command: dict[str, Any]) -> None:
        environment = command["environment"] if command["gpus"] else None
        found = host.facts(self._cluster_dir, environment)
        self._emit(reply=command["id"], facts=[asdict(found)])

    def _do_scratch(self, command: dict[str, Any]) -> None:
        sizes = dict(command["sizes"])
        folder = self._scratch.make(sum(sizes.values()))
        self._emit(reply=command["id"], folders=[(index, folder) for index in sizes])

    def _do_scratch_complete(self, command: dict[str, Any]) -> None:
        self._scratch.complete(command["name"], command["text"])
        self._emit(reply=command["id"])

    def _do_scratch_hold(self, command: dict[str, Any]) -> None:
        self._scratch.hold(command["folders"][0][1])
        self._emit(reply=command["id"])

    def _do_scratch_end(self, command: dict[str, Any]) -> None:
        self._scratch.end(keeps=command["keeps"])
        self._emit(reply=command["id"])

    def _do_stop(self, command: dict[str, Any]) -> None:
        roles = set(command["roles"])
        pids = {c.pid for c in self._children.values() if c.role in roles}
        for child in self._children.values():
            if child.pid in pids:
                child.told_to_stop = True
                # The service needs no clean shutdown.
                sig = signal.SIGKILL if child.role == "service" else signal.SIGTERM
                os.kill(child.pid, sig)
                os.kill(child.pid, signal.SIGCONT)  # one that is stopped would sleep on
        self._deadlines.append((time.monotonic() + command["grace_seconds"], pids))
        self._stops.append((command["id"], pids))
        self._answer_stops()

    def _do_end(self, command: dict[str, Any]) -> None:
        self._end(keeps_variables=True)

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
        self._on_output(child)
        self._close_output(child)
        tail = child.last_words()
        kills_before, self._oom_kills = self._oom_kills, oom_kills()
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
                out_of_memory=status == -signal.SIGKILL and self._oom_kills > kills_before,
            )

    def _answer_stops(self) -> None:
        for entry in list(self._stops):
            command_id, pids = entry
            if not pids & set(self._children):
                self._stops.remove(entry)
                self._kill_orphans()
                self._emit(reply=command_id)


def prepare() -> tuple[int, int]:
    """Makes this process ready to be a fork server.

    Returns:
        The file descriptors of its commands and its events. Standard input and output are not them
        any more: what is printed goes to standard error.
    """
    gc.disable()  # importing makes objects and no garbage
    lifeline.adopt_orphans()
    command_fd, event_fd = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return command_fd, event_fd


def main() -> None:
    """Runs the server: ``python -m jaxnb.launch.forkserver OWNER_PID CLUSTER_DIR LAUNCHER``."""
    owner_pid, cluster_dir, launcher = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    ForkServer(*prepare(), owner_pid, cluster_dir, spawns=launcher != "fork").run()


if __name__ == "__main__":
    main()
