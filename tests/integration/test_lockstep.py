"""The conductor's loop and real lines to it: threads that stand for processes, and processes."""

from __future__ import annotations

import contextlib
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from jaxnb.launch.forkclient import ForkServerClient
from jaxnb.lockstep import conductor_loop as loops
from jaxnb.lockstep import notebook_side
from jaxnb.lockstep.connections import (
    Door,
    HungUpError,
    connected,
)
from jaxnb.lockstep.messages import End, Go, Lane, Stop, Word, conductor_beside
from jaxnb.lockstep.notebook_side import Looker
from jaxnb.lockstep.presses import Answerer, Asker
from jaxnb.lockstep.process_ask_conductor import Lockstep, as_intent
from jaxnb.lockstep.process_connection import ConductorGoneError, Line
from jaxnb.lockstep.wire import InterruptRaised
from jaxnb.model.dispatches import Argument, Dispatch
from support.fixtures import PATIENT_SECONDS, until

COUNT = 4
ALL = tuple(range(COUNT))
CELL = 3


def word(*participants: int, program: str = "step", line: int = 1) -> Word:
    return Word(participants or ALL, program.encode().ljust(16), bytes(16), line)


class Group:
    """A conductor, a line for each process, and who presses these."""

    def __init__(self, folder: Path, lines: tuple[int, ...] = ALL) -> None:
        self.path = folder / "conductor"
        self.pressed: list[int] = []
        self.may_press = threading.Event()
        self.may_press.set()
        ours, theirs = socket.socketpair()
        self._answerer = Answerer(ours, self._press)
        self.loop = loops.Loop(Door(self.path), COUNT, Asker(theirs))
        self._threads = [threading.Thread(target=each) for each in (self.loop.run, self._serve)]
        for thread in self._threads:
            thread.start()
        self.lines = [Line(self.path, i, COUNT) for i in lines]
        self.pool = ThreadPoolExecutor(2 * COUNT)

    def _serve(self) -> None:
        while not self._answerer.have_ended:
            self._answerer.arrived()
        self._answerer.close()

    def _press(self, process: int) -> bool:
        self.pressed.append(process)
        return self.may_press.wait(PATIENT_SECONDS)

    def begin(self) -> None:
        for line in self.lines:
            line.begin(CELL, ALL)

    def ask(self, process: int, what: Word) -> Future[Go | Stop]:
        return self.pool.submit(self.lines[process].ask, what)

    def interrupt(self) -> None:
        """Interrupts the cell, as the notebook does."""
        notebook_side.interrupt(self.path, COUNT, CELL)

    def end(self) -> None:
        """Ends the conductor."""
        self.loop.stop()
        for thread in self._threads:
            thread.join(PATIENT_SECONDS)

    def close(self) -> None:
        if self._threads[0].is_alive():
            self.end()
        for line in self.lines:
            line.close()
        self.pool.shutdown()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    group = Group(tmp_path)
    yield group
    group.close()


def of(asked: Future[Go | Stop]) -> Go | Stop:
    return asked.result(PATIENT_SECONDS)


def test_words_are_agreed_on(group: Group) -> None:
    group.begin()

    def loop(line: Line) -> list[Go | Stop]:
        return [line.ask(word(line=turn)) for turn in range(200)]

    for answers in group.pool.map(loop, group.lines):
        assert answers == [Go(n) for n in range(1, 201)]


def test_an_interrupt_stops_who_waits_and_presses_who_does_not(group: Group) -> None:
    group.begin()
    asked = group.ask(0, word())
    group.interrupt()
    stop = of(asked)
    assert isinstance(stop, Stop)
    assert stop.kind == "interrupted"
    # Who said its word before the signal came is told by the answer.
    for process in (1, 2, 3):
        told = of(group.ask(process, word()))
        assert isinstance(told, Stop)
        assert told.number == stop.number


