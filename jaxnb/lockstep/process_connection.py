"""A process's line to the conductor: connected, safe from signals."""

from __future__ import annotations

import functools
import itertools
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from jaxnb.errors import JaxnbError
from jaxnb.lockstep import process_interrupts, wire
from jaxnb.lockstep.connections import connected
from jaxnb.lockstep.messages import End, Explanation, Go, Lane, Processes, Stop, Word

Handler = Callable[[int, FrameType | None], Any]


class _Asking:
    """Stands in for a handler, and asks before each call."""

    def __init__(self, handler: Handler, puts_off: Callable[[int], bool]) -> None:
        self.handler, self._puts_off = handler, puts_off

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._puts_off(number):
            return
        if process_interrupts.is_answering:
            self.handler(number, frame)
            return
        try:
            self.handler(number, frame)
        except (Exception, KeyboardInterrupt):  # it would end this process's event loop
            name = signal.Signals(number).name
            sys.stderr.write(f"Between cells the handler of {name} raised:\n")
            traceback.print_exc()


_python_getsignal = signal.getsignal


def install(puts_off: Callable[[int], bool]) -> None:
    """Has handlers asked for that this process's code sets from now on, but for jaxnb's own.

    ``signal.signal`` and ``signal.getsignal`` return what was set, as always. Handlers that were
    set before, and those in C, are called as Python calls them.

    Args:
        puts_off: Takes a signal whose handler is due, in the main thread, where Python calls
            handlers; returns whether that is called later.
    """
    python_signal = signal.signal

    @functools.wraps(python_signal)
    def set_handler(signalnum: Any, handler: Any) -> Any:
        if callable(handler) and not is_own(handler):
            handler = _Asking(handler, puts_off)
        return _of(python_signal(signalnum, handler))

    @functools.wraps(_python_getsignal)
    def get_handler(signalnum: Any) -> Any:
        return _of(_python_getsignal(signalnum))

    signal.signal = set_handler
    signal.getsignal = get_handler


def tells(number: int) -> bool:
    """Whether jaxnb is told when a signal has come."""
    handler = _python_getsignal(number)
    return isinstance(handler, _Asking) or is_own(handler)


def is_of_handler(error: BaseException) -> bool:
    """Whether a handler has raised it that code has set: it is that code's to catch."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code is _Asking.__call__.__code__ for frame, _ in frames)


def is_own(handler: object) -> bool:
    """Whether a handler is jaxnb's."""
    return str(getattr(handler, "__module__", "")).partition(".")[0] == "jaxnb"


def _of(handler: Any) -> Any:
    return handler.handler if isinstance(handler, _Asking) else handler


class KeptSignals:
    """Keeps signals from the main thread for a while: nothing that a handler raises strikes there.

    What all were let make, all make. Of SIGINT the conductor is told. It stops the cell on all
    processes then: this one too, at its next word, or by a signal once it is in Python again.
    Other handlers, a time-out's say, are called after what is made; one for which the thread
    waits for its answer takes the word back. As in Python, several signals of one kind that are
    due call one handler once: the one that is set by then.

    For the main thread alone, signals' handlers included. A child that is forked keeps none.

    Args:
        tell: Tells the conductor that SIGINT was kept, or that a handler of the user's own is
            called for it.
        take_back: Takes back the word that the thread waits with, if any.
    """

    def __init__(self, tell: Callable[[wire.Said], None], take_back: Callable[[], None]) -> None:
        self._tell, self._take_back = tell, take_back
        self._depth = 0
        self._has_come = False
        self._late: dict[int, None] = {}  # the numbers of signals, as they came
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._depth = 0
        self._late.clear()

    def begin(self) -> None:
        """Keeps signals from now on, until :meth:`end`."""
        self._has_come = False
        self._depth += 1

    def end(self, depth: int) -> None:
        """Lets signals through again, unless others are still to be made.

        Args:
            depth: How many.

        Raises:
            BaseException: What a handler raises that was put off.
        """
        self._depth = depth
        if self._late and not depth:
            number = next(iter(self._late))
            del self._late[number]
            handler = signal.getsignal(number)
            try:
                if callable(handler):
                    handler(number, sys._getframe(1))
            finally:
                self.end(0)

    @contextmanager
    def let_through(self) -> Iterator[None]:
        """Keeps none for the block, unless others are still to be made."""
        depth = self._depth
        self.end(depth - 1)
        try:
            yield
        finally:
            self._depth = depth

    def are_waited_for(self) -> bool:
        """Whether handlers were put off that can be called if the thread does not go on waiting."""
        return self._depth == 1 and bool(self._late)

    def keeps(self) -> bool:
        """Takes a SIGINT; returns whether it is kept. Called by the signal's handler."""
        if not self._depth:
            return False
        if not self._has_come:
            self._has_come = True
            self._tell(wire.InterruptHeld())
        return True

    def puts_off(self, number: int) -> bool:
        """Takes a signal with a handler of the user's; returns whether that is called later."""
        if number == signal.SIGINT:
            if not (is_kept := self.keeps()):
                self._tell(wire.InterruptHandled())
            return is_kept
        if not self._depth:
            return False
        self._late[number] = None
        if self.are_waited_for():
            self._take_back()
        return True

    def take_sent(self) -> None:
        """Takes a SIGINT that the conductor has sent before its answer: it must not strike later.

        Code may have ignored it for a moment, as a checkpoint does, or ``system(3)``: so nobody
        waits for it. If it is still to be handled, Python calls the handler for both at once.
        """
        if not self._has_come and tells(signal.SIGINT):
            signal.raise_signal(signal.SIGINT)


