"""Strict mode: processes agree on a dispatch before it runs, each told by each."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Collection
from multiprocessing.connection import (
    Client,
    Connection,
    Listener,
    answer_challenge,
    deliver_challenge,
)

from jaxnb.divergence import disagreement, sides
from jaxnb.engine import _jax_internals, interrupts
from jaxnb.engine.together import told
from jaxnb.errors import DivergenceError, JaxnbError
from jaxnb.model import Dispatch

_END = b"\n"
"""What ends a message; JSON has none within."""

_WORD, _LEFT, _TAKEN_BACK, _REFUSED = "word", "left", "taken back", "refused"
"""What is said: what is about to be dispatched; that this process has left the cell; that it does
not dispatch what it has said; that it was interrupted, and is about to dispatch something else."""

GREETING_SECONDS = 10.0
"""Who calls and has not shown by then that it knows the key is hung up on."""

_BUFFER_BYTES = 1 << 12
"""A message takes some hundred; a larger one makes it grow."""

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
        host: The address to listen on, from the first cell in strict mode on.
    """

    def __init__(self, process_index: int, key: bytes, host: str) -> None:
        self._me = process_index
        self._key = key
        self._host = host
        self._listener: Listener | None = None
        self._service: object = None
        self._peers: dict[int, _Peer] = {}
        self._changed = threading.Condition()
        self.one_at_a_time = threading.RLock()
        self._asked: frozenset[int] = frozenset()
        self._run = ""
        self._over: dict[tuple[int, ...], int] = {}  # by processes, the last attempt that has ended
        self._back = b""  # what messages of this cell begin with that take something back

    def begin(self, run: str, asked: Collection[int]) -> None:
        """Begins a cell.

        Args:
            run: Names it, on all processes.
            asked: The processes that run it; those must begin it too.
        """
        self._run, self._asked, self._over = run, frozenset(asked), {}
        self._back = _beginning([run, _TAKEN_BACK])
        client = _jax_internals.coordination_client()
        if self._service is not client:  # the group was formed anew, maybe with other processes
            self._service = client
            self._hang_up()
            client.key_value_set(f"jaxnb/agreement/{self._me}", json.dumps(self._listen()))
        for peer in sorted(self._asked - {self._me}):
            self._connect(peer)
        for known in list(self._peers.values()):
            known.begin(run)

    def _listen(self) -> tuple[str, int]:
        if self._listener is None:
            self._listener = Listener((self._host, 0), "AF_INET")  # _greet asks for the key
            threading.Thread(target=self._accept, name="jaxnb-agreement", daemon=True).start()
        host, port = self._listener.address
        return str(host), int(port)

    def _accept(self) -> None:
        assert self._listener is not None
        while True:
            try:
                connection = self._listener.accept()
            except OSError as error:  # whoever it was has gone again, or cannot be let in
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    time.sleep(FULL_SECONDS)  # nothing tells when a file was closed
                continue
            # Apart: one that says nothing must not keep the others waiting.
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: Connection) -> None:
        try:
            _wait_at_most(connection, GREETING_SECONDS)
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
            greeting = json.loads(connection.recv_bytes(1 << 10))
            _wait_at_most(connection, 0.0)
            self._add(int(greeting["from"]), connection)
        except Exception:  # whoever it was does not know the key, or has gone again
            connection.close()

    def _add(self, peer: int, connection: Connection) -> None:
        with connection, self._changed:
            if (before := self._peers.get(peer)) is not None:
                before.close()
            self._peers[peer] = _Peer(socket.socket(fileno=os.dup(connection.fileno())))
            self._changed.notify_all()

    def _connect(self, peer: int) -> None:
        """Connects two processes: the one with the higher index calls the other."""
        if peer > self._me:
            with self._changed:
                while peer not in self._peers:
                    self._changed.wait()
        elif peer not in self._peers:
            connection = Client(self._address_of(peer), "AF_INET", authkey=self._key)
            connection.send_bytes(json.dumps({"from": self._me}).encode())
            self._add(peer, connection)

    def _address_of(self, peer: int) -> tuple[str, int]:
        found = told(_jax_internals.coordination_client(), f"jaxnb/agreement/{peer}")
        assert found is not None  # without a deadline it waits until there is one
        host, port = json.loads(found)
        return host, port

    def _hang_up(self) -> None:
        with self._changed:
            for peer in self._peers.values():
                peer.close()
            self._peers.clear()

    def end(self, note: str) -> None:
        """Tells who still waits for this process that it has left the cell, and how."""
        left = _encoded([self._run, _LEFT, note])
        self._to(self._asked - {self._me}, lambda known: known.send(left))

    def agree(self, dispatch: Dispatch) -> None:
        """Waits until all processes of a dispatch are about to make it.

        Whoever calls holds ``one_at_a_time``, from the choice of the dispatch's number on: two
        threads must not both be the next.

        Raises:
            DivergenceError: They are about to make another, or none.
        """
        attempt = _Attempt(self._run, dispatch, self._over.get(dispatch.processes, 0) + 1)
        others = [peer for peer in dispatch.processes if peer != self._me]
        asked = self._asked.intersection(others)
        try:
            self._to(asked, lambda known: known.say(attempt.word))
            waiting = others
            while waiting:
                self._hear_all(waiting, attempt)
                waiting = [peer for peer in others if self._takes_back(peer, attempt)]
        except DivergenceError:
            self._note_over(dispatch.processes, attempt.number)
            self._to(asked, lambda known: known.send(attempt.taken_back(for_all=True)))
            raise
        except BaseException:  # it may be made again
            self._to(asked, lambda known: known.send(attempt.taken_back(for_all=False)))
            raise
        self._note_over(dispatch.processes, attempt.number)
        for peer in others:
            if (known := self._peers.get(peer)) is not None:
                known.word = None  # over too: the next dispatch need not look at it

    def _note_over(self, processes: tuple[int, ...], number: int) -> None:
        self._over[processes] = max(self._over.get(processes, 0), number)

    def _hear_all(self, others: Collection[int], attempt: _Attempt) -> None:
        mine = attempt.dispatch
        at: dict[int, Dispatch | None] = {self._me: mine}
        notes: dict[int, str] = {}
        for peer in others:
            at[peer] = its = self._hear(peer, attempt, notes)
            if its is not None and its.processes != mine.processes:
                self._note_over(its.processes, its.number)
                break  # it waits elsewhere, for this process too; others may do so for it
        if any(each is not mine for each in at.values()):
            raise DivergenceError(disagreement(sides(at, notes), mine))

    def _to(self, peers: Collection[int], say: Callable[[_Peer], None]) -> None:
        for peer in peers:
            try:
                say(self._peers[peer])
            except (KeyError, OSError) as error:  # it has died, or the group is being formed anew
                _raise_if_of_user(error)
                if (lost := self._peers.pop(peer, None)) is not None:
                    lost.close()

    def _known(self, peer: int) -> _Peer:
        known = self._peers.get(peer)
        if known is None:
            raise JaxnbError(f"process {peer} has died, or its connection was lost")
        return known

    def _hear(self, peer: int, attempt: _Attempt, notes: dict[int, str]) -> Dispatch | None:
        """Returns what a process is about to dispatch; the very same object if it is the same.

        Both have said what they do next that concerns the other, and neither goes on before the
        other has said the same. So a word about other processes than these is its answer too: it
        waits for this process to take part in that, which waits for it here.

        Args:
            peer: The process.
            attempt: What this process says.
            notes: Where it is told why a process says nothing.

        Returns:
            None if it has left the cell, was not asked to run it, or does not make this attempt.
        """
        if peer not in self._asked:
            notes[peer] = "was not asked to run the cell"
            return None
        known = self._known(peer)
        try:
            while True:
                its = self._word_of(known)
                if its is not None:
                    if attempt.is_equal(its):
                        return attempt.dispatch
                    if attempt.is_before(its) or self._is_final(known):
                        return its
                if known.has_given_up:
                    notes[peer] = "did not agree with another process"
                    return None
                if known.has_left:
                    notes[peer] = known.left_note
                    return None
                message = known.first()
                if message == attempt.word:  # most are: nothing need be made of it
                    known.word = message
                    known.drop_first()
                    if not known.has_more or not self._takes_back(peer, attempt):
                        return attempt.dispatch
                else:
                    self._take(known, message, attempt)
                    known.drop_first()
        except (EOFError, OSError) as error:
            _raise_if_of_user(error)
            raise JaxnbError(f"process {peer} has died, or its connection was lost") from error

    def _word_of(self, known: _Peer) -> Dispatch | None:
        """Returns what a process has said and not taken back, unless that is over."""
        if known.word is None:
            return None
        its = _as_dispatch(known.word)
        return its if its.number > self._over.get(its.processes, 0) else None

    def _takes_back(self, peer: int, attempt: _Attempt) -> bool:
        """Takes it if a process has taken back what it said last; returns whether."""
        known = self._known(peer)
        message = known.first_now()
        if message is None or not message.startswith(self._back):
            return False
        self._take(known, message, attempt)
        known.drop_first()
        return True

    def _is_final(self, known: _Peer) -> bool:
        """Whether both stay with what they have said, which is not the same.

        If this process was interrupted, the other one may have been too, or be about to: it may
        go on to what this one does now. If it stays, it either gives up, as it has no reason to
        wait, or says that it was interrupted before and waits too.
        """
        if interrupts.seconds_since_strike() is None or known.has_refused:
            return True
        if not known.is_refused and known.word is not None:
            known.is_refused = True
            known.send(_encoded([self._run, _REFUSED, _checksum(known.word)]))
        return False

    def _take(self, known: _Peer, message: bytes, attempt: _Attempt) -> None:
        """Takes a message; may be given it twice."""
        run, what, value, *rest = json.loads(message)
        if run != self._run:
            return
        if what == _LEFT:
            known.has_left, known.left_note = True, value
        elif what == _REFUSED:
            known.has_refused = value == known.said
        elif what == _TAKEN_BACK:
            number, for_all = rest
            processes = tuple(value)
            if for_all and processes == attempt.dispatch.processes:
                known.has_given_up |= number == attempt.number
            elif for_all:
                self._note_over(processes, number)
            known.has_given_up |= for_all and known.is_refused
            known.word, known.is_refused = None, False
        else:
            known.word, known.is_refused = message, False


