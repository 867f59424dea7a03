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
    ``door``: fork the tunnel's door; answers with its pid and, as a line, its port.
    ``forwards``: fork the tunnel's other end; answers likewise. With a ``role``, ``"service
        forwards"`` say, ``stop`` ends it by that name.
    ``sockets``: answer the names of the sockets in the group's folder here.
    ``engines``: fork engines; answers with their pids, by process index.
    ``signal``: send a signal to engines, named by process index; with ``interrupts``, send SIGINT
        to them and to what they started.
    ``pressed``: tell the conductor that a ``press`` event was carried out.
    ``look``: answer each engine's state and processor time as the operating system reports them, by
        process index.
    ``facts``: answer what this host has: see :class:`~jaxnb.model.group.HostFacts`.
    ``scratch``: make the folder for variables on their way to the next engines; answers with its
        path, this host's name, and a text that servers have in common which share the folder.
        ``scratch_read`` answers bytes of a file in it, ``scratch_append``
        writes bytes that another host has answered, ``scratch_complete`` writes a last file,
        ``scratch_hold`` takes over a folder of an earlier server and answers whose files are there,
        and ``scratch_end`` removes it, or leaves it for good.
    ``stop``: end the children of the named roles, and kill those that are left after
        ``grace_seconds``; answers once all have ended.
    ``end``: end all descendants and this process; there is no answer.

Events: ``{"event": "died", ...}`` for a child that ended without having been told to,
``{"event": "text", ...}`` for what an engine's C code wrote to file descriptors 1 and 2, and
``{"event": "press", ...}`` where the conductor wants an engine interrupted that is not here.

