"""Strict mode: processes agree on a dispatch before it runs, each told by each."""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from multiprocessing.connection import (
    Connection,
    Listener,
    answer_challenge,
    deliver_challenge,
)
from typing import Any

from jaxnb.divergence import disagreement, sides, unequal_replicas_text
from jaxnb.engine import _jax_internals, interrupts
from jaxnb.engine.agreement_inputs import exchanged
from jaxnb.engine.agreement_peers import (
    Peer,
    call,
    is_of_this_user,
    listen,
    name_of,
    raise_if_of_user,
    wait_at_most,
)
from jaxnb.engine.agreement_words import (
    GIVEN_UP,
    LEFT,
    REFUSED,
    TAKEN_BACK,
    Attempt,
    beginning,
    checksum,
    encoded,
)
from jaxnb.engine.together import told
from jaxnb.errors import DivergenceError, JaxnbError
from jaxnb.lockstep.replicas import unequal_replicas
from jaxnb.model import Agreeing, Dispatch
from jaxnb.model.origins import Argument
from jaxnb.provenance import arguments_text, differ_in_number_only, differing_arguments

GREETING_SECONDS = 10.0
"""Who calls and has not shown by then that it knows the key is hung up on."""

MOST_GREETINGS = 256
"""So many callers may be on their way to show that they know the key; more are hung up on. That
is over TCP, where anybody can call; those of a group are fewer."""

FULL_SECONDS = 0.5
"""Where this process may open no more files, it looks again for callers so late."""


