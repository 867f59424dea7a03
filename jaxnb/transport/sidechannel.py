"""Asking the processes' sentinels, past the queue of requests that a cell may block."""

from __future__ import annotations

import base64
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import zmq
from jupyter_client.session import Session

from jaxnb.model import (
    DeviceStats,
    Dispatch,
    ProcessReport,
    Recording,
    SentinelFault,
    StackEntry,
    Trail,
    Whereabouts,
)
from jaxnb.model.origins import Argument
from jaxnb.model.programs import ProgramLine
from jaxnb.model.replicas import DigestedArray

FAULT_KEY = "fault"
"""In a sentinel's answer: what it raised instead of answering."""

ANSWER_SECONDS = 1.0
"""A sentinel that is silent for longer cannot run: its process is stopped, or holds the lock of
its Python interpreter."""

RECORDING_SECONDS = 5.0
"""To look through compiled programs for collectives takes longer."""

DIGEST_SECONDS = 30.0
"""A process that is asked for digests of arrays' bytes, or for their names, reads much memory."""

LEDGER_SECONDS = 0.3
"""Whoever waits for a cell asks again."""

WATCH_SECONDS = 0.2
"""The cell's output waits so long at most: who does not answer in time may watch all the same."""

STATISTICS_SECONDS = 2.0
"""The first look at thousands of arrays takes longer, too."""


