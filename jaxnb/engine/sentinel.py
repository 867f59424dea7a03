"""The sentinel: answers while the process's main thread is in C++ and cannot.

A thread with a socket of its own. Its messages are signed with the cluster's key; what is not,
what was said before, and what was meant for another process, is dropped without an answer. No
message is unpickled: they are JSON.
"""

from __future__ import annotations

import contextlib
import linecache
import math
import os
import re
import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import zmq
from jupyter_client.session import Session

from jaxnb.engine import interrupts, main_thread
from jaxnb.engine.ledger import LEDGER
from jaxnb.engine.origins import ORIGINS
from jaxnb.engine.recorder import Recorder
from jaxnb.engine.sampling import Sampler
from jaxnb.engine.sleeping import sleeps_in, stays_in, work
from jaxnb.engine.stats import Statistics, rss_bytes
from jaxnb.engine.timekeeper import Timekeeper
from jaxnb.model import SentinelAddress

SWITCH_SECONDS = 1e-4
"""How long other threads of Python go on beside this one while it looks around."""

FAULT_KEY = "fault"
"""In an answer: why there is none."""

LATE_SECONDS = 60.0
"""A message that was sent so long before another that has come is one that is said again."""

LARGEST_BYTES = 1 << 20
"""Of a part of a message: who sends more is hung up on, before it is read. Questions have some
hundred bytes."""

MOST_WAITING = 100
"""Messages of one connection that wait to be read; more wait where they are sent."""

MAX_FRAMES = 40
"""Of a deeper stack the innermost are told."""

ASKS = "/jaxnb/lockstep/process_line.py"
"""Where a thread waits to be let dispatch."""

_CELL = re.compile(r"<cell (\d+)>")