class ConductorGoneError(ConnectionError):
    """The conductor has ended: nothing can be agreed on any more."""


LetGo = Callable[[Go, BaseException | None], None]


class Line:
    """Asks the conductor; from any thread.

    Args:
        path: Where the conductor listens.
        process: This process's index.
        num_processes: Size of the group.
    """

    def __init__(self, path: Path, process: int, num_processes: int) -> None:
        self._packets = wire.Packets(num_processes)
        self._process, self._pid = process, os.getpid()
        self._connection = connected(path)
        self._send, self._take = self._connection.send, self._connection.take
        self._tokens = itertools.count(1)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._answers: dict[int, Go | Stop | Explanation] = {}
        self._waiting: set[int] = set()
        self._reader = 0  # the thread that reads
        self._asking = 0  # what the main thread waits with
        self.tell(wire.Hello(process))

    def begin(self, cell: int, members: Processes) -> None:
        """Tells that a cell begins, which these processes were asked to run."""
        self.tell(wire.Begin(cell, members))

    def leave(self, end: End) -> None:
        """Tells that the cell was left, and how."""
        self.tell(wire.Leave(end))

    def take_back(self) -> None:
        """Has what the main thread waits with answered at once; from a signal's handler.

        It may be answered otherwise already; then that holds.
        """
        if token := self._asking:
            self.tell(wire.Withdraw(token))

    def ask(
        self,
        word: Word,
        lane: Lane = "main",
        text: str = "",
        is_taken_back: Callable[[], bool] = lambda: False,
        let_go: LetGo = lambda _, __: None,
    ) -> Go | Stop:
        """Says a word and waits for the answer, until it comes or the conductor ends.

        Nothing of a signal's may be raised meanwhile: who is let go has to make it. What another
        thread sets in this one is raised if the word can still be taken back.

        Args:
            word: The word.
            lane: Which thread says it.
            text: What all participants are told with the answer, if they are let go.
            is_taken_back: Whether the main thread is not to wait, as a signal has come.
            let_go: Takes that the thread was let go, and what it must raise once it has made it;
                it may be told again.

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
        said: list[int] = []
        self._waiting.add(token)
        try:
            self.tell(wire.Say(token, lane, word, text), said)
            if lane == "main":
                # In this order: a handler that comes before the first is seen by the second.
                self._asking = token
                if is_taken_back():
                    self.take_back()
            answer: Go | Stop = self._answer(token)
            if isinstance(answer, Go):
                let_go(answer, None)
            return answer
        except ConductorGoneError:
            raise
        except BaseException as error:  # what another thread has set in this one, say
            if not said:
                raise
            self.tell(wire.Withdraw(token))  # if it has an answer, that holds
            answer = self._answer(token)
            if not isinstance(answer, Go):
                raise
            let_go(answer, error)
            return answer
        finally:
            if lane == "main":
                self._asking = 0
            self._forget(token)

    def explain(self, stop: Stop, text: str) -> Explanation:
        """Tells of the word that was stopped, and returns what all have told, or how they ended.

        All processes that a stop is for get the same. They have to ask, and wait for each other.

        Raises:
            ConductorGoneError: There will be no answer.
        """
        token = next(self._tokens)
        self._waiting.add(token)
        try:
            self.tell(wire.Explain(token, stop.number, text))
            answer = self._answer(token)
        finally:
            self._forget(token)
        assert isinstance(answer, Explanation)
        return answer

    def _answer(self, token: int) -> Any:
        """Returns the answer, whichever thread reads it; again, until it is forgotten.

        It comes, or the conductor ends: that decides by events alone. The notebook names the
        processes that are waited for meanwhile, and a conductor that is stopped. A thread that
        reads lets another one read when it is answered, or raises.
        """
        me = threading.get_ident()
        while True:
            with self._lock:  # a third of the time of the condition's own
                if self._reader == me:  # it was struck as it was to tell that it reads no more
                    self._reader = 0
                while self._reader and token not in self._answers:
                    self._changed.wait()
                if token in self._answers:
                    return self._answers[token]
                self._reader = me
            found: tuple[int, Go | Stop | Explanation] | None = None
            try:
                found = wire.unpack_answer(self._receive())
            finally:
                # At once: who finds that nobody reads must find its answer, too.
                with self._lock:
                    self._reader = 0
                    if found is not None:
                        if found[0] in self._waiting:  # else told twice, or too late
                            self._answers.setdefault(*found)
                        self._take()
                    if len(self._waiting) > 1:
                        self._changed.notify_all()

    def _forget(self, token: int) -> None:
        self._waiting.discard(token)
        self._answers.pop(token, None)

    def close(self) -> None:
        """Ends the line: for the conductor this process is dead then."""
        self._connection.close()

    def tell(self, what: wire.Said, said: list[int] | None = None) -> None:
        """Tells the conductor something; a list has an entry more then, whatever is raised amid it.

        From any thread, and from a signal's handler too.

        Raises:
            ConductorGoneError: It has ended.
        """
        if os.getpid() != self._pid:
            return  # a child that the cell has forked has the same line, and says nothing on it
        try:
            self._send(self._packets.pack(what), said)
        except ConnectionError as error:
            raise ConductorGoneError("the conductor has ended") from error

    def _receive(self) -> bytes:
        try:
            return self._connection.receive()
        except ConnectionError as error:
            raise ConductorGoneError("the conductor has ended") from error