class Agreement:
    """This process's part in agreeing on dispatches.

    Every two processes that run a cell in strict mode have a connection, on which each proves to
    the other that it knows the cluster's key. Before a dispatch each sends to all others that it
    spans what it is about to dispatch, and reads what they send. Who leaves the cell says so too.
    The coordination service could carry that, but takes some 0.3 ms a message.

    Args:
        process_index: This process.
        key: The cluster's key.
        host: The address to listen on, from the first cell that is recorded on, where there is no
            folder.
        folder: Where the socket is that it then listens on, which only this user can reach.

    Attributes:
        answer: Answers what another process asks (:meth:`ask`), on the connection; in a thread.
    """

    def __init__(self, process_index: int, key: bytes, host: str, folder: str) -> None:
        self._me = process_index
        self._key = key
        self._host, self._folder = host, folder
        self._greetings = threading.BoundedSemaphore(MOST_GREETINGS)
        self._listener: Listener | None = None
        self._service = 0  # which of those that this process has connected to
        self._is_published = False  # where this process listens, on that service
        self._peers: dict[int, Peer] = {}
        self._changed = threading.Condition()
        self.one_at_a_time = threading.RLock()
        self.arguments: Callable[[tuple[int, ...], int], list[Argument]] = lambda *_: []
        """Returns the global arrays that a dispatch is to be given here."""
        self.are_one: Callable[[Mapping[int, Sequence[Argument]]], None] = lambda _: None
        """Told which arrays processes gave to a dispatch that are parts of the same ones."""
        self._asked: frozenset[int] = frozenset()
        self._run = ""
        self._over: dict[tuple[int, ...], int] = {}  # by processes, the last attempt that all made
        self._last_words = b""  # what is said as it has given up, if it has in this cell
        self._has_told = False  # that, to all
        self._where = ""  # it has
        self._waits: tuple[Attempt, int] | None = None  # for which process
        self._ring = ""  # what is said of that, if it waits for this one too
        self._asides: tuple[bytes, ...] = ()  # what messages begin with that follow a word
        self.answer: Callable[[dict[str, Any], Connection], None] | None = None

    def begin(self, run: str, asked: Collection[int]) -> None:
        """Begins a cell.

        Args:
            run: Names it, on all processes.
            asked: The processes that run it; those must begin it too.
        """
        self._run, self._asked = run, frozenset(asked)
        self._over, self._last_words, self._has_told = {}, b"", False
        self._ring = ""
        self._asides = tuple(beginning(run, what) for what in (TAKEN_BACK, GIVEN_UP, REFUSED))
        self.be_reachable()
        for peer in sorted(self._asked - {self._me}):
            self._connect(peer)
        for known in list(self._peers.values()):
            known.begin(run)

    def be_reachable(self) -> None:
        """Listens to the other processes, and publishes where, unless it does already."""
        client = _jax_internals.coordination_client()
        service = _jax_internals.connections()
        if self._service != service:  # the group has reconnected, maybe with other processes
            self._hang_up()
            self._is_published = False
            self._service = service
        if not self._is_published:  # nor was it if this has failed before, or was interrupted
            key = f"jaxnb/agreement/{self._me}"
            client.key_value_set(key, name_of(self._listen()), allow_overwrite=True)
            self._is_published = True

    def ask(self, peer: int, question: dict[str, Any]) -> dict[str, Any] | None:
        """Asks another process something, which a thread of it answers; waits for that.

        Returns:
            The answer; None if it has none to give, or has died.
        """
        try:
            with call(self._name_of(peer), self._key) as connection:
                connection.send_bytes(json.dumps({"from": self._me, "asks": question}).encode())
                answer: dict[str, Any] = json.loads(connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise_if_of_user(error)
            return None
        return answer or None

    def _listen(self) -> Listener:
        if self._listener is None:
            self._listener = listen(self._host, self._folder)  # _greet asks for the key
            threading.Thread(target=self._accept, name="jaxnb-agreement", daemon=True).start()
        return self._listener

    def _accept(self) -> None:
        assert self._listener is not None
        while True:
            try:
                connection = self._listener.accept()
            except OSError as error:  # whoever it was has gone again, or cannot be let in
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    time.sleep(FULL_SECONDS)  # nothing tells when a file was closed
                continue
            if not is_of_this_user(connection) or not self._greetings.acquire(blocking=False):
                connection.close()
                continue
            # Apart: one that says nothing must not keep the others waiting.
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: Connection) -> None:
        try:
            wait_at_most(connection, GREETING_SECONDS)
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
            greeting = json.loads(connection.recv_bytes(1 << 10))
            wait_at_most(connection, 0.0)
            if (question := greeting.get("asks")) is not None and self.answer is not None:
                with connection:
                    self.answer(question, connection)
                return
            self._add(int(greeting["from"]), connection)
        except Exception:  # whoever it was does not know the key, or has gone again
            connection.close()
        finally:
            self._greetings.release()

    def _add(self, peer: int, connection: Connection) -> None:
        with connection, self._changed:
            if (before := self._peers.get(peer)) is not None:
                before.close()
            self._peers[peer] = Peer(socket.socket(fileno=os.dup(connection.fileno())))
            self._changed.notify_all()

    def _connect(self, peer: int) -> None:
        """Connects two processes: the one with the higher index calls the other."""
        if peer > self._me:
            with self._changed:
                while peer not in self._peers:
                    self._changed.wait()
        elif peer not in self._peers:
            connection = call(self._name_of(peer), self._key)
            connection.send_bytes(json.dumps({"from": self._me}).encode())
            self._add(peer, connection)

    def _name_of(self, peer: int) -> str:
        found = told(_jax_internals.coordination_client(), f"jaxnb/agreement/{peer}")
        assert found is not None  # without a deadline it waits until there is one
        return found

    def _hang_up(self) -> None:
        with self._changed:
            for peer in self._peers.values():
                peer.close()
            self._peers.clear()

    def end(self, note: str) -> None:
        """Tells who still waits for this process that it has left the cell, and how."""
        left = encoded(self._run, LEFT, note)
        self._to(self._asked - {self._me}, lambda known: known.send(left))

    def agree(self, dispatch: Dispatch) -> None:
        """Waits until all processes of a dispatch are about to make it.

        Whoever calls holds ``one_at_a_time``, from the choice of the dispatch's number on: two
        threads must not both be the next.

        Raises:
            DivergenceError: They are about to make another, or none; or this process has not
                agreed with others before, in this cell. Code may catch that and go on, each process
                in its own way: no count of what they have skipped would tell what belongs together.
        """
        if self._last_words:
            self._tell_last_words()
            raise DivergenceError(
                f"The processes did not agree{self._where}, earlier in this cell: none of its "
                "later computations over several processes runs. Run what follows in another cell."
            )
        attempt = Attempt(self._run, self._over.get(dispatch.processes, 0) + 1, dispatch)
        others = [peer for peer in dispatch.processes if peer != self._me]
        asked = self._asked.intersection(others)
        try:
            self._to(asked, lambda known: known.say(attempt.word))
            waiting = others
            while waiting:
                self._hear_all(waiting, attempt)
                waiting = self._who_take_back(others)
        except BaseException as error:
            if self._ring:
                self._give_up(attempt)
                raise DivergenceError(self._ring) from None
            if isinstance(error, DivergenceError):
                self._give_up(attempt)
            else:  # it may be made again
                self._to(asked, lambda known: known.send(attempt.taken_back))
            raise
        finally:
            self._waits = None
        self._over[attempt.processes] = attempt.number
        self._ring = ""  # it was none, or an interrupt has ended it
        for peer in others:
            if (known := self._peers.get(peer)) is not None:
                known.word = None  # over too: the next dispatch need not look at it

    def waits(self) -> Agreeing | None:
        """Returns what this process waits to agree on; any thread may ask."""
        if (waits := self._waits) is None:
            return None
        attempt, peer = waits
        return Agreeing(attempt.dispatch, attempt.number, peer)

    def end_ring(self, text: str) -> None:
        """Has what this process waits to agree on end when it is interrupted, or another gives up.

        Args:
            text: The message of the :class:`DivergenceError` that it ends with.
        """
        self._ring = text

    def _give_up(self, attempt: Attempt) -> None:
        """Has this process take part in nothing more in this cell, and tells all of it."""
        line = attempt.dispatch.line
        self._where = f" at line {line}" if line is not None else ""
        self._last_words = attempt.given_up(f"did not agree with another process{self._where}")
        self._tell_last_words()

    def _tell_last_words(self) -> None:
        """Tells all once; an interrupt may strike before, and code go on: then all again."""
        if not self._has_told:  # who reads nothing more would have others wait in sending
            self._to(self._asked - {self._me}, lambda known: known.send(self._last_words))
            self._has_told = True

    def _hear_all(self, others: Collection[int], attempt: Attempt) -> None:
        mine = attempt.dispatch
        at: dict[int, Dispatch | None] = {self._me: mine}
        notes: dict[int, str] = {}
        for peer in others:
            its = self._hear(peer, attempt, notes)
            at[peer] = None if its is None else its.dispatch
            if its is not None and its.processes != attempt.processes:
                break  # it waits elsewhere, for this process too; others may do so for it
        if any(each is not mine for each in at.values()):
            given, is_same = self._given(at, mine)
            if not (is_same and differ_in_number_only(given, mine.processes)):
                text = arguments_text(differing_arguments(given))
                raise DivergenceError(
                    disagreement(sides(at, notes), mine) + (f" {text}" if text else "")
                )
            self.are_one(given)
        if differing := unequal_replicas(self._said(others, attempt)):
            raise DivergenceError(unequal_replicas_text(mine, differing))

    def _said(self, others: Collection[int], attempt: Attempt) -> dict[int, Dispatch]:
        """Returns a dispatch on which all agree, but for its replicas, as each has put it."""
        said = {self._me: attempt.dispatch}
        for peer in others:
            word = self._known(peer).word or attempt.word
            if word != attempt.word:
                said[peer] = Attempt.of_word(word).dispatch
            elif attempt.dispatch.replicas:
                said[peer] = attempt.dispatch
        return said

    def _given(
        self, at: Mapping[int, Dispatch | None], mine: Dispatch
    ) -> tuple[dict[int, list[Argument]], bool]:
        """Returns which arrays are given, where all are about to run the same computation."""
        others = {i: each for i, each in at.items() if each is not None and i != self._me}
        same = (mine.processes, mine.number, mine.fingerprint)
        if set(mine.processes) != set(at) or any(
            each is None or (each.processes, each.number, each.fingerprint) != same
            for each in at.values()
        ):
            return {}, False
        given = self.arguments(mine.processes, mine.number)
        return exchanged(self._run, self._me, mine, given, others)

    def _to(self, peers: Collection[int], say: Callable[[Peer], None]) -> None:
        for peer in peers:
            known = self._peers.get(peer)
            if known is None:  # this process itself, or one whose connection was lost
                continue
            try:
                say(known)
            except OSError as error:  # it has died, or the group is being formed anew
                raise_if_of_user(error)
                if (lost := self._peers.pop(peer, None)) is not None:
                    lost.close()

    def _known(self, peer: int) -> Peer:
        known = self._peers.get(peer)
        if known is None:
            raise JaxnbError(f"process {peer} has died, or its connection was lost")
        return known

    def _hear(self, peer: int, attempt: Attempt, notes: dict[int, str]) -> Attempt | None:
        """Returns what a process is about to do; the very same object if it is the same.

        Both have said what they do next that concerns the other, and neither goes on before the
        other has said the same. So a word about other processes than these is its answer too: it
        waits for this process to take part in that, which waits for it here.

        Args:
            peer: The process.
            attempt: What this process says.
            notes: Where it is told why a process says nothing.

        Returns:
            None if it has left the cell, was not asked to run it, or has given up.
        """
        if peer not in self._asked:
            notes[peer] = "was not asked to run the cell"
            return None
        known = self._known(peer)
        self._waits = attempt, peer
        try:
            if known.says(attempt.word):  # most do: nothing need be made of it
                return attempt
            while True:
                its = self._word_of(known)
                if its is not None:
                    if attempt.is_equal(its):
                        return attempt
                    if attempt.is_before(its):
                        return its
                    has_taken_back = self._takes_back(peer)
                    if known.has_left:
                        return its  # that is why
                    if has_taken_back:
                        continue
                    if self._is_final(known):
                        return its
                if known.has_left:
                    notes[peer] = known.left_note
                    return None
                self._take(known, known.first())
                known.drop_first()
        except (EOFError, OSError) as error:
            raise_if_of_user(error)
            raise JaxnbError(f"process {peer} has died, or its connection was lost") from error

    def _word_of(self, known: Peer) -> Attempt | None:
        """Returns what a process has said and not taken back, unless that is over."""
        if known.word is None:
            return None
        its = Attempt.of_word(known.word)
        return its if its.number > self._over.get(its.processes, 0) else None

    def _who_take_back(self, others: Collection[int]) -> list[int]:
        """Returns who has said a word, and has taken it back while others were heard."""
        known = {peer: self._known(peer) for peer in others}
        heard = select.poll()
        for each in known.values():
            if each.fileno() >= 0:
                heard.register(each, select.POLLIN)
        more = {file for file, _ in heard.poll(0)}
        said_more = [p for p, each in known.items() if each.has_more or each.fileno() in more]
        return [peer for peer in said_more if self._takes_back(peer)]

    def _takes_back(self, peer: int) -> bool:
        """Returns whether a process, which has said a word, has taken it back.

        What has come is taken up to there, or up to what it does after that word.
        """
        known = self._known(peer)
        while known.word is not None and (message := known.first_now()) is not None:
            if message != known.word:  # an interrupt may have struck before it was dropped
                if not message.startswith(self._asides):
                    break
                self._take(known, message)
            known.drop_first()
        return known.word is None

    def _is_final(self, known: Peer) -> bool:
        """Whether both stay with what they have said, which is not the same.

        If this process was interrupted, the other one may have been too, or be about to: it may
        go on to what this one does now. If it stays, it either gives up, as it has no reason to
        wait, or says that it was interrupted before and waits too.
        """
        if interrupts.seconds_since_strike() is None or known.has_refused:
            return True
        if not known.is_refused and known.word is not None:
            known.is_refused = True
            known.send(encoded(self._run, REFUSED, checksum(known.word)))
        return False

    def _take(self, known: Peer, message: bytes) -> None:
        """Takes a message; may be given it twice."""
        run, what, value, *rest = json.loads(message)
        if run != self._run:
            return
        if what == LEFT:
            known.has_left, known.left_note = True, value
        elif what == REFUSED:
            known.has_refused = value == checksum(known.said)
        elif what == TAKEN_BACK:
            self._take_back(known, *rest)
        elif what == GIVEN_UP:
            known.has_left, known.left_note = True, value
            self._take_back(known, *rest)
        else:
            known.word, known.is_refused = message, False

    def _take_back(self, known: Peer, processes: list[int], number: int) -> None:
        # What was agreed on before the other one gave something else up stays agreed on.
        if known.word is not None:
            its = Attempt.of_word(known.word)
            if (list(its.processes), its.number) == (processes, number):
                known.word, known.is_refused = None, False