class Sentinel:
    """Answers the notebook's questions about this process, whatever its main thread does.

    It sleeps in a poll between questions, and between its looks at the main thread, where the
    notebook has asked for them. It ends with the process.

    Args:
        key: The cluster's key.
        host: The address to listen on, where there is no folder.
        folder: Where its socket is, which only this user can reach.
        recorder: Knows what this process has dispatched.
        timekeeper: Takes what is seen of the main thread.
        statistics: Takes its statistics; of this thread's own.
        call: Calls a function that is named, with its arguments; it must be quick.

    Attributes:
        address: How to reach it.
        dropped: How many messages were dropped.
    """

    def __init__(
        self,
        key: bytes,
        host: str,
        folder: str,
        recorder: Recorder,
        timekeeper: Timekeeper,
        statistics: Statistics,
        call: Callable[[dict[str, Any]], dict[str, Any]],
    ) -> None:
        self._recorder = recorder
        self._sampler = Sampler(timekeeper, sleeps_in)
        self._statistics = statistics
        self._call = call
        self._session = Session(key=key)
        # Of its own: the kernel closes its context while this thread may still be asked.
        self._socket = zmq.Context().socket(zmq.ROUTER)
        self.address = SentinelAddress(_bind(self._socket, host, folder), secrets.token_hex(16))
        self.dropped = 0
        self._newest = -math.inf
        self._heard: dict[str, float] = {}
        threading.Thread(target=self._serve, name="jaxnb-sentinel", daemon=True).start()

    def _serve(self) -> None:
        while True:
            if not self._socket.poll(self._sampler.pause):
                self._look()
                continue
            parts = self._socket.recv_multipart()
            try:
                identities, frames = self._session.feed_identities(parts)
                message = self._session.deserialize(frames)
                self._note_once(message["header"]["msg_id"], float(message["content"]["sent"]))
                self._check_token(message["content"]["token"])
            except Exception:  # whatever came, it was not the notebook's; the next may be
                self.dropped += 1
                continue
            self._send(identities, message, self._answer_or_fault(message))

    def _check_token(self, token: str) -> None:
        if token != self.address.token:  # a message to another process, said again
            raise PermissionError

    def _answer_or_fault(self, message: dict[str, Any]) -> dict[str, Any]:
        """Answers a question of the notebook's; what fails here must not pass for silence."""
        try:
            return self._answer(message["msg_type"], message["content"])
        except Exception as error:
            return {FAULT_KEY: f"{type(error).__name__}: {error}"}

    def _send(self, identities: list[bytes], message: dict[str, Any], content: Any) -> None:
        try:
            reply = self._session.msg("reply", content, parent=message["header"])
            frames = self._session.serialize(reply)
        except Exception as error:  # of what no JSON can be made
            content = {FAULT_KEY: f"{type(error).__name__}: {error}"}
            reply = self._session.msg("reply", content, parent=message["header"])
            frames = self._session.serialize(reply)
        with contextlib.suppress(zmq.ZMQError):  # whoever asked has gone
            self._socket.send_multipart([*identities, *frames])

    def _note_once(self, message_id: str, sent: float) -> None:
        """Notes a message that is the notebook's; raises if it was said before.

        jupyter_client drops what is said again only as long as it remembers it: it forgets some
        after 65,536 messages, and those count that a stranger has signed with any key.
        """
        if message_id in self._heard or sent < self._newest - LATE_SECONDS:
            raise PermissionError
        self._heard[message_id] = sent
        self._newest = max(self._newest, sent)
        while (oldest := next(iter(self._heard.items())))[1] < self._newest - LATE_SECONDS:
            del self._heard[oldest[0]]

    def _look(self) -> None:
        try:
            self._sampler.look()
        except Exception as error:  # this thread has to stay, to answer
            self._sampler.stop(f"{type(error).__name__}: {error}")

    def _answer(self, kind: str, content: dict[str, Any]) -> dict[str, Any]:
        if kind == "call":
            return self._call(content)
        if kind == "recording":
            told = asdict(self._recorder.recording())
            return {**told, "refused": [told["refused"]] if told["refused"] else []}
        if kind == "arguments":
            found = self._recorder.arguments(tuple(content["processes"]), content["number"])
            return {"arguments": [asdict(each) for each in found]}
        if kind == "program":
            lines = self._recorder.programs.lines(content["fingerprint"])
            return {"lines": [[each.text, each.source] for each in lines]}
        if kind == "bound":
            return {"bound": [asdict(each) for each in ORIGINS.bound()]}
        if kind in ("digested", "chunks", "piece"):
            return self._replicas(kind, content)
        if kind == "ledger":
            return LEDGER.told(content["requests"])
        if kind == "fence":
            LEDGER.fence(content["request"])
            return {}
        if kind == "outputs":
            return LEDGER.outputs(content["request"], content["numbers"])
        if kind == "watch":
            return {"watches": self._sampler.watch(content["request_id"])}
        with _quickly_back():
            if kind == "stats":
                return self._stats(content["brief"])
            if kind == "where":
                return self._where()
        raise ValueError(f"unknown question {kind!r}")

    def _replicas(self, kind: str, content: dict[str, Any]) -> dict[str, Any]:
        replicas = self._recorder.replicas
        if kind == "digested":
            return {"digested": [asdict(each) for each in replicas.digested()]}
        if kind == "chunks":
            return replicas.chunks(content["place"], content["device"])
        where = content["place"], content["device"], content["start"], content["stop"]
        return {"data": replicas.piece(*where)}

    def _stats(self, brief: bool) -> dict[str, Any]:
        try:
            rows = self._statistics.collect(brief)
        except Exception as error:  # not to be taken for a process that is silent
            return {"rows": [], "why": f"cannot tell: {type(error).__name__}: {error}"}
        return {"rows": [asdict(row) for row in rows], "why": ""}

    def _where(self) -> dict[str, Any]:
        recording = self._recorder.recording(1)
        # What it waits to be let make comes after all that it has made.
        last = recording.dispatches if recording.refused is None else [recording.refused]
        return {
            "stack": self.stack(),
            "sleeps_in": stays_in(),
            "rss_bytes": rss_bytes(),
            "cell_seconds": self._recorder.cell_seconds(),
            "interrupted_seconds": interrupts.seconds_since_strike(),
            "missed_seconds": interrupts.seconds_since_missed(),
            "entries": main_thread.entries_of_others(),
            "asks_by_thread": main_thread.another_is_in(ASKS),
            "last_dispatch": [asdict(each) for each in last],
            **asdict(work()),
        }

    def stack(self) -> list[dict[str, Any]]:
        """Returns the main thread's Python stack, outermost first."""
        return [_described(each) for each in main_thread.calls()[:MAX_FRAMES]][::-1]


def _bind(listening: zmq.Socket[bytes], host: str, folder: str) -> str:
    """Binds a socket; what waits in it is bounded, whoever sends.

    Returns:
        Where it is to be reached.
    """
    listening.linger = 0
    listening.maxmsgsize = LARGEST_BYTES
    listening.rcvhwm = MOST_WAITING
    if not folder:
        return f"tcp://{host}:{listening.bind_to_random_port(f'tcp://{host}')}"
    with contextlib.suppress(
        zmq.ZMQError
    ):  # the folder's mode is the lock; not all builds have two
        listening.setsockopt(zmq.IPC_FILTER_UID, os.geteuid())
    url = f"ipc://{folder}/sentinel-{os.getpid()}"
    listening.bind(url)
    return url


def _described(call: main_thread.Call) -> dict[str, Any]:
    code, line = call.code, call.line or None
    cell = _CELL.fullmatch(code.co_filename)
    return {
        "file": code.co_filename,
        "line": line,
        "function": code.co_qualname,
        "source": linecache.getline(code.co_filename, line or 0).strip(),
        "cell": int(cell[1]) if cell else None,
    }


@contextlib.contextmanager
def _quickly_back() -> Iterator[None]:
    """Has this thread get the interpreter's lock back soon after each call of the system.

    Beside a main thread that computes in Python that takes 5 ms a call, and to look at 40
    threads is 200 calls.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
