"""Asks the conductor before each dispatch, and waits until all participants have asked the same."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from jaxnb.errors import DivergenceError, JaxnbError
from jaxnb.labels import processes_label
from jaxnb.lockstep import divergence
from jaxnb.lockstep.messages import End, Explanation, Go, Stop, Word
from jaxnb.lockstep.process_connection import ConductorGoneError, KeptSignals, LetGo, Line
from jaxnb.lockstep.process_turns import Turns
from jaxnb.lockstep.provenance import arguments_text, differ_in_number_only, differing_arguments
from jaxnb.lockstep.settings import differences, refusal
from jaxnb.lockstep.wire import DIGEST_BYTES, Said
from jaxnb.model.dispatches import Argument, Dispatch
from jaxnb.model.scripts import the_cell

MAX_NAME_CHARS = 200
"""Longer names of computations are cut to this length before they are sent to the others."""


@dataclass(slots=True)
class _Granted:
    """A granted dispatch that a thread is making."""

    depth: int
    number: int
    is_main: bool
    raised: BaseException | None = None  # by another thread, and put off until it is made


class _Grants(list[_Granted]):
    """The granted dispatches that a thread is making; it makes none any more once it has ended."""

    def __init__(self, end: Callable[[int], None]) -> None:
        super().__init__()
        self._end = end

    def __del__(self) -> None:
        for each in self:
            self._end(each.number)


class _Made(threading.local):
    """The granted dispatches that this thread is making, outermost first."""

    def __init__(self, end: Callable[[int], None]) -> None:
        self.granted = _Grants(end)


class Intent(NamedTuple):
    """A dispatch that a process is about to make.

    Attributes:
        word: The request that is sent for it.
        describe: Describes it for the other processes, with its number at that time (a signal
            handler may have dispatched something first).
        replicas: Digests of replicated arguments for the others to compare, as JSON; or empty.
    """

    word: Word
    describe: Callable[[], Dispatch]
    replicas: str = ""


def as_intent(dispatch: Dispatch) -> Intent:
    """Returns the intent to make a dispatch whose number is settled."""
    word = Word(
        dispatch.processes, as_digest(dispatch.fingerprint), as_digest(dispatch.inputs),
        dispatch.line or 0,
    )  # fmt: skip
    return Intent(word, lambda: dispatch, replicas_as_text(dispatch.replicas))


def as_digest(number: int) -> bytes:
    """Returns a number as words have it."""
    return number.to_bytes(DIGEST_BYTES, "little", signed=True)


def replicas_as_text(replicas: Sequence[tuple[tuple[int, ...], int]]) -> str:
    """Returns digests of replicas, by who holds them, as they are told beside a word."""
    return json.dumps(replicas) if replicas else ""


class Lockstep:
    """This process's part in lockstep; a subclass knows of JAX and of the cell.

    Args:
        process: This process.
        num_processes: Size of the group.
        conductor: Returns where the conductor listens: after a recovery it is another one.

    Attributes:
        num_processes: Size of the group.
        signals: Keeps signals from the main thread while it asks, or makes what it was let make.
    """

    def __init__(self, process: int, num_processes: int, conductor: Callable[[], Path]) -> None:
        self._me, self.num_processes = process, num_processes
        self._conductor = conductor
        self._path: Path | None = None
        self._line: Line | None = None
        self._turns = Turns()
        self._made = _Made(self._is_over)
        self.signals = KeptSignals(self.tell, lambda: self._from_handler(Line.take_back))

    def settings(self) -> Mapping[str, str]:
        """Returns the settings that change programs, as they are now."""
        raise NotImplementedError

    def exchanged(
        self, stop: int, dispatch: Dispatch, others: Mapping[int, Dispatch]
    ) -> tuple[dict[int, list[Argument]], bool]:
        """Tells the others which arrays are given to a dispatch that was stopped here.

        Args:
            stop: The stop's number, the same on all processes.
            dispatch: What this process was about to make.
            others: What the others were.

        Returns:
            What each gives; and whether all have told, and give the same host data.
        """
        raise NotImplementedError

    def are_one(self, given: Mapping[int, Sequence[Argument]]) -> None:
        """Takes which arrays that processes give are parts of the same ones."""

    def interrupted(self) -> BaseException | None:
        """Returns what an interrupt raises in the main thread now.

        None where a handler of the user's own has taken it; it may raise what it likes.
        """
        return None

    def begin(self, cell: int, asked: Sequence[int]) -> None:
        """Begins a cell.

        Args:
            cell: Its serial number: later ones have larger numbers, on all processes.
            asked: The processes that run it.

        Raises:
            OSError: The conductor has ended.
        """
        path = self._conductor()
        if self._line is None or path != self._path:
            if self._line is not None:
                self._line.close()
            self._line, self._path = Line(path, self._me, self.num_processes), path
            self._turns = Turns()
        self._line.begin(cell, tuple(asked))

    def end(self, note: str) -> None:
        """Tells who still waits for this process that it has left the cell, and how."""
        try:  # either may raise what a signal's handler does
            self.done(0)
            self.signals.end(0)
        finally:
            if self._line is not None:
                self._line.leave(End(note))

    def tell(self, what: Said) -> None:
        """Tells the conductor of a signal, from its handler."""
        self._from_handler(lambda line: line.tell(what))

    def _from_handler(self, tell: Callable[[Line], None]) -> None:
        # A signal's handler must raise nothing but the interrupt; the next word tells of the end.
        if self._line is not None:
            with contextlib.suppress(ConductorGoneError):
                tell(self._line)

    def agree(self, intent: Intent, depth: int, *, is_main: bool) -> None:
        """Waits until all processes of a dispatch are about to make it, and it is its turn.

        :meth:`done` has to follow, whatever becomes of it.

        Args:
            intent: What this process is about to make, as one of those that it spans.
            depth: How many dispatches this thread is making already.
            is_main: This is the main thread.

        Raises:
            DivergenceError: They are about to make another, or none; or give it unequal replicas.
            KeyboardInterrupt: The cell is interrupted.
            BaseException: What a signal's handler raises that comes while it waits, or what
                another thread sets in this one.
        """
        granted = self._made.granted

        def let_go(go: Go, raised: BaseException | None) -> None:
            if not (granted and granted[-1].number == go.number):
                granted.append(_Granted(depth, go.number, is_main))
            granted[-1].raised = raised

        if is_main:
            self.signals.begin()
        try:
            go = self._let_go(intent, let_go, is_main=is_main)
        except BaseException:
            if is_main:
                self.signals.end(len(granted))
            raise
        try:
            self._turns.begin(go.number)
        except BaseException as error:  # the others make it
            granted[-1].raised = error
            self._turns.begin(go.number)
        if go.told:
            dispatch = intent.describe()
            each = {i: replace(dispatch, replicas=_replicas(text)) for i, text in go.told}
            if differing := divergence.unequal_replicas(each):
                raise DivergenceError(divergence.unequal_replicas_text(dispatch, differing))

    def _is_over(self, number: int) -> None:
        self._turns.end(number)  # of the conductor of now

    def done(self, depth: int) -> None:
        """Ends this thread's granted dispatches at ``depth`` and deeper, made or not.

        Raises:
            BaseException: From a signal handler, or set by another thread, and deferred until now.
        """
        granted, was_main, raised = self._made.granted, False, None
        while granted and granted[-1].depth >= depth:
            last = granted[-1]
            self._turns.end(last.number)
            granted.pop()
            was_main, raised = last.is_main, raised or last.raised
        try:
            if was_main:
                self.signals.end(len(granted))
        finally:
            if raised is not None:
                raise raised

    def _let_go(self, intent: Intent, let_go: LetGo, *, is_main: bool) -> Go:
        assert self._line is not None
        word, text = intent.word, intent.replicas
        while True:
            if is_main:
                answer = self._line.ask(word, "main", text, self.signals.are_waited_for, let_go)
            else:
                answer = self._line.ask(word, "other", text, let_go=let_go)
            if isinstance(answer, Go):
                return answer
            if answer.kind == "withdrawn":  # for a handler that is called now
                self.signals.end(0)
                self.signals.begin()
                continue
            if answer.kind == "interrupted":
                if answer.was_pressed:
                    self.signals.take_sent()
                with self.signals.let_through():  # a handler of the user's may take its time
                    error = self.interrupted()
                if error is not None:
                    raise error
                continue
            self._raise_unless_one(answer, intent.describe())
            # All participants found their inputs to be the same; the stop's number replaces them.
            word = word._replace(inputs=as_digest(answer.number))

    def _raise_unless_one(self, stop: Stop, dispatch: Dispatch) -> None:
        """Raises the error for a stop, unless only the numbering of the same inputs differs."""
        assert self._line is not None
        shortened = replace(dispatch, name=dispatch.name[:MAX_NAME_CHARS])
        mine = json.dumps([asdict(shortened), dict(self.settings())])
        at, settings, notes = _all_sides(stop, self._line.explain(stop, mine))
        if stop.kind == "dead":
            dead = [q for side in stop.sides if side.word is None for q in side.processes]
            raise JaxnbError(f"{processes_label(dead)} died before it reached this dispatch")
        about = next((each for each in at.values() if each is not None), dispatch)
        programs = {each.fingerprint for each in at.values() if each is not None}
        absent = [q for q in about.processes if q not in at]
        all_at = at | dict.fromkeys(absent)
        notes |= dict.fromkeys(absent, "had not come to it by then")
        those = {i: each for i, each in at.items() if each is not None}
        if len({(each.failed, each.failures) for each in those.values()}) > 1:
            raise DivergenceError(divergence.apart_text(those, about.name))
        if len(programs) > 1 and (found := differences(settings)):
            raise DivergenceError(refusal(found, about.name))
        if len(programs) > 1 or None in at.values():
            raise DivergenceError(divergence.disagreement(divergence.sides(all_at, notes), about))
        given: dict[int, list[Argument]] = {}
        if self._me in at and set(about.processes) == set(at):
            others = {i: each for i, each in at.items() if each is not None and i != self._me}
            given, is_same = self.exchanged(stop.number, dispatch, others)
            if is_same and differ_in_number_only(given, about.processes):
                self.are_one(given)
                return
        text = arguments_text(differing_arguments(given))
        said = divergence.disagreement(divergence.sides(all_at, notes), about)
        raise DivergenceError(said + (f" {text}" if text else ""))


def _replicas(text: str) -> tuple[tuple[tuple[int, ...], int], ...]:
    return tuple((tuple(holders), value) for holders, value in json.loads(text))


def _all_sides(
    stop: Stop, what: Explanation
) -> tuple[dict[int, Dispatch | None], dict[int, Mapping[str, str]], dict[int, str]]:
    """Returns what each process was about to make, its settings, and why it makes nothing."""
    at: dict[int, Dispatch | None] = {}
    settings: dict[int, Mapping[str, str]] = {}
    notes: dict[int, str] = {}
    for process, text in what.told:
        plain, settings[process] = json.loads(text)
        at[process] = Dispatch.from_plain(plain)
    ends = dict(what.ends)
    for side in stop.sides:
        if side.word is not None:  # some were interrupted, or died, before they could explain
            untold = [q for q in side.processes if q not in at and q not in dict(what.ends)]
            said = f"was to dispatch something at line {side.word.line}"
            notes |= dict.fromkeys(untold, said)
            at |= dict.fromkeys(untold)
        else:
            ends |= {q: side.end for q in side.processes if side.end is not None}
            missing = [q for q in side.processes if q not in ends]
            notes |= dict.fromkeys(missing, f"was not asked to run {the_cell()}")
            at |= dict.fromkeys(missing)
    notes |= {q: end.error for q, end in ends.items()}
    at |= dict.fromkeys(ends)
    return at, settings, notes
