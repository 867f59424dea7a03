"""The fork server's loop: it forks children, reads what they write, and ends them."""

from __future__ import annotations

import codecs
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import psutil

from jaxnb.launch import lifeline
from jaxnb.launch.deaths import ChatterFilter, DumpFilter, undated
from jaxnb.launch.folder import command_line, direct_name, sentinel_name, service_name
from jaxnb.launch.scratch import Scratch
from jaxnb.lockstep.messages import conductor_beside

TAIL_BYTES = 16 << 10
"""How much of what a child wrote last is kept, to be shown when it dies."""

LAST_WORDS_SECONDS = 30.0
"""Output older than this, when more output or the death comes, says nothing about the death. XLA
aborts 20 s after it has warned of a collective that does not end."""

PARTIAL_SECONDS = 0.2
"""The beginning of a line is handed on if the rest has not come by then."""

_decoder = codecs.getincrementaldecoder("utf-8")


@dataclass
class Child:
    """A forked process."""

    pid: int
    role: str
    index: int
    output_fd: int
    tail: bytearray = field(default_factory=bytearray)
    wrote_at: float = -math.inf
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: _decoder("replace"))
    chatter: ChatterFilter = field(default_factory=ChatterFilter)
    dump: DumpFilter = field(default_factory=DumpFilter)
    flush_at: float = math.inf
    reply_to: int | None = None
    told_to_stop: bool = False
    sockets: Sequence[str] = ()

    def last_words(self) -> str:
        """Returns what it wrote last if that was recent; older text is discarded."""
        self.forget_old_words()
        return self.tail.decode("utf-8", "replace")

    def forget_old_words(self) -> None:
        """Discards what it wrote last, unless that was recent."""
        if time.monotonic() - self.wrote_at > LAST_WORDS_SECONDS:
            self.tail.clear()


def sockets_of(pid: int, role: str, index: int, arguments: Mapping[str, Any]) -> list[str]:
    """Returns the names of what a child listens on in the group's folder, from some time on."""
    if role == "engine":
        return [sentinel_name(index, pid), direct_name(index, pid)]
    if role == "service":
        service = service_name(pid)
        return [service, conductor_beside(f"unix:{service}").name]
    return [name for name, *_ in arguments.get("routes", ())]


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
                self._wait_to_write()
                with contextlib.suppress(BlockingIOError):
                    data = data[os.write(self._event_fd, data) :]
        except (BrokenPipeError, ConnectionResetError):
            self._end()

    def _wait_to_write(self) -> None:
        """Waits until an event can be written."""

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
        sockets = sockets_of(pid, role, index, arguments)
        child = Child(pid, role, index, read_fd, sockets=sockets)
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

    def _end(self, *, keeps_variables: bool = False) -> NoReturn:
        """Ends every descendant, removes the cluster's folder, and ends this process.

        Args:
            keeps_variables: Somebody lives who knows where they are, if all are there.
        """
        if os.getpid() != self._pid:  # a child ended before it had put off this process's handlers
            os._exit(1)
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