class _Attempt:
    """An attempt to agree on a dispatch.

    Attempts are numbered by the processes that they are about. One that has ended, as all agree or
    as some do not, has ended for all of these; what was interrupted may be made again.

    Args:
        run: The cell.
        dispatch: What is to be dispatched.
        number: Which attempt over its processes this is, from 1.

    Attributes:
        word: What is said to the others: the same on all, if they are about to do the same.
    """

    def __init__(self, run: str, dispatch: Dispatch, number: int) -> None:
        self._run = run
        self.dispatch = dispatch
        self.number = number
        what = [dispatch.name, dispatch.fingerprint, dispatch.shapes, dispatch.line]
        self.word = _encoded([run, _WORD, dispatch.processes, number, *what, dispatch.inputs])

    def taken_back(self, *, for_all: bool) -> bytes:
        """Returns what says that it is not made.

        Args:
            for_all: By nobody, as processes do not agree; else not now.
        """
        processes = self.dispatch.processes
        return _encoded([self._run, _TAKEN_BACK, processes, self.number, for_all])

    def is_equal(self, its: Dispatch) -> bool:
        """Whether another process is about to do the same; it may do so at another line."""
        mine = self.dispatch
        said = (its.processes, its.number, its.fingerprint, its.inputs)
        return said == (mine.processes, self.number, mine.fingerprint, mine.inputs)

    def is_before(self, its: Dispatch) -> bool:
        """Whether another process has gone on to a later attempt over the same processes."""
        return its.processes == self.dispatch.processes and its.number > self.number


