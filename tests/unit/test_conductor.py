"""The conductor: whatever the order of events, nobody waits for ever, and no stop is false."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnb.lockstep.conductor import Conductor, Decision
from jaxnb.lockstep.messages import (
    Answer,
    Asking,
    End,
    Explanation,
    Go,
    Press,
    Processes,
    Side,
    Stop,
    Word,
)

CELL = 7


def word(*participants: int, program: bytes = b"step", inputs: bytes = b"", line: int = 1) -> Word:
    return Word(tuple(participants), program, inputs, line)


ALL = word(0, 1, 2)
EXPLANATION = Word((), b"", b"")
"""Stands for what a process waits for that has told of its word."""


def begun(count: int = 3, members: Processes | None = None) -> Conductor:
    conductor = Conductor(count)
    for process in members or range(count):
        assert conductor.begin(process, CELL, members or range(count)) == []
    return conductor


def said(conductor: Conductor, process: int, what: Word, *, lane: Any = "main") -> list[Decision]:
    return conductor.say(process, process, lane, what)


def stops(decisions: list[Decision]) -> dict[int, Stop]:
    return {
        each.process: each.what
        for each in decisions
        if isinstance(each, Answer) and isinstance(each.what, Stop)
    }


def test_all_go_once_all_have_said_the_same() -> None:
    conductor = begun()
    assert said(conductor, 0, ALL) == []
    assert said(conductor, 2, word(0, 1, 2, line=9)) == []  # written twice in the cell
    first, other = conductor.waits()
    assert (first, other.process) == (Asking(0, "main", 0, ALL), 2)
    assert first.late((first, other)) == other.late((first, other)) == (1,)
    assert said(conductor, 1, ALL) == [Answer(i, i, Go(1)) for i in range(3)]
    assert conductor.waits() == ()


def test_one_that_has_raised_stops_those_that_wait_and_those_that_come() -> None:
    conductor = begun()
    said(conductor, 0, ALL)
    end = End("NameError: los")
    (stop,) = stops(conductor.leave(1, end)).values()
    assert stop == Stop(1, "left", (Side((0,), word=ALL), Side((1,), end=end)))
    # A signal's handler may raise as a process says that it leaves: it says so again.
    assert conductor.leave(1, End("again")) == []
    # The same is told to who comes later.
    assert stops(said(conductor, 2, ALL)) == {2: stop}


def test_who_was_stopped_need_not_wait_for_those_at_work() -> None:
    conductor = begun()
    said(conductor, 0, ALL)
    conductor.leave(1, End("NameError: los"))
    assert conductor.held_up() == frozenset()
    assert conductor.explain(0, 7, 1, "mine") == []
    assert conductor.held_up() == {1}
    what = Explanation(1, ((0, "mine"),), ((1, End("NameError: los")),))
    assert conductor.explain_now([1]) == [Answer(0, 7, what)]
    assert set(stops(said(conductor, 2, ALL))) == {2}  # who comes later is told the same
    assert conductor.explain(2, 8, 1, "its own") == [Answer(2, 8, what)]
    # Who differs in inputs only may mean the same, which only all know together: it waits for all.
    other = begun()
    said(other, 0, ALL)
    said(other, 1, word(0, 1, 2, inputs=b"x"))
    assert [other.explain(process, 7, 1, "mine") for process in (0, 1)] == [[], []]
    assert other.held_up() == frozenset()


@pytest.mark.parametrize("other", [word(0, 1, 2, program=b"other"), word(0, 1, 2, inputs=b"x")])
def test_other_words_over_the_same_processes_stop_all_at_once(other: Word) -> None:
    conductor = begun()
    said(conductor, 0, ALL)
    found = stops(said(conductor, 1, other))
    assert set(found) == {0, 1}
    assert found[0] is found[1]
    assert found[0].kind == "diverged"
    assert [side.word for side in found[0].sides] == [ALL, other]
    assert stops(said(conductor, 2, other)) == {2: found[0]}
    # What they run after that, to save a checkpoint say, is agreed on anew.
    for process in (0, 1):
        assert said(conductor, process, ALL) == []
    assert len(said(conductor, 2, ALL)) == 3


def test_who_was_not_asked_is_named() -> None:
    conductor = begun(members=(0, 2))
    (stop,) = stops(said(conductor, 0, ALL)).values()
    assert stop == Stop(1, "not asked", (Side((0,), word=ALL), Side((1,))))
    said(conductor, 2, word(0, 2))  # the first of it is told the stop
    said(conductor, 2, word(0, 2))
    assert len(said(conductor, 0, word(0, 2))) == 2


def test_who_is_dead_is_named_in_either_lane() -> None:
    conductor = begun()
    said(conductor, 0, ALL)
    said(conductor, 2, word(1, 2), lane="other")
    found = stops(conductor.die(1))
    assert {stop.kind for stop in found.values()} == {"dead"}
    assert {side.processes for stop in found.values() for side in stop.sides} == {(0,), (2,), (1,)}
    assert Press(1) not in conductor.interrupt(CELL)


def test_processes_that_wait_in_a_ring_are_stopped() -> None:
    conductor = begun()
    assert said(conductor, 0, word(0, 1)) == []
    assert said(conductor, 1, word(1, 2)) == []  # process 2 may still come
    found = stops(said(conductor, 2, word(0, 2)))
    assert set(found) == {0, 1, 2}
    assert {stop.kind for stop in found.values()} == {"ring"}


def test_other_threads_agree_in_any_order_and_beside_the_cell() -> None:
    conductor = begun(2)
    first, second = word(0, 1, program=b"a"), word(0, 1, program=b"b")
    assert conductor.say(0, 10, "other", first) == []
    assert conductor.say(0, 11, "other", second) == []
    assert conductor.say(1, 20, "other", second) == [Answer(0, 11, Go(1)), Answer(1, 20, Go(1))]
    both = word(0, 1)
    assert said(conductor, 0, both) == []
    assert len(said(conductor, 1, both)) == 2
    assert conductor.say(1, 21, "other", first) == [Answer(0, 10, Go(3)), Answer(1, 21, Go(3))]


def test_what_is_told_with_a_word_goes_to_all_that_are_let_go() -> None:
    conductor = begun(2)
    conductor.say(0, 5, "main", word(0, 1), "replicas: 1")
    told = ((0, "replicas: 1"),)
    assert said(conductor, 1, word(0, 1)) == [Answer(0, 5, Go(1, told)), Answer(1, 1, Go(1, told))]


def test_an_interrupt_ends_the_wait_for_an_explanation() -> None:
    conductor = begun()
    said(conductor, 0, ALL)
    number = stops(said(conductor, 1, word(0, 1, 2, program=b"other")))[0].number
    assert conductor.explain(0, 5, number, "mine") == []
    decisions = conductor.interrupt(CELL)
    assert Answer(0, 5, Explanation(number, ((0, "mine"),))) in decisions


def test_a_signal_that_is_kept_interrupts_all_unless_it_was_sent_from_here() -> None:
    conductor = begun(2)
    both = word(0, 1)
    said(conductor, 0, both)
    decisions = conductor.interrupt_held(0)
    assert set(stops(decisions)) == {0}
    assert decisions[-1] == Press(1)
    assert conductor.interrupt_held(1) == []
    assert conductor.claim_signal(1)
    assert not conductor.claim_signal(0)
    # It says its word before it has seen the signal: the answer says that one is on its way.
    assert stops(said(conductor, 1, both))[1].was_pressed
    assert conductor.interrupt_held(1) == []
    assert not conductor.claim_signal(1)


def test_a_signal_that_python_has_taken_is_not_told_again() -> None:
    conductor = begun(2)
    both = word(0, 1)
    said(conductor, 0, both)
    assert conductor.interrupt(CELL)[-1] == Press(1)
    assert conductor.interrupt_raised(1) == conductor.interrupt(99) == []
    assert said(conductor, 0, both) == []
    assert len(said(conductor, 1, both)) == 2


def test_a_signal_from_elsewhere_interrupts_the_others_too() -> None:
    conductor = begun()
    said(conductor, 0, ALL)
    decisions = conductor.interrupt_raised(1)
    assert set(stops(decisions)) == {0}
    assert decisions[-1] == Press(2)


def test_who_begins_after_an_interrupt_is_sent_a_signal() -> None:
    """It may say no word."""
    conductor = Conductor(2)
    conductor.begin(0, CELL, (0, 1))
    conductor.interrupt(CELL)
    assert conductor.begin(1, CELL, (0, 1)) == [Press(1)]
    assert conductor.claim_signal(1)
    assert conductor.interrupt_raised(1) == []
    assert not conductor.claim_signal(1)


def test_an_interrupt_before_anybody_has_begun_is_not_lost() -> None:
    """It reaches the conductor by another connection than those on which processes begin."""
    conductor = Conductor(3)
    assert conductor.interrupt(CELL) == []
    for process in (0, 2):
        assert conductor.begin(process, CELL, (0, 2)) == [Press(process)]
    both = word(0, 2)
    assert {stop.kind for stop in stops(said(conductor, 0, both)).values()} == {"interrupted"}
    conductor.leave(0, End("KeyboardInterrupt"))
    conductor.leave(2, End("KeyboardInterrupt"))
    for process in range(3):  # of another cell nobody is stopped
        assert conductor.begin(process, CELL + 1, (0, 1, 2)) == []
    assert [len(said(conductor, process, ALL)) for process in range(3)] == [0, 0, 3]


def test_who_takes_its_word_back_is_not_let_go_unless_it_was() -> None:
    conductor = begun(2)
    both = word(0, 1)
    assert conductor.say(0, 7, "main", both) == []
    (answer,) = conductor.withdraw(0, 7)
    assert isinstance(answer, Answer)
    assert isinstance(answer.what, Stop)
    assert (answer.token, answer.what.kind) == (7, "withdrawn")
    assert said(conductor, 1, both) == []
    assert len(conductor.say(0, 8, "main", both)) == 2
    # Once it is answered that holds, and is not said again.
    assert conductor.withdraw(0, 8) == []


def test_who_ends_before_it_explains_is_not_waited_for() -> None:
    conductor = begun()
    said(conductor, 0, ALL)
    found = stops(said(conductor, 1, word(0, 1, 2, program=b"other")))
    number = found[0].number
    assert conductor.explain(0, 5, number, "mine") == []
    assert conductor.explain(2, 6, number, "another") == []
    end = End("KeyboardInterrupt")
    what = Explanation(number, ((0, "mine"), (2, "another")), ((1, end),))
    assert conductor.leave(1, end) == [
        Answer(0, 5, what),
        Answer(2, 6, what),
    ]
    # Also who comes later, and to a stop of long ago there is nothing to tell.
    assert conductor.explain(2, 7, number, "") == [Answer(2, 7, what)]
    assert conductor.explain(2, 8, 99, "") == [Answer(2, 8, Explanation(99, ()))]


# ---------------------------------------------------------------------- any order of events


@dataclass
class Process:
    """What a process does in its cell, and what became of it."""

    script: list[Word]
    raises: bool = False
    saves: bool = False  # says one more word when it is stopped
    waits_for: Word | None = None
    explains: Stop | None = None  # tells of its word next, and waits for the others
    has_begun: bool = False
    has_left: bool = False
    is_dead: bool = False
    is_pressed: bool = False
    granted: list[Word] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)

    @property
    def is_free(self) -> bool:
        return not (self.has_left or self.is_dead or self.waits_for)


class World:
    """Processes that do what their scripts say, in an order that is drawn."""

    def __init__(self, scripts: list[list[Word]], members: Processes, saves: bool) -> None:
        self.count = len(scripts)
        self.members = members
        self.conductor = Conductor(self.count)
        self.processes = [Process(list(script), saves=saves) for script in scripts]
        self.was_interrupted = False
        self.tokens = list(range(self.count))
        self.told: dict[int, Explanation] = {}
        for i, process in enumerate(self.processes):
            process.has_left = i not in members

    def take(self, decisions: list[Decision]) -> None:
        """Checks decisions, and hands them to the processes."""
        let_go: list[int] = []
        for answer in decisions:
            process = self.processes[answer.process]
            if isinstance(answer, Press):
                assert process.is_free or process.waits_for is EXPLANATION
                process.is_pressed = True
                continue
            asked, process.waits_for = process.waits_for, None
            assert asked is not None, "an answer that nobody waits for"
            if isinstance(answer.what, Explanation):
                assert asked is EXPLANATION
                self.check_told(answer.what)
                self.stop(process)
                continue
            if isinstance(answer.what, Go):
                process.granted.append(asked)
                assert answer.what.number == len(process.granted)
                let_go.append(answer.process)
                if set(let_go) == set(asked.participants):
                    let_go = []
                assert set(let_go) <= set(asked.participants), "granted to some only"
            else:
                self.check(answer.what, asked)
                process.stops.append(answer.what)
                if answer.what.kind in ("interrupted", "withdrawn"):
                    process.is_pressed &= answer.what.kind == "withdrawn"  # else it has been told
                    self.stop(process)
                else:
                    process.explains = answer.what
        assert not let_go, "granted to some only"

    def stop(self, process: Process) -> None:
        """A process raises; it may save something, with all others, before it leaves."""
        process.script = [word(*self.members, program=b"save")] if process.saves else []
        process.saves, process.raises = False, True

    def check_told(self, what: Explanation) -> None:
        """Fails unless it is what all processes of the stop are told, and who left has left."""
        assert self.told.setdefault(what.number, what) == what
        assert all(self.processes[q].has_left for q, _ in what.ends)

    def check(self, stop: Stop, asked: Word) -> None:
        """Fails unless the reason is true."""
        blamed = [q for side in stop.sides if side.word is None for q in side.processes]
        match stop.kind:
            case "left":
                assert blamed
                assert all(self.processes[q].has_left for q in blamed)
            case "dead":
                assert all(self.processes[q].is_dead for q in blamed)
            case "not asked":
                assert not set(blamed) & set(self.members)
            case "diverged":
                words = [side.word for side in stop.sides if side.word is not None]
                assert len({each.participants for each in words}) == 1
                assert len(words) > 1
                assert not words[0].agrees_with(words[1])
            case "ring":
                assert len({side.word for side in stop.sides}) > 1
            case "interrupted":
                assert self.was_interrupted

    def go_on(self, i: int, *, takes_signal: bool) -> None:
        """One process does the next thing; a signal may come before that, or be late."""
        process = self.processes[i]
        if not process.has_begun:
            process.has_begun = True
            self.take(self.conductor.begin(i, CELL, self.members))
        elif process.is_pressed and (takes_signal or not (process.script or process.explains)):
            process.is_pressed, process.explains = False, None
            self.stop(process)
            self.take(self.conductor.interrupt_raised(i))
        elif process.explains is not None:
            number, process.explains = process.explains.number, None
            process.waits_for = EXPLANATION
            self.take(self.conductor.explain(i, i, number, f"of {i}"))
        elif process.script:
            process.waits_for = process.script.pop(0)
            self.tokens[i] += self.count
            self.take(self.conductor.say(i, self.tokens[i], "main", process.waits_for))
        else:
            process.has_left = True
            error = "Error" if process.raises else ""
            self.take(self.conductor.leave(i, End(error)))

    def kill(self, i: int) -> None:
        process = self.processes[i]
        process.is_dead, process.waits_for = True, None
        self.take(self.conductor.die(i))

    def withdraw(self, i: int) -> None:
        """Something is raised in a process while it waits; its word has no answer yet."""
        asked = self.processes[i].waits_for
        if asked is not None and asked is not EXPLANATION:
            self.take(self.conductor.withdraw(i, self.tokens[i]))

    def interrupt(self) -> None:
        self.was_interrupted = True
        self.take(self.conductor.interrupt(CELL))

    def run(
        self, choose: Callable[[list[int]], tuple[int, bool]], events: list[tuple[int, str, int]]
    ) -> None:
        """Lets all come to their end; nobody may be left waiting."""
        step = 0
        while True:
            for at, what, who in events:
                if at == step and what == "die" and not self.processes[who].is_dead:
                    self.kill(who)
                if at == step and what == "interrupt":
                    self.interrupt()
                if at == step and what == "withdraw":
                    self.withdraw(who)
            free = [i for i, each in enumerate(self.processes) if each.is_free]
            if not free:
                break
            which, takes_signal = choose(free)
            self.go_on(which, takes_signal=takes_signal)
            step += 1
        stuck = [i for i, each in enumerate(self.processes) if each.waits_for]
        assert not stuck, f"{stuck} wait for ever: {self.conductor.waits()}"
        assert self.conductor.waits() == ()

    def assert_one_order(self) -> None:
        """Fails unless any two processes were let dispatch what both take part in in one order."""
        for (i, one), (j, other) in combinations(enumerate(self.processes), 2):
            mine = [each for each in one.granted if j in each.participants]
            its = [each for each in other.granted if i in each.participants]
            assert all(m.agrees_with(o) for m, o in zip(mine, its, strict=False))
            assert one.is_dead or other.is_dead or len(mine) == len(its)


COUNTS = st.integers(2, 5)


def chosen(data: Any) -> Callable[[list[int]], tuple[int, bool]]:
    """Returns what draws who goes on, and whether a signal reaches it first."""
    return lambda free: data.draw(st.tuples(st.sampled_from(free), st.booleans()))


@st.composite
def words(draw: Any, count: int, process: int | None = None) -> Word:
    participants = draw(st.sets(st.integers(0, count - 1), min_size=1))
    if process is not None:
        participants |= {process}
    whole = draw(st.booleans())
    return word(
        *(range(count) if whole else sorted(participants)),
        program=draw(st.sampled_from([b"a", b"b"])),
        inputs=draw(st.sampled_from([b"", b"x"])),
    )


@given(data=st.data())
def test_nobody_waits_for_ever(data: Any) -> None:
    count = data.draw(COUNTS)
    scripts = [data.draw(st.lists(words(count, i), max_size=5)) for i in range(count)]
    members = tuple(sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1))))
    if data.draw(st.booleans()):
        members = tuple(range(count))
    event = st.tuples(
        st.integers(0, 12),
        st.sampled_from(["die", "interrupt", "withdraw"]),
        st.integers(0, count - 1),
    )
    world = World(scripts, members, saves=data.draw(st.booleans()))
    world.run(chosen(data), data.draw(st.lists(event, max_size=3)))
    world.assert_one_order()


@given(data=st.data())
def test_what_agrees_is_let_go_whatever_the_order(data: Any) -> None:
    count = data.draw(COUNTS)
    whole = data.draw(st.lists(words(count), max_size=8))
    scripts = [[each for each in whole if i in each.participants] for i in range(count)]
    world = World(scripts, tuple(range(count)), saves=False)
    world.run(chosen(data), [])
    assert all(not process.stops for process in world.processes)
    assert [process.granted for process in world.processes] == scripts


@given(data=st.data())
def test_an_interrupt_finds_all_after_the_same_dispatch(data: Any) -> None:
    """Of a loop over all processes that is the same on all."""
    count, turns = data.draw(COUNTS), data.draw(st.integers(1, 6))
    loop = [word(*range(count), inputs=bytes([turn])) for turn in range(turns)]
    world = World([loop] * count, tuple(range(count)), saves=True)
    at = data.draw(st.integers(0, count * turns))
    world.run(chosen(data), [(at, "interrupt", 0)])
    done = {len([each for each in p.granted if each.program == b"step"]) for p in world.processes}
    assert len(done) == 1
    # What they do in the handler is agreed on, if all came to it.
    if all(process.raises for process in world.processes):
        assert all(p.granted[-1].program == b"save" for p in world.processes)
