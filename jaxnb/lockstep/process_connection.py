"""A process's line to the conductor."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxnb.errors import JaxnbError
from jaxnb.lockstep.connections import connected
from jaxnb.lockstep.messages import End, Explanation, Go, Lane, Processes, Stop, Word
from jaxnb.lockstep.wire import (
    Begin,
    Explain,
    Hello,
    Interrupt,
    InterruptHandled,
    InterruptHeld,
    InterruptRaised,
    Leave,
    Packets,
    Said,
    Say,
    Withdraw,
    unpack_answer,
)


class ConductorGoneError(ConnectionError):
    """The conductor has ended: nothing can be agreed on any more."""


class Line:
    """Asks the conductor; from any thread.

    Args:
        path: Where the conductor listens.
        process: This process's index.
        num_processes: Size of the group.
    """

    def __init__(self, path: Path, process: int, num_processes: int) -> None:
        self._packets = Packets(num_processes)
        self._process, self._pid = process, os.getpid()
        self._connection = connected(path)
        self._send, self._receive_whole = self._connection.send, self._connection.receive
        self._tokens = itertools.count(1)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._answers: dict[int, Go | Stop | Explanation] = {}
        self._waiting: set[int] = set()
        self._is_read = False
        self._asking = 0  # what the main thread waits with
        self._tell(Hello(process, self._pid))

    def begin(self, cell: int, members: Processes) -> None:
        """Tells that a cell begins, which these processes were asked to run."""
        self._tell(Begin(cell, members))

    def leave(self, end: End) -> None:
        """Tells that the cell was left, and how."""
        self._tell(Leave(end))

    def interrupt_raised(self) -> None:
        """Tells that the main thread has raised KeyboardInterrupt, by a signal."""
        self._tell(InterruptRaised())

    def interrupt_held(self) -> None:
        """Tells that a signal came which the main thread has kept; from a signal's handler too."""
        self._tell(InterruptHeld())

    def interrupt_handled(self) -> None:
        """Tells that a handler of the user's own is called for SIGINT; from that handler."""
        self._tell(InterruptHandled())

    def interrupt(self, cell: int) -> None:
        """Asks to interrupt a cell on all its processes."""
        self._tell(Interrupt(cell))

    def take_back(self) -> None:
        """Has what the main thread waits with answered at once; from a signal's handler.

        It may be answered otherwise already; then that holds.
        """
        if token := self._asking:
            self._tell(Withdraw(token))

    def ask(
        self,
        word: Word,
        lane: Lane = "main",
        text: str = "",
        is_taken_back: Callable[[], bool] = lambda: False,
    ) -> Go | Stop:
        """Says a word and waits for the answer, however long.

        Nothing of a signal's may be raised meanwhile: who is let go has to make it.

        Args:
            word: The word.
            lane: Which thread says it.
            text: What all participants are told with the answer, if they are let go.
            is_taken_back: Whether the main thread is not to wait, as a signal has come.

        Returns:
            The answer; a stop of kind ``"withdrawn"`` if the word was taken back.

        Raises:
            ConductorGoneError: There will be none.
            JaxnbError: This is a child of the process.
        """
        if os.getpid() != self._pid:
            raise JaxnbError(
                f"This is a forked child of process {self._process} (`os.fork`): it is not part "
                "of the group and cannot run computations over several processes."
            )
        token = next(self._tokens)
        self._waiting.add(token)
        try:
            self._tell(Say(token, lane, word, text))
            if lane == "main":
                # In this order: a handler that comes before the first is seen by the second.
                self._asking = token
                if is_taken_back():
                    self.take_back()
            return self._answer(token)  # type: ignore[no-any-return]
        except ConductorGoneError:
            raise
        except BaseException:  # what another thread has set in this one, say
            self._waiting.discard(token)
            self._tell(Withdraw(token))
            raise
        finally:
            if lane == "main":
                self._asking = 0

    def explain(self, stop: Stop, text: str) -> Explanation:
        """Tells of the word that was stopped, and returns what all have told, or how they ended.

        All processes that a stop is for get the same. They have to ask, and wait for each other.

        Raises:
            ConductorGoneError: There will be no answer.
        """
        token = next(self._tokens)
        self._waiting.add(token)
        self._tell(Explain(token, stop.number, text))
        answer = self._answer(token)
        assert isinstance(answer, Explanation)
        return answer

    def _answer(self, token: int) -> Any:
        while True:
            with self._lock:  # a third of the time of the condition's own
                while self._is_read and token not in self._answers:
                    self._changed.wait()
                if token in self._answers:
                    self._waiting.discard(token)
                    return self._answers.pop(token)
                self._is_read = True
            found: tuple[int, Go | Stop | Explanation] | None = None
            try:
                found = unpack_answer(self._receive())
            finally:
                # At once: who finds that nobody reads must find its answer, too.
                with self._lock:
                    self._is_read = False
                    if found is not None and found[0] in self._waiting:  # told twice, or too late
                        self._answers[found[0]] = found[1]
                    if len(self._waiting) > 1:
                        self._changed.notify_all()

    def close(self) -> None:
        """Ends the line: for the conductor this process is dead then."""
        self._connection.close()

    def _tell(self, said: Said) -> None:
        if os.getpid() != self._pid:
            return  # a child that the cell has forked has the same line, and says nothing on it
        try:
            self._send(self._packets.pack(said))
        except ConnectionError as error:
            raise ConductorGoneError("the conductor has ended") from error

    def _receive(self) -> bytes:
        try:
            return self._receive_whole()
        except ConnectionError as error:
            raise ConductorGoneError("the conductor has ended") from error
