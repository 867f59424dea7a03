"""Where a row is played: a group, evidence of where its processes are, and a user's hand."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from faults.table.axes import PROCESSES
from faults.table.rows import Row
from jaxnb.cells.sinks import NoSink
from jaxnb.model.group import Whereabouts
from jaxnb.recovery.messages import Recovered
from jaxnb.session import Session
from jaxnb.session.standing_since import waits_for_others
from support.faults import Finger
from support.fixtures import until

LOOKS = 5
"""Who is seen to wait at one place so many times, stays there."""


class Told(NoSink):
    """Keeps all that jaxnb says of its own accord."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def notice(self, text: str) -> None:
        self.texts.append(text)


class Stage:
    """A group, and what a row needs to know of it.

    Attributes:
        session: The group.
        row: The row.
        pid: The process id that the row's process had at first.
        sink: What was said of cells.
        fault_at: When the fault was done, on ``time.monotonic()``.
        recovered: What became of variables, if the user typed that.
        cell: The number of the cell that ran.
        source: Its source.
    """

    def __init__(self, session: Session, row: Row, folder: Path) -> None:
        self.session, self.row, self.folder = session, row, folder
        self.which = row.index
        self.others = [i for i in range(PROCESSES) if i != row.index]
        self.pid = session.processes[row.index].pid
        self.sink = Told()
        self.fault_at = 0.0
        self.recovered: Recovered | None = None
        self.cell: int | None = None
        self.source = ""
        self._writers: list[int] = []
        self._finger = Finger()

    # ------------------------------------------------------------------ evidence

    def until_at_gate(self, *indices: int) -> None:
        """Waits until processes wait for their FIFOs to be written to."""

        def open_for_writing(path: Path) -> bool:
            try:
                self._writers.append(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            except OSError:  # nobody reads
                return False
            return True

        for index in indices:
            path = self.folder / str(index)
            until(lambda path=path: open_for_writing(path), f"process {index} was at the gate")

    def until_all(self, indices: list[int], are: Callable[[Whereabouts], bool]) -> None:
        """Waits until all of some processes are somewhere."""

        def is_so() -> bool:
            found = self.session.where(indices)
            return set(found) == set(indices) and all(map(are, found.values()))

        until(is_so, f"processes {indices} were there")

    def until_they_wait(self) -> None:
        """Waits until all other processes wait in JAX, and do not compile.

        They have to be seen at the same place a few times: who waits for the lock of its
        interpreter, which the thread that answers has, looks the same once.
        """
        has_compiled = self.row.kind != "first compile"
        seen: list[dict[int, tuple[object, ...]]] = []

        def wait(where: Whereabouts) -> bool:
            return waits_for_others(where) and (has_compiled or where.last_dispatch is not None)

        def stay() -> bool:
            found = self.session.where(self.others)
            if set(found) != set(self.others) or not all(map(wait, found.values())):
                seen.clear()
                return False
            seen.append({i: (where.stack, where.last_dispatch) for i, where in found.items()})
            return len(seen) >= LOOKS and all(each == seen[-1] for each in seen[-LOOKS:])

        until(stay, f"processes {self.others} waited")

    def until_in_fault(self) -> None:
        """Waits until the row's process is past the gate, in what it does not leave."""
        kind = self.row.kind

        def is_in_it(where: Whereabouts) -> bool:
            innermost = where.stack[-1] if where.stack else None
            if innermost is None or "gate" in innermost.function:
                return False
            if kind in ("loop", "swallow", "swallow all"):
                return innermost.cell is not None and "while True: " in innermost.source
            if kind == "subprocess":
                return innermost.file.endswith("subprocess.py") and "wait" in innermost.function
            if kind == "lock":  # in the cell's own line
                return innermost.cell is not None and where.sleeps_in == "futex"
            return waits_for_others(where)

        self.until_all([self.which], is_in_it)

    def until_stopped(self) -> None:
        """Waits until the row's process does not run, though it lives."""
        process = psutil.Process(self.pid)
        until(lambda: process.status() == psutil.STATUS_STOPPED, "the process was stopped")

    def until_it_is_busy(self) -> None:
        """Waits until a cell has been sent to the row's process, which has not answered."""
        until(lambda: self.session.processes[self.which].state == "busy", "it was in the cell")

    def until_only_it_is_busy(self) -> None:
        """Waits until all other processes have left the cell."""
        self._until_left(self.others)

    def _until_left(self, indices: list[int]) -> None:
        until(
            lambda: not any(self.session.processes[i].state == "busy" for i in indices),
            f"processes {indices} left the cell",
        )

    # ------------------------------------------------------------------ the fault

    def mark(self) -> None:
        """Takes the time: this is when it goes wrong."""
        self.fault_at = time.monotonic()

    def open_gates(self) -> None:
        """Lets processes through that are at their gates: now it goes wrong."""
        self.mark()
        self.close()

    def send(self) -> None:
        """Sends the row's process the signal that the row is about, if it is about one."""
        if self.row.how in ("SIGKILL", "SIGSTOP"):
            self.mark()
            os.kill(self.pid, getattr(signal, self.row.how))
        if self.row.how == "SIGSTOP":
            self.until_stopped()

    def close(self) -> None:
        """Lets go of the FIFOs."""
        while self._writers:
            os.close(self._writers.pop())

    # ------------------------------------------------------------------ the user's hand

    def press(self) -> None:
        """Interrupts, as Jupyter does: SIGINT to the notebook's process."""
        self._finger.press()

    def press_again_when_told(self, texts: list[str]) -> None:
        """Interrupts a second time, if the row says so, when that was offered."""
        if self.row.presses == 2:
            offered = "Interrupt again"
            until(lambda: any(offered in t for t in texts), "the user was told")
            others_wait = self.row.when == "collective" and self.row.kind == "key"
            self._until_left([self.which] if others_wait else self.others)
            self.press()

    @contextmanager
    def hand(self, *steps: Callable[[], object]) -> Iterator[None]:
        """Does things, one after the other, in another thread beside the block."""
        problems: list[BaseException] = []

        def do() -> None:
            try:
                for step in steps:
                    step()
            except BaseException as error:
                problems.append(error)
                self.session.close()  # so that nobody waits for what will not come

        self._finger = Finger()
        thread = threading.Thread(target=do, name="the user's hand")
        thread.start()
        try:
            with self._finger:
                yield
        finally:
            thread.join()
            self.close()
            if problems:
                raise problems[0]