When the owner ends, in whatever way, it ends all its descendants and itself.
"""

from __future__ import annotations

import base64
import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import stat
import sys
import time
import traceback
from dataclasses import asdict
from typing import Any, NoReturn

from jaxnb.errors import NotEnoughMemoryError
from jaxnb.launch import host, lifeline
from jaxnb.launch.deaths import oom_kills
from jaxnb.launch.forkloop import Child, ForkLoop
from jaxnb.launch.scratch import Scratch
from jaxnb.lockstep.presses import Answerer


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
        self._helpers: dict[str, Answerer] = {}
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
        except ConnectionResetError:
            data = b""
        if not data:
            self._has_lost_owner()
        self._buffer += data
        self._buffer_to_commands()

    def _has_lost_owner(self) -> NoReturn:
        """Ends this server: nobody commands it any more."""
        self._end()

    def _buffer_to_commands(self) -> None:
        *lines, self._buffer = self._buffer.split(b"\n")
        held = []
        for line in lines:
            command = json.loads(line)
            # All others need the second stage of imports.
            if self._imported or command["op"] in ("beat", "facts", "controller", "end"):
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
        ours, theirs = socket.socketpair()
        arguments = {k: value for k, value in command.items() if k not in ("op", "id", "role")}
        role = command.get("role", command["op"])
        with theirs:
            child = self._fork(role, 0, {**arguments, "ready_fd": theirs.fileno()})
        child.reply_to = command["id"]
        helper = self._helpers[child.role] = Answerer(ours, self._press)

        def on_readable() -> None:
            for line in helper.arrived():
                if child.pid in self._children:  # else it has died, which was answered
                    self._emit(reply=child.reply_to, pid=child.pid, line=line)
                    child.reply_to = None
            if helper.have_ended:
                self._selector.unregister(ours)
                ours.close()

        self._selector.register(ours, selectors.EVENT_READ, on_readable)

    _do_controller = _do_service = _do_door = _do_forwards = _do_helper

    def _press(self, index: int) -> bool:
        """Interrupts an engine; returns whether it is one of this host's."""
        for engine in self._engines():
            if engine.index == index:
                lifeline.interrupt(engine.pid)
                return True
        self._emit(event="press", index=index)
        return False

    def _do_pressed(self, command: dict[str, Any]) -> None:
        self._helpers["service"].answer(command["index"])
        self._emit(reply=command["id"])

    def _do_engines(self, command: dict[str, Any]) -> None:
        starts = command["starts"]
        engines = [self._fork("engine", each["join"]["process_index"], each) for each in starts]
        self._emit(reply=command["id"], pids=[(each.index, each.pid) for each in engines])

    def _do_signal(self, command: dict[str, Any]) -> None:
        for engine in self._engines():
            if engine.index in command["processes"]:
                with contextlib.suppress(ProcessLookupError):
                    if command.get("interrupts"):
                        lifeline.interrupt(engine.pid)
                    else:
                        os.kill(engine.pid, command["signal"])
        self._emit(reply=command["id"])

    def _engines(self) -> list[Child]:
        return [child for child in self._children.values() if child.role == "engine"]

    def _do_look(self, command: dict[str, Any]) -> None:
        looks = [(engine.index, host.look(engine.pid)) for engine in self._engines()]
        self._emit(reply=command["id"], looks=looks)

    def _do_facts(self, command: dict[str, Any]) -> None:
        environment = command["environment"] if command["gpus"] else None
        found = host.facts(self._cluster_dir, environment, command.get("peer"))
        self._emit(reply=command["id"], facts=[asdict(found)])

    def _do_sockets(self, command: dict[str, Any]) -> None:
        with os.scandir(self._cluster_dir) as found:
            names = sorted(each.name for each in found if stat.S_ISSOCK(each.stat().st_mode))
        self._emit(reply=command["id"], names=names)

    def _do_scratch(self, command: dict[str, Any]) -> None:
        nbytes = sum(size for _, size in command["sizes"])
        asked = command["name"], command["place"], command["lacking"]
        folder, store = self._scratch.make(nbytes, *asked)
        self._emit(reply=command["id"], folders=[(folder, socket.gethostname())], store=store)

    def _do_scratch_read(self, command: dict[str, Any]) -> None:
        data = self._scratch.read(command["name"], command["start"], command["size"])
        self._emit(reply=command["id"], data=base64.b64encode(data).decode())

    def _do_scratch_append(self, command: dict[str, Any]) -> None:
        self._scratch.append(command["name"], base64.b64decode(command["data"]))
        self._emit(reply=command["id"])

    def _do_scratch_complete(self, command: dict[str, Any]) -> None:
        self._scratch.complete(command["name"], command["text"])
        self._emit(reply=command["id"])

    def _do_scratch_hold(self, command: dict[str, Any]) -> None:
        self._scratch.hold(command["folder"])
        there = [index for index, path in command["files"] if os.path.exists(path)]
        self._emit(reply=command["id"], there=there)

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
        with contextlib.suppress(ChildProcessError):  # there are none
            while (found := os.waitpid(-1, os.WNOHANG | os.WUNTRACED))[0]:
                pid, status = found
                if os.WIFSTOPPED(status):
                    self._on_stop(pid)
                elif (child := self._children.pop(pid, None)) is not None:  # else an orphan's
                    self._on_death(child, os.waitstatus_to_exitcode(status))
        self._answer_stops()

    def _on_stop(self, pid: int) -> None:
        """Has a child that was stopped go on, if it serves the group: all would wait for it.

        Engines are the user's to stop.
        """
        if (child := self._children.get(pid)) is not None and child.role != "engine":
            os.kill(pid, signal.SIGCONT)

    def _on_death(self, child: Child, status: int) -> None:
        self._on_output(child)
        self._close_output(child)
        for name in child.sockets:  # else the tunnel would carry them on to the other hosts
            with contextlib.suppress(OSError):  # it had not begun to listen
                os.unlink(os.path.join(self._cluster_dir, name))
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
        for command_id, pids in list(self._stops):
            if not pids & set(self._children):
                self._stops.remove((command_id, pids))
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