def test_who_says_no_word_after_an_interrupt_is_sent_a_signal_until_it_is_taken(
    group: Group,
) -> None:
    group.begin()
    for _ in range(3):
        group.interrupt()
    until(lambda: len(group.pressed) > 4, "a signal is sent again")
    assert set(group.pressed) == set(ALL)
    stops = [of(group.ask(process, word())) for process in (0, 1, 2)]
    assert all(isinstance(stop, Stop) and stop.was_pressed for stop in stops)
    group.lines[3].tell(InterruptRaised())
    group.lines[3].leave(End())  # what it has said before was heard once the others hear of this
    assert getattr(of(group.ask(0, word())), "kind", None) == "left"
    known = len(group.pressed)
    assert getattr(of(group.ask(1, word())), "kind", None) == "left"
    assert len(group.pressed) == known


def test_who_is_being_pressed_hears_of_the_interrupt_after_the_signal(group: Group) -> None:
    """One that came later would strike in what the user's code does after the interrupt."""
    group.begin()
    group.may_press.clear()
    group.interrupt()
    until(lambda: group.pressed == [0], "a signal is under way")
    asked = [group.ask(process, word()) for process in ALL]
    until(lambda: [*map(len, group.loop._pressed.values())] == [1] * COUNT, "all are to be told")
    loader = group.pool.submit(group.lines[0].ask, word(0, program="load"), "other")
    assert isinstance(of(loader), Go)
    assert not any(each.done() for each in asked)
    group.may_press.set()
    stops = [of(each) for each in asked]
    assert all(isinstance(stop, Stop) and stop.was_pressed for stop in stops)
    assert sorted(group.pressed) == list(ALL)


def test_threads_of_one_process_are_answered_each(group: Group) -> None:
    """Other threads in another order on each process, beside the main ones."""
    group.begin()

    def loader(process: int) -> list[bool]:
        names = [f"load {k}" for k in range(50)]
        with ThreadPoolExecutor(5) as pool:
            line = group.lines[process]
            order = names if process % 2 else names[::-1]
            chunks = [order[k::5] for k in range(5)]

            def each(chunk: list[str]) -> bool:
                return all(isinstance(line.ask(word(program=n), "other"), Go) for n in chunk)

            # In several threads: one alone would wait for what another process says last.
            return list(pool.map(each, [sorted(chunk) for chunk in chunks]))

    loaded = [group.pool.submit(loader, i) for i in ALL]
    for _ in range(50):
        asked = [group.ask(i, word()) for i in ALL]
        assert all(isinstance(of(each), Go) for each in asked)
    assert all(all(each.result(PATIENT_SECONDS)) for each in loaded)


class Silent(Lockstep):
    """Of a process about which there is nothing to tell."""

    def settings(self) -> dict[str, str]:
        return {}

    def exchanged(self, stop: int, *_: object) -> tuple[dict[int, list[Argument]], bool]:
        raise AssertionError(stop)

    def are_one(self, given: object) -> None:
        raise AssertionError(given)

    def interrupted(self) -> None:
        raise AssertionError


def alarm(*_: object) -> None:
    raise TimeoutError


READS = "extend"
"""The function that reads from the conductor, in C alone."""

STEP = Dispatch(1, "jit(step)", 7, None, None, ALL, 1, 0.0)


