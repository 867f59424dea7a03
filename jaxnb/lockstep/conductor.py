"""Pure: lets all processes dispatch a computation that spans them, or none.

A state machine without a clock, sockets or threads: each call reports an event and returns the
answers to send now. It decides by the events alone, never by time: in whatever order they come, no
process waits for something that can no longer happen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from jaxnb.lockstep.conductor_state import Process, Round, Talks, Waiting, may_come
from jaxnb.lockstep.messages import (
    Answer,
    Asking,
    End,
    Go,
    Lane,
    Press,
    Processes,
    Side,
    Stop,
    StopKind,
    Word,
    joined,
)

Decision = Answer | Press
"""What the conductor sends: an answer to a thread, or a signal."""


class Conductor:
    """Grants or stops the dispatches that processes request.

    A *word* is a request to dispatch one computation. On the main lane, it is granted when the
    main threads of all participants have sent the same word; on the other lane, when some thread of
    each participant has. Grants are numbered per process, and grants that concern several processes
    come in the same order on all of them.

    A word is stopped as soon as it can no longer be granted: a participant has left the cell, was
    not asked to run it, or is dead, or waits with another word that cannot be granted first. All
    participants of the stopped words get the same stop: waiting ones at once, those in Python as
    the answer to their next word in the cell.

    Args:
        num_processes: Size of the group.
    """

    def __init__(self, num_processes: int) -> None:
        self._processes = [Process() for _ in range(num_processes)]
        self._members: dict[int, frozenset[int]] = {}
        self._late: dict[int, dict[int, Stop]] = {}
        self._stops = 0
        self._talks = Talks()
        self._round: Round | None = None  # the simple case under way; _decide ends it

    # ------------------------------------------------------------------ what happens

    def begin(self, process: int, cell: int, members: Iterable[int]) -> list[Decision]:
        """A process begins a cell, which these processes were asked to run."""
        state = self._processes[process]
        state.cell, state.is_pressed = cell, False
        # Processes that began earlier may have had a stop that applies to this one too: it gets it
        # with its next word. It may say none, so it is also sent a signal for an interrupt.
        state.due = self._late.get(cell, {}).pop(process, None)
        is_interrupted = state.due is not None and state.due.kind == "interrupted"
        presses: list[Decision] = [Press(process)] if is_interrupted else []
        if cell not in self._members:
            self._members[cell] = frozenset(members)
        for old_cell in [number for number in {*self._members, *self._late} if number < cell]:
            if all(each.cell != old_cell for each in self._processes):
                self._members.pop(old_cell, None)
                self._late.pop(old_cell, None)
                self._talks.forget(old_cell)
        return presses  # it may say any word now: no other can be granted or stopped for it

    def say(
        self, process: int, token: int, lane: Lane, word: Word, text: str = ""
    ) -> list[Decision]:
        """A thread of a process is about to dispatch, and waits for the answer."""
        state = self._processes[process]
        waiting = Waiting(process, token, word, text)
        if lane == "other":
            state.others[token] = waiting
            return self._decide()
        if state.due is not None:
            stop, state.due = state.due, None
            was_pressed = stop.kind == "interrupted" and state.is_pressed
            return [self._answer(waiting, replace(stop, was_pressed=was_pressed))]
        state.main = waiting
        if self._joins_round(waiting, state.cell):
            assert self._round is not None
            self._round.missing -= 1
            if self._round.missing:
                return []
            if all(self._processes[q].main is not None for q in word.participants):
                self._round = None
                return list[Decision](self._grant(word))
        return self._decide()

    def _joins_round(self, waiting: Waiting, cell: int) -> bool:
        """Returns whether a word belongs to the round; may begin one with it."""
        if (current := self._round) is not None:
            return current.cell == cell and current.word.agrees_with(waiting.word)
        if self._talks or not self._is_simple(waiting, cell):
            return False
        late = [q for q in waiting.word.participants if self._processes[q].main is None]
        self._round = Round(waiting.word, cell, len(late) + 1)
        return True

    def withdraw(self, process: int, token: int) -> list[Decision]:
        """A thread stops waiting. An answer that it was already given stays valid."""
        state = self._processes[process]
        main = state.main if state.main is not None and state.main.token == token else None
        waiting = main or state.others.get(token)
        if waiting is None:
            return []
        return [self._answer(waiting, self._new_stop("withdrawn")), *self._decide()]

    def _is_simple(self, waiting: Waiting, cell: int) -> bool:
        """Whether all who wait say this word, and all who take part may still say it."""
        if cell == 0 or not all(w.word.agrees_with(waiting.word) for w in self._waiting_main()):
            return False
        return all(self._gone(q, cell) is None for q in waiting.word.participants)

    def leave(self, process: int, end: End) -> list[Decision]:
        """A process has left its cell; it may report this more than once."""
        state = self._processes[process]
        if not state.cell:
            return []
        state.left, state.cell, state.due = (state.cell, end), 0, None
        state.is_pressed = False
        return self._decide()

    def die(self, process: int) -> list[Decision]:
        """A process has ended: its threads wait for nothing any more."""
        state = self._processes[process]
        state.is_dead, state.main, state.due = True, None, None
        state.others.clear()
        self._talks.die(process)
        return self._decide()

    def explain(self, process: int, token: int, number: int, text: str) -> list[Decision]:
        """A stopped process describes its word and asks for the others' descriptions."""
        told = self._talks.tell(process, token, number, text)
        return [*told, *self._decide()]

    def held_up(self) -> frozenset[int]:
        """Returns stops whose explanation waits for processes but could be given without them."""
        return self._talks.held_up()

    def explain_now(self, stops: Iterable[int]) -> list[Decision]:
        """Explains these stops now, without waiting for the missing processes."""
        self._talks.explain_now(stops)
        return self._decide()

    def interrupt(self, cell: int) -> list[Decision]:
        """A cell is to be interrupted on all its processes."""
        return self._interrupt(cell, except_for=None)

    def interrupt_raised(self, process: int) -> list[Decision]:
        """A signal has raised KeyboardInterrupt in a process's main thread.

        Unless the conductor itself requested that, the cell is interrupted on the others too.
        """
        state = self._processes[process]
        is_ours = self._take_signal(state)
        self.interrupt_handled(process)
        return [] if is_ours or not state.cell else self._interrupt(state.cell, except_for=process)

    def interrupt_handled(self, process: int) -> list[Decision]:
        """A user's own signal handler runs for SIGINT; that counts as this process's interrupt.

        It does not interrupt the other processes.
        """
        state = self._processes[process]
        state.is_pressed = False
        if state.due is not None and state.due.kind == "interrupted":
            state.due = None
        return []

    def interrupt_held(self, process: int) -> list[Decision]:
        """SIGINT came while a process's main thread waited or ran a granted dispatch.

        It raised nothing there. Unless the conductor itself requested it, the cell is interrupted
        on all its processes, including this one.
        """
        state = self._processes[process]
        if self._take_signal(state) or not state.cell:
            return []
        return self._interrupt(state.cell, except_for=None)

    def _take_signal(self, state: Process) -> bool:
        """Notes a signal that a process reports; returns whether the conductor requested it."""
        was_pressed, state.is_pressed = state.is_pressed, False
        return was_pressed or (state.due is not None and state.due.kind == "interrupted")

    def claim_signal(self, process: int) -> bool:
        """Returns whether a process is still to be sent a signal; if so, it counts as sent."""
        state = self._processes[process]
        is_due = state.due is not None and state.due.kind == "interrupted" and not state.is_dead
        state.is_pressed = state.is_pressed or is_due
        return is_due

    def _interrupt(self, cell: int, except_for: int | None) -> list[Decision]:
        stop = self._new_stop("interrupted")
        # Until a process begins the cell, its members are unknown here.
        members = self._members.get(cell, range(len(self._processes)))
        decisions: list[Decision] = []
        self._talks.end(cell)
        for process, state in enumerate(self._processes):
            if state.is_dead or process == except_for:
                continue
            if state.cell != cell:
                if state.left[0] < cell and process in members:
                    self._late.setdefault(cell, {})[process] = stop
            elif state.main is not None:
                decisions.append(self._answer(state.main, stop))
            else:
                state.due = stop
                decisions.append(Press(process))
        return [*decisions, *self._decide()]

    # ------------------------------------------------------------------ what is known

    def waits(self) -> tuple[Asking, ...]:
        """Returns who waits for an answer."""
        main = [Asking(w.process, "main", w.token, w.word) for w in self._waiting_main()]
        others = [Asking(w.process, "other", w.token, w.word) for w in self._waiting_other()]
        return (*main, *others)

    def _has_said(self, process: int, word: Word) -> bool:
        main = self._processes[process].main
        return main is not None and main.word.agrees_with(word)

    # ------------------------------------------------------------------ what is decided

    def _decide(self) -> list[Decision]:
        """Grants and stops until nothing more follows from what is known."""
        self._round = None
        decisions: list[Decision] = []
        if not self._talks and not any(each.main or each.others for each in self._processes):
            return decisions  # nobody waits, as when a cell ends
        while found := (
            self._grant_main() or self._grant_other() or self._stop_some() or self._explain()
        ):
            decisions += found
        return decisions

    def _grant_main(self) -> list[Answer]:
        for word, _ in self._words():
            if all(self._has_said(q, word) for q in word.participants):
                return self._grant(word)
        return []

    def _grant(self, word: Word) -> list[Answer]:
        those = [each for q in word.participants if (each := self._processes[q].main) is not None]
        return self._let_go(those)

    def _let_go(self, those: Sequence[Waiting]) -> list[Answer]:
        told = tuple((each.process, each.text) for each in those if each.text)
        return [self._go(each, told) for each in those]

    def _grant_other(self) -> list[Answer]:
        for waiting in self._waiting_other():
            word = waiting.word
            those = [each for q in word.participants if (each := self._other(q, word)) is not None]
            if len(those) == len(word.participants):
                return self._let_go(those)
        return []

    def _other(self, process: int, word: Word) -> Waiting | None:
        """Returns which of a process's other threads says a word; the one that said it first."""
        others = self._processes[process].others.values()
        return next((each for each in others if each.word.agrees_with(word)), None)

    def _stop_some(self) -> list[Answer]:
        for word, cell in self._words():
            for q in word.participants:
                if (gone := self._gone(q, cell)) is not None:
                    return self._stop_missing(word, gone[0])
        for waiting in self._waiting_other():
            word = waiting.word
            if dead := [q for q in word.participants if self._processes[q].is_dead]:
                stop = self._new_stop("dead", self._side(word), Side(tuple(dead)))
                return [
                    self._answer(each, stop)
                    for q in word.participants
                    if (each := self._other(q, word)) is not None
                ]
        return self._stop_stuck()

    def _gone(self, process: int, cell: int) -> tuple[StopKind, Side] | None:
        """Returns why a process will say no word of a cell any more; None if it may."""
        state = self._processes[process]
        if state.is_dead:
            return "dead", Side((process,))
        if process not in self._members.get(cell, (process,)):
            return "not asked", Side((process,))
        if state.cell != cell and state.left[0] >= cell:
            return "left", Side((process,), end=state.left[1])
        return None

    def _stop_missing(self, word: Word, kind: StopKind) -> list[Answer]:
        # All that are gone for the same reason are told together.
        cell = self._processes[self._who(word)[0]].cell
        gone = {q: self._gone(q, cell) for q in word.participants}
        blamed = [found[1] for found in gone.values() if found is not None and found[0] == kind]
        return self._stop_words([word], kind, (self._side(word), *joined(blamed)))

    def _stop_stuck(self) -> list[Answer]:
        """Stops the words that wait for one another, so that none can ever be granted."""
        words: list[Word] = []
        for said, _ in self._words():
            if not any(said.agrees_with(word) for word in words):
                words.append(said)
        possible: list[Word] = []
        has_grown = True
        while has_grown:
            rest = [word for word in words if not any(word is each for each in possible)]
            found = [word for word in rest if may_come(self._processes, word, possible)]
            possible += found
            has_grown = bool(found)
        stuck = [word for word in words if not any(word is each for each in possible)]
        if not stuck:
            return []
        # Of words that wait for each other, those over the same processes have diverged.
        first = stuck[0].participants
        alike = [word for word in stuck if word.participants == first]
        kind: StopKind = "diverged" if len(alike) > 1 else "ring"
        those = alike if kind == "diverged" else stuck
        return self._stop_words(those, kind, tuple(map(self._side, those)))

    def _explain(self) -> list[Answer]:
        return self._talks.answers(self._can_tell, self._end_of)

    def _can_tell(self, process: int, cell: int) -> bool:
        """Whether a process may still describe its word without another process going on first."""
        return self._processes[process].main is None and self._gone(process, cell) is None

    def _end_of(self, process: int, cell: int) -> End | None:
        left, end = self._processes[process].left
        return end if left == cell else None

    def _stop_words(
        self, words: Sequence[Word], kind: StopKind, sides: tuple[Side, ...]
    ) -> list[Answer]:
        """Stops words; participants that run Python get the stop as the answer to their next word.

        So do those that have yet to begin the cell.
        """
        stop = self._new_stop(kind, *sides)
        said = [side.processes[0] for side in sides if side.word is not None]
        cell = self._processes[said[0]].cell
        everyone = frozenset(q for word in words for q in word.participants)
        # If only the inputs differ, it may be one computation on arrays that the processes have
        # numbered differently. Only the descriptions of all participants together can show that.
        are_inputs = kind == "diverged" and len({word.program for word in words}) == 1
        self._talks.begin(stop.number, cell, everyone, must_hear_all=are_inputs)
        answers = []
        for process in sorted(everyone):
            state = self._processes[process]
            if state.main is not None and any(state.main.word.agrees_with(w) for w in words):
                answers.append(self._answer(state.main, stop))
            elif state.cell == cell and not state.is_dead:
                state.due = state.due or stop
            elif state.left[0] < cell and not state.is_dead:
                self._late.setdefault(cell, {}).setdefault(process, stop)
        return answers

    # ------------------------------------------------------------------ parts

    def _waiting_main(self) -> Iterator[Waiting]:
        return (each.main for each in self._processes if each.main is not None)

    def _words(self) -> list[tuple[Word, int]]:
        """Returns the words of main threads, with their cells: each once, however many say it."""
        found: list[tuple[Word, int]] = []
        for process, _, word, _ in self._waiting_main():
            cell = self._processes[process].cell
            if not any(known == cell and word.agrees_with(each) for each, known in found):
                found.append((word, cell))
        return found

    def _waiting_other(self) -> Iterator[Waiting]:
        return (one for each in self._processes for one in each.others.values())

    def _who(self, word: Word) -> Processes:
        return tuple(q for q in word.participants if self._has_said(q, word))

    def _side(self, word: Word) -> Side:
        """Returns who waits with a word, in main threads or else in others."""
        said = self._who(word) or tuple(
            q for q in word.participants if self._other(q, word) is not None
        )
        return Side(said, word=word)

    def _new_stop(self, kind: StopKind, *sides: Side) -> Stop:
        self._stops += 1
        return Stop(self._stops, kind, sides)

    def _go(self, waiting: Waiting, told: tuple[tuple[int, str], ...]) -> Answer:
        state = self._processes[waiting.process]
        state.granted += 1
        return self._answer(waiting, Go(state.granted, told))

    def _answer(self, waiting: Waiting, what: Go | Stop) -> Answer:
        self._processes[waiting.process].answer(waiting)
        return Answer(waiting.process, waiting.token, what)