class Sentinels:
    """The sentinels of a group's processes.

    Safe to use from any thread.

    Args:
        key: The cluster's key.
        reports: What the processes said when they joined.
        notice: Shows the user a sentence: which sentinel failed, and why; once each.
    """

    def __init__(
        self,
        key: bytes,
        reports: Iterable[ProcessReport],
        notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._key = key
        self._notice = notice
        self._told: set[SentinelFault] = set()
        reports = list(reports)
        self._addresses = {r.process_index: r.sentinel for r in reports if r.sentinel is not None}

    def where(
        self, processes: Iterable[int], seconds: float = ANSWER_SECONDS
    ) -> dict[int, Whereabouts]:
        """Returns where processes' main threads are, for those that tell in time.

        One whose sentinel fails has its ``fault`` instead.
        """
        answers, faults = self._ask_all(processes, "where", {}, seconds)
        found = {index: _whereabouts(index, content) for index, content in answers.items()}
        return found | {
            each.process_index: Whereabouts(each.process_index, (), "", 0.0, None, fault=each.error)
            for each in faults
        }

    def recordings(self, processes: Iterable[int]) -> dict[int, Recording]:
        """Returns what processes have dispatched in their cell, for those that tell in time."""
        answers = self._ask(processes, "recording", {}, RECORDING_SECONDS)
        return {index: _recording(content) for index, content in answers.items()}

    def arguments(self, processes: Sequence[int], number: int) -> dict[int, list[Argument]]:
        """Returns what processes were to give to a dispatch of their last cell that was not made.

        Args:
            processes: Those that it spans.
            number: Which one over these it is.
        """
        asked = {"processes": list(processes), "number": number}
        answers = self._ask(processes, "arguments", asked, RECORDING_SECONDS)
        return {i: [*map(Argument.from_plain, said["arguments"])] for i, said in answers.items()}

    def program(self, process: int, fingerprint: int) -> list[ProgramLine]:
        """Returns a program that a process has dispatched; empty if it does not remember it."""
        answers = self._ask([process], "program", {"fingerprint": fingerprint}, RECORDING_SECONDS)
        return [ProgramLine(*each) for said in answers.values() for each in said["lines"]]

    def bound(self, processes: Iterable[int]) -> dict[int, dict[str, Argument]]:
        """Returns the names that hold global arrays on processes, and where those come from."""
        answers = self._ask(processes, "bound", {}, RECORDING_SECONDS)
        found = {i: map(Argument.from_plain, said["bound"]) for i, said in answers.items()}
        return {i: {each.name: each for each in those} for i, those in found.items()}

    def digested(self, processes: Iterable[int]) -> dict[int, list[DigestedArray]]:
        """Returns the arrays whose replicas processes have digested in their last cell."""
        answers = self._ask(processes, "digested", {}, DIGEST_SECONDS)
        return {i: [*map(DigestedArray.from_plain, a["digested"])] for i, a in answers.items()}

    def replica_chunks(self, process: int, place: int, device: int) -> tuple[int, list[str]]:
        """Returns the size of a replica's pieces in bytes and their digests; none if it is gone.

        Args:
            process: Who has it.
            place: Which of the arrays that it has digested.
            device: On which of its devices.
        """
        asked = {"place": place, "device": device}
        answers = self._ask([process], "chunks", asked, DIGEST_SECONDS)
        said = answers.get(process, {"size": 0, "digests": []})
        return said["size"], said["digests"]

    def replica_bytes(self, process: int, place: int, device: int, start: int, stop: int) -> bytes:
        """Returns bytes of a replica; none if it is gone. See :meth:`replica_chunks`."""
        asked = {"place": place, "device": device, "start": start, "stop": stop}
        answers = self._ask([process], "piece", asked, DIGEST_SECONDS)
        return base64.b64decode(answers.get(process, {"data": ""})["data"])

    def ledgers(
        self, processes: Iterable[int], requests: Iterable[str]
    ) -> dict[int, dict[str, Any]]:
        """Returns what processes know of requests, for those that tell in time."""
        return self._ask(processes, "ledger", {"requests": list(requests)}, LEDGER_SECONDS)

    def outputs(self, process: int, request: str, numbers: Iterable[int]) -> dict[str, Any] | None:
        """Returns messages of a request's output by number; None if the process does not tell."""
        asked = {"request": request, "numbers": list(numbers)}
        return self._ask([process], "outputs", asked, ANSWER_SECONDS).get(process)

    def fence(self, process: int, request: str) -> None:
        """Has a process send a message after all output of a request that it has sent."""
        self._ask([process], "fence", {"request": request}, ANSWER_SECONDS)

    def watch(self, processes: Iterable[int], request_id: str) -> None:
        """Has processes look at their main threads now and then, as long as that cell runs."""
        self._ask(processes, "watch", {"request_id": request_id}, WATCH_SECONDS)

    def statistics(
        self, processes: Iterable[int], *, brief: bool
    ) -> dict[int, list[DeviceStats] | str]:
        """Returns the statistics of processes' devices, for those that tell in time.

        Args:
            processes: Their indices.
            brief: Leave out what takes milliseconds.

        Returns:
            Process index to a row for each device, or to why it has none.
        """
        answers, faults = self._ask_all(processes, "stats", {"brief": brief}, STATISTICS_SECONDS)
        failed = {each.process_index: f"cannot tell: {each.error}" for each in faults}
        return failed | {
            index: content["why"] or [DeviceStats.from_plain(row) for row in content["rows"]]
            for index, content in answers.items()
        }

    def call(
        self, processes: Iterable[int], function: str, **arguments: Any
    ) -> dict[int, dict[str, Any]]:
        """Has processes call a function, whatever their main threads do; it must be quick.

        Args:
            processes: The processes.
            function: Its name, ``jaxnb.FEATURE.process_NAME.FUNCTION``.
            arguments: Of which JSON can be made.

        Returns:
            What it returned on those that answer in time and do not fail.
        """
        content = {"function": function, "arguments": arguments}
        return self._ask(processes, "call", content, ANSWER_SECONDS)

    def _ask(
        self, processes: Iterable[int], kind: str, content: Mapping[str, Any], seconds: float
    ) -> dict[int, dict[str, Any]]:
        """Asks sentinels; returns what those answer that do so in time, and do not fail."""
        return self._ask_all(processes, kind, content, seconds)[0]

    def _ask_all(
        self, processes: Iterable[int], kind: str, content: Mapping[str, Any], seconds: float
    ) -> tuple[dict[int, dict[str, Any]], list[SentinelFault]]:
        answers = self._converse(processes, kind, content, seconds)
        faults = [
            SentinelFault(index, kind, answers.pop(index)[FAULT_KEY])
            for index in sorted(answers)
            if FAULT_KEY in answers[index]
        ]
        for fault in set(faults) - self._told:
            self._told.add(fault)
            self._notice(str(fault))
        return answers, faults

    def _converse(
        self, processes: Iterable[int], kind: str, content: Mapping[str, Any], seconds: float
    ) -> dict[int, dict[str, Any]]:
        session = Session(key=self._key)
        context = zmq.Context()
        poller = zmq.Poller()
        sockets: dict[Any, int] = {}
        try:
            for index in set(processes) & set(self._addresses):
                address = self._addresses[index]
                socket = context.socket(zmq.DEALER)
                socket.linger = 0
                socket.connect(address.url)
                # The time is no date: of clocks that are set nothing follows.
                told = {"token": address.token, "sent": time.monotonic(), **content}
                message = session.msg(kind, told)
                socket.send_multipart(session.serialize(message))
                poller.register(socket, zmq.POLLIN)
                sockets[socket] = index
            return _answers(session, poller, sockets, time.monotonic() + seconds)
        finally:
            context.destroy(linger=0)


def _answers(
    session: Session, poller: zmq.Poller, sockets: Mapping[Any, int], deadline: float
) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    while len(found) < len(sockets):
        left = max(0.0, deadline - time.monotonic())
        ready = poller.poll(int(left * 1e3))
        if not ready:
            break
        for socket, _ in ready:
            # Of a dead process's port another program may have taken hold.
            with contextlib.suppress(ValueError):
                _, frames = session.feed_identities(socket.recv_multipart())
                found[sockets[socket]] = session.deserialize(frames)["content"]
    return found


def _whereabouts(index: int, content: Mapping[str, Any]) -> Whereabouts:
    stack = tuple(StackEntry(**entry) for entry in content["stack"])
    return Whereabouts(
        index,
        stack,
        content["sleeps_in"],
        content["cpu_seconds"],
        content["rss_bytes"],
        frozenset((thread, switches) for thread, switches in content["runnable"]),
        content["cell_seconds"],
        content["interrupted_seconds"],
        content["missed_seconds"],
        frozenset(content["entries"]),
        content["asks_by_thread"],
        next(map(Dispatch.from_plain, content["last_dispatch"]), None),
    )


def _trail(content: Mapping[str, Any]) -> Trail:
    return Trail(**{**content, "processes": tuple(content["processes"])})


def _recording(content: Mapping[str, Any]) -> Recording:
    return Recording(
        content["process_index"],
        tuple(map(_trail, content["trails"])),
        tuple(map(Dispatch.from_plain, content["dispatches"])),
        next(map(Dispatch.from_plain, content["refused"]), None),
    )
