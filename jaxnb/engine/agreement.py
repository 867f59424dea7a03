"""Strict mode: processes agree on a dispatch before it runs, each told by each."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Collection
from multiprocessing.connection import (
    Client,
    Connection,
    Listener,
    answer_challenge,
    deliver_challenge,
)

from jaxnb.divergence import disagreement, sides
from jaxnb.engine import _jax_internals
from jaxnb.engine.together import told
from jaxnb.errors import DivergenceError, JaxnbError
from jaxnb.model import Dispatch

_HEADER = struct.Struct("!i")


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

    def begin(self, run: str, asked: Collection[int]) -> None:
        """Begins a cell.

        Args:
            run: Names it, on all processes.
            asked: The processes that run it; those must begin it too.
        """
        self._run, self._asked = run, frozenset(asked)
        client = _jax_internals.coordination_client()
        if self._service is not client:  # the group was formed anew, maybe with other processes
            self._service = client
            self._hang_up()
            client.key_value_set(f"jaxnb/agreement/{self._me}", json.dumps(self._listen()))
        for peer in sorted(self._asked - {self._me}):
            self._connect(peer)

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
            except OSError:  # whoever it was has gone again
                continue
            # Apart: one that says nothing must not keep the others waiting.
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: Connection) -> None:
        try:
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
            greeting = json.loads(connection.recv_bytes(1 << 10))
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
        self._say(self._asked - {self._me}, _encoded([self._run, "left", note]))

    def agree(self, dispatch: Dispatch) -> None:
        """Waits until all processes of a dispatch are about to make it.

        Whoever calls holds ``one_at_a_time``, from the choice of the dispatch's number on: two
        threads must not both be the next.

        Raises:
            DivergenceError: They are about to make another, or none.
        """
        over = "-".join(map(str, dispatch.processes))
        others = [peer for peer in dispatch.processes if peer != self._me]
        word = _encoded([self._run, over, dispatch.number, *_as_word(dispatch)])
        self._say(self._asked.intersection(others), word)
        at: dict[int, Dispatch | None] = {self._me: dispatch}
        notes: dict[int, str] = {}
        for peer in others:
            said = self._hear(peer, word, (self._run, over, dispatch.number), notes)
            if said == word:
                at[peer] = dispatch  # most are: nothing need be made of it
            else:
                at[peer] = None if said is None else _as_dispatch(said, dispatch)
        if any(each is not dispatch for each in at.values()):
            found = sides(at, notes)
            if len(found) > 1:
                raise DivergenceError(disagreement(found, dispatch.number))

    def _say(self, peers: Collection[int], message: bytes) -> None:
        for peer in peers:
            try:
                self._peers[peer].send(message)
            except (KeyError, OSError):  # it has died, or the group is being formed anew
                if (lost := self._peers.pop(peer, None)) is not None:
                    lost.close()

    def _hear(
        self, peer: int, mine: bytes, key: tuple[str, str, int], notes: dict[int, str]
    ) -> bytes | None:
        """Returns what a process says; None if it has left the cell or was not asked to run it.

        Args:
            peer: The process.
            mine: What this process says.
            key: Of what: the cell, the processes, and the number of the dispatch.
            notes: Where it is told why a process says nothing.
        """
        if peer not in self._asked:
            notes[peer] = "was not asked to run the cell"
            return None
        known = self._peers.get(peer)
        if known is None:
            raise JaxnbError(f"process {peer} has died, or its connection was lost")
        try:
            while (word := known.words.pop(key, None)) is None:
                if known.left_run == self._run:
                    notes[peer] = known.left_note
                    return None
                message = known.receive()
                if message == mine:
                    return message
                known.take(message)
        except (EOFError, OSError) as error:
            raise JaxnbError(f"process {peer} has died, or its connection was lost") from error
        return word


class _Peer:
    """A connection, and what has come over it.

    A message is framed as ``multiprocessing`` frames it, but read in one call of the system's
    where that takes two: in strict mode every dispatch waits for that.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        connection.settimeout(None)  # whatever the user has set by socket.setdefaulttimeout()
        # Small messages go without waiting for the receipt of those before.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()
        self.words: dict[tuple[str, str, int], bytes] = {}
        self.left_run = self.left_note = ""

    def send(self, message: bytes) -> None:
        """Sends a message; it is small, so this waits for nobody."""
        self._socket.sendall(_HEADER.pack(len(message)) + message)

    def receive(self) -> bytes:
        """Returns the next message; waits for it.

        Raises:
            EOFError: There will be no more.
            OSError: The connection is broken, or was closed.
        """
        received = self._received
        while True:
            if len(received) >= _HEADER.size:
                end = _HEADER.size + _HEADER.unpack_from(received)[0]
                if len(received) >= end:
                    message = bytes(received[_HEADER.size : end])
                    del received[:end]
                    return message
            more = self._socket.recv(1 << 16)
            if not more:
                raise EOFError
            received += more

    def take(self, message: bytes) -> None:
        """Keeps a message until it is asked for."""
        run, what, number, *_ = json.loads(message)
        if what == "left":
            self.left_run, self.left_note = run, number
            self.words.clear()
        else:
            self.words[run, what, number] = message

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()


def _encoded(message: list[object]) -> bytes:
    return json.dumps(message).encode()


def _as_word(dispatch: Dispatch) -> list[object]:
    return [dispatch.name, dispatch.fingerprint, dispatch.shapes, dispatch.line, dispatch.inputs]


def _as_dispatch(message: bytes, mine: Dispatch) -> Dispatch:
    name, fingerprint, shapes, line, inputs = json.loads(message)[3:]
    return Dispatch(
        number=mine.number,
        name=name,
        fingerprint=fingerprint,
        shapes=shapes,
        processes=mine.processes,
        line=line,
        seconds=mine.seconds,
        inputs=inputs,
    )