def made_and_struck(
    lockstep: Lockstep,
    step: int,
    waits: Callable[[], object],
    *,
    by_thread: bool = False,
) -> tuple[bool, bool, bool]:
    """Makes a dispatch, with a signal amid that; its handler raises.

    Where Python calls handlers: as a function begins, or C code has returned.

    Args:
        lockstep: Of the main thread's process.
        step: The how manieth such place.
        waits: Called each time before it waits for the conductor.
        by_thread: What is raised was set by another thread, and nothing keeps it: in code of
            lockstep alone, as Python's own does not bear that everywhere.

    Returns:
        Whether it was made, whether the handler has raised, and whether the signal has come.
    """
    places, made = 0, []

    def come(frame: FrameType, event: str, what: object) -> None:
        nonlocal places
        if event == "c_call" and getattr(what, "__name__", "") == READS:
            waits()
        is_there = "/lockstep/" in frame.f_code.co_filename or (
            frame.f_code.co_filename.endswith("/threading.py") and not by_thread
        )
        places += is_there and event in ("call", "c_return")
        if places == step:
            places += 1
            if by_thread or not lockstep.signals.puts_off(signal.SIGUSR1):
                alarm()

    sys.setprofile(come)
    try:
        try:
            lockstep.agree(as_intent(STEP), 0, is_main=True)
            made.append(STEP)
        finally:
            lockstep.done(0)
    except TimeoutError:
        return bool(made), True, True
    finally:
        sys.setprofile(None)
    return bool(made), False, places > step


def others_of(
    group: Group, what: Word, *, are_there: bool
) -> tuple[list[Future[Go | Stop]], Callable[[], None]]:
    """Returns what the others of a group ask, and what has them ask, unless they have."""
    asked: list[Future[Go | Stop]] = []

    def come() -> None:
        if not asked:
            asked.extend(group.pool.submit(line.ask, what) for line in group.lines)

    if are_there:
        come()
        until(lambda: len(group.loop._conductor.waits()) == COUNT - 1, "the others wait")
    return asked, come


def have_been_let_go(group: Group, asked: list[Future[Go | Stop]]) -> bool:
    """Waits until all of these have an answer, or all wait for the one process that is missing."""

    def waiting() -> int:
        return len(group.loop._conductor.waits())

    until(lambda: waiting() == len(asked) or all(each.done() for each in asked), "it is settled")
    return all(each.done() for each in asked)