def _wait_at_most(connection: Connection, seconds: float) -> None:
    """Has reads from a connection fail after so many seconds; 0 for as long as it takes."""
    with socket.socket(fileno=os.dup(connection.fileno())) as shared:
        shared.settimeout(None)  # whatever the user has set by socket.setdefaulttimeout()
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(seconds), 0))


class _Peer:
    """A connection, and what has come over it.

    An interrupt may strike anywhere, also when the system has handed bytes over and Python has
    not been told yet how many. So that is not asked: they are put where only zeros were, and
    there is no zero in a message. It is read before it is removed, and may be read twice.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        connection.settimeout(None)  # whatever the user has set by socket.setdefaulttimeout()
        # Small messages go without waiting for the receipt of those before.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(_BUFFER_BYTES)
        self._forget()

    def _forget(self) -> None:
        self.word: bytes | None = None  # what it is about to dispatch
        self.is_refused = False  # that, by this process
        self.said = 0  # the checksum of what this process is about to dispatch
        self.has_refused = self.has_given_up = False  # that, by the other one
        self.has_left, self.left_note = False, ""

    @property
    def has_more(self) -> bool:
        """Whether something has come already that was not received."""
        return self._buffer[0] != 0

    def begin(self, run: str) -> None:
        """Begins a cell; what came of earlier ones is dropped.

        A process that dispatches nothing reads nothing: without this the system's memory for the
        connection would be full some day, and the other process would wait in sending.
        """
        self._forget()
        beginning = _beginning([run])
        while (message := self.first_now()) is not None and not message.startswith(beginning):
            self.drop_first()

    def send(self, message: bytes) -> None:
        """Sends a message; it is small, so this waits for nobody."""
        self._socket.sendall(message)

    def say(self, word: bytes) -> None:
        """Tells what this process is about to dispatch."""
        self.said = _checksum(word)
        self.is_refused = self.has_refused = self.has_given_up = False
        self.send(word)

    def first_now(self) -> bytes | None:
        """Returns what :meth:`first` does, if that has come; there may never be one."""
        try:
            return self.first(socket.MSG_DONTWAIT)
        except (EOFError, OSError) as error:
            _raise_if_of_user(error)
            return None

    def first(self, flags: int = 0) -> bytes:
        """Returns the first message that was not dropped; waits for it.

        Args:
            flags: How to ask the system.

        Raises:
            EOFError: There will be no more.
            OSError: The connection is broken, or was closed.
        """
        while (end := self._buffer.find(_END)) < 0:
            received = self._buffer.find(0)
            if received < 0:
                self._buffer = self._buffer + bytes(len(self._buffer))
                continue
            with memoryview(self._buffer) as whole, whole[received:] as free:
                if not self._socket.recv_into(free, flags=flags):
                    raise EOFError
        return bytes(self._buffer[: end + len(_END)])

    def drop_first(self) -> None:
        """Drops what :meth:`first` returns, and lets the next one be the first."""
        buffer = self._buffer
        end = buffer.find(_END) + len(_END)
        buffer[:] = buffer[end:] + bytes(end)  # at once, as the rest of what Python does in C

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()


def _raise_if_of_user(error: Exception) -> None:
    """Raises what a signal's handler of the user's may have raised: TimeoutError is an OSError."""
    if isinstance(error, OSError) and error.errno is None:
        raise error


def _encoded(message: list[object]) -> bytes:
    return json.dumps(message).encode() + _END


def _beginning(message: list[object]) -> bytes:
    """Returns what all messages begin with that begin with these items."""
    return json.dumps(message).encode().removesuffix(b"]")


def _checksum(word: bytes) -> int:
    return zlib.crc32(word)


def _as_dispatch(message: bytes) -> Dispatch:
    _, _, processes, number, name, fingerprint, shapes, line, inputs = json.loads(message)
    return Dispatch(
        number=number,
        name=name,
        fingerprint=fingerprint,
        shapes=shapes,
        processes=tuple(processes),
        line=line,
        seconds=0.0,
        inputs=inputs,
    )
