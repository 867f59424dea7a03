"""Asking processes for something other than a cell, and knowing why one does not answer."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from jaxnb.errors import JaxnbError
from jaxnb.labels import capitalized, processes_label
from jaxnb.launch.deaths import Death, dead_processes, death_error
from jaxnb.model.cells import Request, RequestFailed
from jaxnb.wire.direct import Conversation, Direct
from jaxnb.wire.messages import Unanswered, dump

REPLY_SECONDS = 30.0
"""How long a process may be silent when all it has to do is to answer."""

BYTES_PER_SECOND = 50e6
"""Processes that read, digest or copy data get extra time, at this rate."""

IN_FLIGHT = 3
"""Requests sent ahead to each process, so that the next is there when it has answered one."""

TICK_SECONDS = 0.1

FREE_SECONDS = 0.5
"""How long to go on interrupting a process that was silent for too long."""

NOTICE_SECONDS = 3.0
"""After this long without an answer to an interrupt the user is told who is silent."""

QUIET_SECONDS = 4.0
"""After this long without any answer the user is told who is waited for."""

DEATH_SECONDS = 2.0
"""A death is reported at most this long after its first effects are seen."""


_CAN_END = "Interrupt ends the wait, and variables are kept."
_MAY_TAKE_LONG = (
    "Computing, compiling, pickling or unpickling a value (a class's `__reduce__`, "
    "`__setstate__`) may take long"
)

SendSignal = Callable[[list[int], int], list[int]]
"""Sends a signal to processes; returns those that it may reach."""


class Channel:
    """Asks processes, one conversation at a time.

    Args:
        direct: The connections to main threads.
        deaths: Returns who has died so far.
        in_cells: Process index to what it is doing, for those that cannot answer now.
        num_processes: Size of the group.
        interrupted: Set by whoever wants the conversation to end with KeyboardInterrupt.
        send_signal: Sends a signal to processes.
        give_up: Called with processes that are left in what nobody waits for any more.
        notice: Shows the user a sentence; with an empty one, that nobody is waited for any more.
        joined: Makes one question of those that processes are asked together.
        stopped: Returns what keeps processes from answering, as a clause; empty if it is not known.
    """

    def __init__(
        self,
        direct: Direct,
        deaths: Callable[[], Sequence[Death]],
        in_cells: Mapping[int, str],
        num_processes: int,
        interrupted: threading.Event,
        send_signal: SendSignal,
        give_up: Callable[[list[int]], None],
        notice: Callable[[str], None],
        joined: Callable[[Mapping[int, Any]], Mapping[int, Request]],
        stopped: Callable[[Iterable[int]], str],
    ) -> None:
        self._direct = direct
        self._joined, self._stopped = joined, stopped
        self._deaths = deaths
        self.in_cells = in_cells
        self.num_processes = num_processes
        self._interrupted = interrupted
        self._send_signal = send_signal
        self._give_up = give_up
        self._notice = notice
        self._dead_before = set(dead_processes(deaths()))
        self._abandoned: Exception | None = None
        self._has_told = False
        self._tells_after = QUIET_SECONDS

    def abandon(self, reason: Exception) -> None:
        """Makes the one who waits in this conversation stop, and raise ``reason``."""
        self._abandoned = reason

    def end(self) -> None:
        """Takes away what was said of who is waited for."""
        if self._has_told:
            self._notice("")

    def check(self) -> None:
        """Ends the conversation if somebody wants that.

        Raises:
            KeyboardInterrupt: It was interrupted.
            JaxnbError: It was abandoned.
        """
        if self._abandoned is not None:
            raise self._abandoned
        if self._interrupted.is_set():
            raise KeyboardInterrupt

    @property
    def able(self) -> list[int]:
        """The processes that are alive and not in a cell."""
        dead = dead_processes(self._deaths())
        return [i for i in range(self.num_processes) if i not in dead and i not in self.in_cells]

    def ask(
        self, requests: Mapping[int, Request], nbytes: int = 0, seconds: float | None = None
    ) -> dict[int, Any]:
        """Sends a request to each process and waits for the answers.

        Args:
            requests: Process index to request.
            nbytes: How much data the answers take to make.
            seconds: How long a process may be silent besides; ``REPLY_SECONDS`` by default.

        Returns:
            Process index to answer; an :class:`Unanswered` where there is none.

        Raises:
            KeyboardInterrupt: It was interrupted.
        """
        answers = dict(self.ask_all({i: [r] for i, r in requests.items()}, nbytes, seconds))
        return {i: answers[i] for i in requests}

    def ask_together(
        self, requests: Mapping[int, Any], nbytes: int = 0, seconds: float | None = None
    ) -> dict[int, Any]:
        """Does what :meth:`ask` does; code of the user's may compute over these processes."""
        return self.ask(self._joined(requests), nbytes, seconds)

    def ask_all(
        self,
        requests: Mapping[int, Iterable[Request]],
        nbytes: int = 0,
        seconds: float | None = None,
    ) -> Iterator[tuple[int, Any]]:
        """Sends several requests to each process, a few ahead; yields answers as they come.

        Those of one process come in order. One that does not answer gives an
        :class:`Unanswered`, and nothing after that.
        """
        talk = Conversation(self._direct)
        left = {i: iter(queue) for i, queue in requests.items()}
        pending = dict.fromkeys(left, 0)
        for index in [i for i in pending if i in self.in_cells]:
            del pending[index]
            yield index, Unanswered(index, self.in_cells[index])
        for index in pending:
            pending[index] = sum(
                self._send_next(talk, index, left[index]) for _ in range(IN_FLIGHT)
            )
        patience = (REPLY_SECONDS if seconds is None else seconds) + nbytes / BYTES_PER_SECOND
        heard_at = time.monotonic()
        while pending := {i: count for i, count in pending.items() if count}:
            try:
                self.check()
            except KeyboardInterrupt:
                if left_over := self._free_after_interrupt(pending, talk):
                    raise KeyboardInterrupt(
                        f"Interrupted. {capitalized(processes_label(left_over))} did not finish "
                        f"{'its request' if len(left_over) == 1 else 'their requests'}: the group "
                        "is out of step. Type `%spmd_recover` to continue with the variables."
                    ) from None
                raise
            reply = talk.get(TICK_SECONDS)
            if reply is not None and reply.process_index in pending:
                index = reply.process_index
                heard_at = time.monotonic()
                pending[index] += self._send_next(talk, index, left[index]) - 1
                answer = self._as_answer(index, reply.answer)
                patience = self._patience_after(answer, patience, heard_at)
                yield index, answer
                continue
            self._tell_who_is_quiet(pending, heard_at)
            late = time.monotonic() > heard_at + patience
            if late:
                self._free_late(pending, talk)
            for index in list(pending):
                lost = self._lost(index)
                if late and lost is None:
                    lost = self._silent(index, patience)
                if lost is not None:
                    patience = self._patience_after(lost, patience, heard_at)
                    del pending[index]
                    yield index, lost

    def _silent(self, index: int, patience: float) -> Unanswered:
        why = self._why_silent([index])
        told = f" ({why})" if why else ""
        return Unanswered(index, f"gave no answer within {patience:.0f} s{told}")

    def _why_silent(self, indices: Iterable[int]) -> str:
        """Returns what keeps processes from answering, as a clause; empty if that is not known."""
        if stopped := self._stopped(indices):
            return stopped
        if not (dead := dead_processes(self._deaths())):
            return ""
        who, has = processes_label(dead), "has" if len(dead) == 1 else "have"
        return (
            f"results computed with {who} may never arrive, as {who} {has} died: `%spmd_recover` "
            "continues with the others"
        )

    def _patience_after(self, answer: object, patience: float, heard_at: float) -> float:
        """Returns how long processes may stay silent, counted from ``heard_at``.

        After a death the request fails whatever the others answer, so they get only a moment more.
        """
        if not isinstance(answer, Unanswered) or answer.death is None:
            return patience
        return min(patience, time.monotonic() - heard_at + DEATH_SECONDS)

    def _tell_who_is_quiet(self, pending: Iterable[int], heard_at: float) -> None:
        """Says who is waited for, if nobody has answered for a while: nothing need be wrong.

        Why, if that is known; else it is looked for again, and said once it is.
        """
        seconds = self._tells_after
        if time.monotonic() - heard_at < seconds:
            return
        why = capitalized(self._why_silent(pending))
        self._tells_after = math.inf if why else seconds + QUIET_SECONDS
        if self._has_told and not why:
            return
        self._has_told = True
        self._notice(
            f"waits for {processes_label(pending)}: no answer for {seconds:g} s. "
            f"{why or _MAY_TAKE_LONG}. {_CAN_END}"
        )

    def _send_next(self, talk: Conversation, index: int, requests: Iterator[Request]) -> int:
        """Sends the next request of a process; returns how many were sent: none after the last."""
        request = next(requests, None)
        if request is None:
            return 0
        if self._lost(index) is None:  # else what waits for the answer will notice
            talk.send(index, request)
        return 1

    def _free_after_interrupt(
        self, pending: Mapping[int, int], talk: Conversation
    ) -> Sequence[int]:
        """Interrupts processes until all have answered, or until the next interrupt.

        Left alone, one that is in a loop would keep the next cell waiting for ever.

        Returns:
            Who has not answered.
        """
        self._interrupted.clear()
        started = time.monotonic()
        told = False

        def is_enough(busy: list[int]) -> bool:
            nonlocal told
            if not told and time.monotonic() - started > NOTICE_SECONDS:
                told = True
                self._interrupted.clear()
                self._notice(
                    f"{processes_label(busy)} did not answer the interrupt within "
                    f"{NOTICE_SECONDS:g} s. Interrupt again to stop waiting; then "
                    "`%spmd_recover` ends it by force and replaces it."
                )
            return self._interrupted.is_set() and told

        if busy := self._free(pending, talk, is_enough):
            self._give_up(busy)
        self._interrupted.set()
        return busy

    def _free_late(self, pending: Mapping[int, int], talk: Conversation) -> None:
        deadline = time.monotonic() + FREE_SECONDS
        self._free(pending, talk, lambda busy: time.monotonic() > deadline)

    def _free(
        self,
        pending: Mapping[int, int],
        talk: Conversation,
        is_enough: Callable[[list[int]], bool],
    ) -> list[int]:
        """Interrupts processes that are busy with what nobody waits for: a user's ``__reduce__``.

        Again and again, if need be: one that has not begun with its request does not notice. One on
        a host that is silent is not waited for.

        Returns:
            Those that have not answered when it was enough.
        """
        counts = dict(pending)
        while self._abandoned is None:
            counts = {i: n for i, n in counts.items() if n and self._lost(i) is None}
            if not counts or is_enough(sorted(counts)):
                return sorted(counts)
            reached = self._send_signal(sorted(counts), signal.SIGINT)
            counts = {i: counts[i] for i in reached}
            reply = talk.get(TICK_SECONDS)
            while reply is not None:
                if reply.process_index in counts:
                    counts[reply.process_index] -= 1
                reply = talk.get(0)
        return []

    def _lost(self, index: int) -> Unanswered | None:
        """Returns why a process will never answer; None as far as is known now."""
        for death in self._deaths():
            if death.role != "engine" or death.index == index:
                return Unanswered(index, "has died", death)
        return None

    def require_living(self, doing: str) -> None:
        """Raises if no process is left to be asked.

        Args:
            doing: What they were to be asked for: ``"`x` was pulled"``.

        Raises:
            ProcessDiedError: All have died.
        """
        if not self.able and not self.in_cells:
            self.require({i: self._lost(i) for i in range(self.num_processes)}, doing)

    def tell(self, requests: Mapping[int, Request]) -> None:
        """Sends requests whose answers nobody waits for, to those that can take them."""
        if self._abandoned is not None:
            return  # the processes have ended, or are about to
        for index in set(requests) & set(self.able):
            self._direct.send(index, dump(requests[index]), into=None)

    def _as_answer(self, index: int, answer: Any) -> Any:
        if isinstance(answer, RequestFailed):
            return Unanswered(index, f"raised {answer.error}", error=answer.error)
        if isinstance(answer, BaseException):
            # The controller's word that it has ended, as a rule.
            return self._why_lost(index, f"could not answer ({type(answer).__name__}: {answer})")
        return answer

    def why_unreachable(self, index: int, error: OSError) -> Unanswered:
        """Returns why a process's memory is gone; waits a moment to be told of a death."""
        return self._why_lost(index, f"did not give its data ({error})")

    def _why_lost(self, index: int, reason: str) -> Unanswered:
        deadline = time.monotonic() + DEATH_SECONDS
        while (lost := self._lost(index)) is None and time.monotonic() < deadline:
            self._interrupted.wait(0.01)
            self.check()
        return lost or Unanswered(index, reason)

    def require(
        self,
        answers: Mapping[int, Any],
        doing: str,
        then: str = "and dropped. The group is as it was.",
    ) -> None:
        """Raises what kept the first process from answering, if one was kept.

        Args:
            answers: From :meth:`ask`.
            doing: What the answers are for: ``"`x` was pulled"``.
            then: What becomes of what others have answered.

        Raises:
            ProcessDiedError: It died.
            JaxnbError: It was in a cell, was silent, or raised.
        """
        missing = [a for a in answers.values() if isinstance(a, Unanswered)]
        died = next((a.death for a in missing if a.death is not None), None)
        if died is not None:
            was_dead = died.index in self._dead_before
            raise death_error(died, self.num_processes, "" if was_dead else doing)
        for answer in missing:
            raise JaxnbError(
                f"Process {answer.process_index} of {self.num_processes} {answer.reason}, so "
                f"{doing} only in part, {then}"
            )