@pytest.mark.parametrize("by_thread", [False, True], ids=["by a signal", "by a thread"])
@pytest.mark.parametrize("are_there", [False, True], ids=["before the others", "after them"])
def test_whenever_a_handler_raises_all_make_a_dispatch_or_none_does(
    tmp_path: Path,
    are_there: bool,
    by_thread: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What all were let make is made, and then raised; else it is raised, and the others wait.

    What another thread sets, as ``PyThreadState_SetAsyncExc`` does, is raised wherever Python
    looks: no grant is lost.
    """
    monkeypatch.setattr(signal, "getsignal", {signal.SIGUSR1: alarm}.get)
    group = Group(tmp_path, (1, 2, 3))
    lockstep = Silent(0, COUNT, lambda: group.path)
    lockstep.begin(CELL, ALL)
    group.begin()
    what = Word(ALL, (7).to_bytes(16, "little"), bytes(16), 1)
    outcomes = set()
    for step in range(1, 120):
        asked, come = others_of(group, what, are_there=are_there)
        was_made, has_raised, has_come = made_and_struck(lockstep, step, come, by_thread=by_thread)
        outcomes.add((was_made, has_raised))
        if by_thread:
            come()
        if not was_made and not (by_thread and have_been_let_go(group, asked)):
            assert made_and_struck(lockstep, 0, come) == (True, False, True)
        assert all(isinstance(of(each), Go) for each in asked)
        if not has_come:
            break
        assert has_raised
    else:
        pytest.fail("it never got by")
    group.close()
    assert lockstep._line is not None
    lockstep._line.close()
    assert outcomes == {(False, True), (True, True), (True, False)}


def test_a_thread_that_ends_has_no_turn_any_more(tmp_path: Path) -> None:
    """Its exception may have kept it from telling that what it was let make is over."""
    group = Group(tmp_path, (1, 2, 3))
    lockstep = Silent(0, COUNT, lambda: group.path)
    lockstep.begin(CELL, ALL)
    group.begin()

    def agree(lane: Lane) -> None:
        what = Word(ALL, (7).to_bytes(16, "little"), bytes(16), 1)
        asked = [group.pool.submit(line.ask, what, lane) for line in group.lines]
        lockstep.agree(as_intent(STEP), 0, is_main=lane == "main")
        assert [of(each) for each in asked] == [Go(lockstep._made.granted[-1].number)] * 3

    thread = threading.Thread(target=agree, args=("other",))
    thread.start()
    thread.join(PATIENT_SECONDS)
    assert not thread.is_alive()
    with ThreadPoolExecutor(1) as pool:  # it would wait for ever
        assert pool.submit(agree, "other").result(PATIENT_SECONDS) is None
    group.close()
    assert lockstep._line is not None
    lockstep._line.close()


def test_the_notebook_sees_who_waits_for_whom(group: Group) -> None:
    group.begin()
    asked = group.ask(2, word())
    looker = Looker(group.path, COUNT)

    def is_seen() -> bool:
        looker.look()
        return bool(looker.waits)

    until(is_seen, "one waits")
    assert looker.waits is not None
    (waiting,) = looker.waits
    assert (waiting.process, waiting.lane, waiting.late(looker.waits)) == (2, "main", (0, 1, 3))
    assert not looker.silent_seconds()
    for each in (0, 1, 3):
        group.ask(each, word())
    assert isinstance(of(asked), Go)
    group.end()
    looker.look()
    assert (looker.waits, looker.silent_seconds()) == (None, 0)  # that is told of otherwise
    looker.close()


def test_a_conductor_that_does_not_answer_is_silent_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine an answer may take a while, and means nothing."""
    with contextlib.closing(Door(tmp_path / "lock")):
        looker = Looker(tmp_path / "lock", COUNT)
        looker.look()
        assert (looker.waits, looker.silent_seconds()) == (None, 0)
        monkeypatch.setattr(notebook_side, "SILENT_SECONDS", 0.0)
        assert looker.silent_seconds() > 0
        looker.close()


def test_a_conductor_that_ends_is_told(group: Group) -> None:
    group.begin()
    asked = group.ask(0, word())
    group.end()
    with pytest.raises(ConductorGoneError):
        of(asked)
    with pytest.raises(ConductorGoneError):
        group.lines[1].ask(word())


@pytest.mark.parametrize(
    "packet", [b"nonsense", b"s" * 20, b"h\x07" + bytes(3), b"h" + bytes(4), b"t"]
)
def test_what_is_forged_ends_its_connection_and_nothing_else(group: Group, packet: bytes) -> None:
    with contextlib.closing(connected(group.path, PATIENT_SECONDS)) as other:
        other.send(packet)
        with pytest.raises(HungUpError):
            other.receive()
    group.begin()
    asked = [group.ask(i, word()) for i in ALL]
    assert [of(each) for each in asked] == [Go(1)] * COUNT


def test_only_this_user_reaches_it(group: Group) -> None:
    assert stat.S_IMODE(group.path.stat().st_mode) & 0o077 == 0


def test_who_is_on_another_host_is_pressed_by_its_fork_server() -> None:
    """The conductor's own asks for it by an event, and tells the conductor once it is done."""
    wanted: list[int] = []

    def on_event(event: dict[str, Any]) -> None:
        if event["event"] == "press":
            wanted.append(event["index"])

    server = ForkServerClient("fork", on_event)
    with contextlib.closing(server), ThreadPoolExecutor(1) as pool:
        service = server.request("service", num_processes=2).result(PATIENT_SECONDS)
        path = conductor_beside(service["line"])
        with contextlib.closing(Line(path, 0, 2)) as line:
            line.begin(CELL, (0, 1))
            notebook_side.interrupt(path, 2, CELL)
            until(lambda: wanted == [0], "its fork server is to press it")
            asked = pool.submit(line.ask, word(0))
            assert isinstance(line.ask(word(0), "other"), Go)
            server.request("pressed", index=0).result(PATIENT_SECONDS)
            stop = of(asked)
            assert isinstance(stop, Stop)
            assert (stop.kind, stop.was_pressed) == ("interrupted", True)
    assert wanted == [0]
