"""A process's line to the conductor."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from pathlib import Path
from typing import Any

from jaxnb.errors import JaxnbError
from jaxnb.lockstep.messages import End, Explanation, Go, Lane, Processes, Stop, Word
from jaxnb.lockstep.wire import (
    Begin,
    Explain,
    Hello,
    Interrupt,
    Kept,
    Leave,
    Packets,
    Said,
    Say,
    Took,
    Withdraw,
    unpack_answer,
)

MAX_ANSWER_BYTES = 1 << 22


class ConductorGoneError(ConnectionError):
    """The conductor has ended: nothing can be agreed on any more."""


class Line:
    """Asks the conductor; from any thread.

    Args:
        path: The conductor's socket.
        process: This process's index.
        num_processes: Size of the group.
    """

    def __init__(self, path: Path, process: int, num_processes: int) -> None:
        self._packets = Packets(num_processes)
        self._process, self._pid = process, os.getpid()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(None)  # whatever the user's code has set for all sockets
        self._socket.connect(str(path))
        self._tokens = itertools.count(1)
        # No exception strikes between C code that takes a lock and the block. (A condition's own
        # `with` is Python.)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._answers: dict[int, Go | Stop | Explanation] = {}
        self._waiting: set[int] = set()
        self._reader: int | None = None  # the thread that reads for all
        # Of whichever thread reads; to allocate as much for each answer costs more than the answer.
        self._buffer = memoryview(bytearray(MAX_ANSWER_BYTES))
        self._tell(Hello(process))

    def begin(self, cell: int, members: Processes) -> None:
        """Tells that a cell begins, which these processes were asked to run."""
        self._tell(Begin(cell, members))

    def leave(self, end: End) -> None:
        """Tells that the cell was left, and how."""
        self._tell(Leave(end))

    def took(self) -> None:
        """Tells that the main thread has raised KeyboardInterrupt, by a signal."""
        self._tell(Took())

    def kept(self) -> None:
        """Tells that a signal came which the main thread has kept; from a signal's handler too."""
        self._tell(Kept())

    def interrupt(self, cell: int) -> None:
        """Asks to interrupt a cell on all its processes."""
        self._tell(Interrupt(cell))

    def ask(self, word: Word, lane: Lane = "main", text: str = "") -> Go | Stop:
        """Says a word and waits for the answer, however long.

        Args:
            word: The word.
            lane: Which thread says it.
            text: What all participants are told with the answer, if they are let go.

        Raises:
            ConductorGoneError: There will be none.
            JaxnbError: This is a child of the process.
        """
        if os.getpid() != self._pid:
            raise JaxnbError(
                f"This is a child of process {self._process} that code has forked (`os.fork`): it "
                "takes no part in the group, and nothing over several processes runs in it."
            )
        token = next(self._tokens)
        self._waiting.add(token)
        try:
            self._tell(Say(token, lane, word, text))
            # At once: between two calls an exception may strike.
            return self._answer(token)  # type: ignore[no-any-return]
        except ConductorGoneError:
            raise
        except BaseException as error:  # by a signal's handler, or another thread
            answer = self._last_answer(token)
            if not isinstance(answer, Go):
                raise
            return answer._replace(raised=error)

    def _last_answer(self, token: int) -> Go | Stop:
        """Takes a word back; returns what it was answered all the same, or that it is taken back.

        Whatever is raised meanwhile is dropped: something else is to be raised already.
        """
        while True:
            try:
                self._waiting.add(token)
                self._tell(Withdraw(token))
                for each in self._waiting - {token}:  # their answers may have been read, and lost
                    self._tell(Withdraw(each, is_repeat=True))
                found: Go | Stop = self._answer(token)
                return found
            except ConductorGoneError:
                raise
            except BaseException:
                continue

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
        me = threading.get_ident()
        while True:
            with self._lock:
                # What was raised may have struck wherever this thread was: it may be the reader.
                while self._reader not in (None, me) and token not in self._answers:
                    self._changed.wait()
                if token in self._answers:
                    self._let_others_read(me)
                    self._waiting.discard(token)
                    return self._answers.pop(token)
                self._reader = me
            found: dict[int, Go | Stop | Explanation] = {}
            try:
                found = dict([unpack_answer(self._receive())])
            finally:
                # At once: who finds that nobody reads must find its answer, too.
                with self._lock:
                    self._reader = None
                    self._answers |= {t: what for t, what in found.items() if t in self._waiting}
                    missing = [] if found else [t for t in self._waiting if t != token]
                    if len(self._waiting) > 1:
                        self._changed.notify_all()
                for each in missing:  # what was raised may have struck when one had just come
                    self._tell(Withdraw(each, is_repeat=True))

    def _let_others_read(self, me: int) -> None:
        if self._reader == me:
            self._reader = None
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the line: for the conductor this process is dead then."""
        self._socket.close()

    def _tell(self, said: Said) -> None:
        if os.getpid() != self._pid:
            return  # a child that the cell has forked has the same line, and says nothing on it
        try:
            self._socket.send(self._packets.pack(said))
        except (BrokenPipeError, ConnectionError) as error:
            raise ConductorGoneError("the conductor has ended") from error

    def _receive(self) -> bytes:
        try:
            size = self._socket.recv_into(self._buffer)
        except ConnectionError as error:
            raise ConductorGoneError("the conductor has ended") from error
        if not size:
            raise ConductorGoneError("the conductor has ended")
        return bytes(self._buffer[:size])
