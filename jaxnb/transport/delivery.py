"""What has been sent to the processes and is not finished, and how what was lost comes again.

A request, its reply and its output travel over the ipyparallel controller, each in its own way, and
output over PUB/SUB, which drops what it cannot keep. So output is numbered by request, and what a
process is waited for is looked after: whoever has been waited for without news is asked for its
ledger (:mod:`jaxnb.engine.ledger`), past all queues. A request that never came is sent again, under
its own name, so that it runs once; a reply is had by sending the request again; output that is
missing comes through the sentinel. What the process does not keep any more is said to be lost, but
not before something that was sent later has come: of large output, or on a busy machine, the rest
may be on its way for seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FIRST_LOOK_SECONDS = 1.0
"""So long nothing may come of a request; then its process is asked."""

LONGEST_PAUSE_SECONDS = 8.0
"""So often at least it is asked again."""

FENCE_SECONDS = 60.0
"""If nothing at all comes for so long, what is missing counts as lost."""

LEDGER_SECONDS = 0.3
"""Whoever waits for a cell asks again."""

_TOLD = "jaxnb.engine.process_told"

GAP_SECONDS = 0.5
"""Output may be overtaken by other output for so long; then it counts as lost."""


@dataclass(slots=True, eq=False)
class Sent:
    """A request to one process. All but the looking is for the client's thread.

    Attributes:
        request: Its name: its message's id.
        process_index: The process.
        deliver: Hands a piece of output on.
        send_again: Sends it once more.
        needs_end: Whether the end of its output is waited for too.
        is_answered: Whether its reply has come.
        has_ended: Whether the end of its output has.
        touched: When something came of it, on ``time.monotonic()``.
        fenced: When the process was first asked for a message after its output; None before.
    """

    request: str
    process_index: int
    deliver: Callable[[Any], None]
    send_again: Callable[[], None]
    needs_end: bool
    is_answered: bool = False
    has_ended: bool = False
    touched: float = field(default_factory=time.monotonic)
    fenced: float | None = None
    _next: int = 1
    _heard: int = 0
    _held: dict[int, Callable[[], None]] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """Whether nothing is waited for any more."""
        return self.is_answered and (self.has_ended or not self.needs_end)

    def take(self, number: int | None, hand_on: Callable[[], None]) -> None:
        """Takes a piece of output, or its end, and hands on what can be, in order.

        Args:
            number: Which it is; None if it has no place.
            hand_on: Does it.
        """
        self.touched = time.monotonic()
        if number is None:
            hand_on()
            return
        if number >= self._next:
            self._held.setdefault(number, hand_on)
        while (now := self._held.pop(self._next, None)) is not None:
            self._next += 1
            now()

    def hear(self, number: int) -> None:
        """Notes that output has come by its own way, which keeps the order; or a fence after it."""
        self._heard = max(self._heard, number)

    def are_lost(self, numbers: Sequence[int]) -> list[int]:
        """Returns which of the missing pieces of output cannot come any more."""
        return [number for number in numbers if number <= self._heard]

    def missing(self, end: int | None = None) -> list[int]:
        """Returns the numbers of what has been overtaken, or should have come.

        Args:
            end: The number of the end, if the process has told it.
        """
        last = max([*list(self._held), (end or 0) + 1])
        return [n for n in range(self._next, last) if n not in self._held]

    def give_up(self, numbers: Sequence[int], lose: Callable[[Sent, int], None]) -> None:
        """Goes on without pieces of output, and says in the place of the first that they are lost.

        Args:
            numbers: Which they are; may be none.
            lose: Takes how many.
        """
        for place, number in enumerate(numbers):
            self.take(number, (lambda: None) if place else lambda: lose(self, len(numbers)))


class Caretaker:
    """Looks after what has been sent.

    Args:
        run: Runs something in the client's thread.
        take_output: Takes a message of output that came past the queues: the request, its
            number, kind and content. In the client's thread.
        lose: Takes that pieces of output of a request are lost: how many. Likewise.
        end: Ends the output of a request. Likewise.
    """

    def __init__(
        self,
        run: Callable[[Callable[[], None]], object],
        take_output: Callable[[Sent, int, str, Any], None],
        lose: Callable[[Sent, int], None],
        end: Callable[[Sent], None],
    ) -> None:
        self._run = run
        self._take_output = take_output
        self._lose = lose
        self._end = end
        self.sentinels: Any = None

    def look(self, pending: Mapping[str, Sent]) -> None:
        """Asks processes for what has not come, and has it sent again."""
        waited = [sent for sent in list(pending.values()) if not sent.is_done]
        if not waited:
            return
        sentinels = self.sentinels
        if sentinels is None:  # of a group that is being formed: what has come once is noticed
            for sent in waited:
                sent.send_again()
            return
        processes = {sent.process_index for sent in waited}
        requests = [sent.request for sent in waited]
        told = sentinels.ask(
            processes, f"{_TOLD}.ledger", seconds=LEDGER_SECONDS, requests=requests
        )
        for sent in waited:
            if sent.process_index in told:
                self._mend(sent, told[sent.process_index], sentinels)

    def _mend(self, sent: Sent, told: Mapping[str, Any], sentinels: Any) -> None:
        known = told["requests"].get(sent.request)
        if known is None:
            if not told["is_busy"]:  # else it may wait in the process's queue
                sent.send_again()
            return
        if known["is_answered"] and not sent.is_answered:
            sent.send_again()
        missing = sent.missing(known["end"])
        is_over = known["end"] is not None and not sent.has_ended
        if time.monotonic() - sent.touched < GAP_SECONDS or not (missing or is_over):
            return
        pieces = [number for number in missing if number != known["end"]]
        asked = {"request": sent.request, "numbers": pieces}
        who = [sent.process_index]
        answers = sentinels.ask(who, f"{_TOLD}.outputs", **asked) if pieces else {who[0]: {}}
        found = answers.get(sent.process_index)
        if found is None:
            return
        absent = [number for number in pieces if str(number) not in found]
        lost = sent.are_lost(absent)
        if lost != absent:
            sent.fenced = sent.fenced or time.monotonic()
            if time.monotonic() - sent.fenced < FENCE_SECONDS:
                sentinels.ask(who, f"{_TOLD}.fence", request=sent.request)
            else:
                lost = absent
        self._run(lambda: self._fill(sent, lost, found, known["end"]))

    def _fill(self, sent: Sent, lost: list[int], found: Mapping[str, Any], end: int | None) -> None:
        sent.give_up(lost, self._lose)
        for number, message in found.items():
            self._take_output(sent, int(number), *message)
        if end is not None and not sent.has_ended:
            sent.take(end, lambda: self._end(sent))


class Attention:
    """When to look after one exchange: soon after the last news, then more and more seldom."""

    def __init__(self) -> None:
        self.pending: dict[str, Sent] = {}
        self._lock = threading.Lock()
        self._pause = FIRST_LOOK_SECONDS
        self._next = time.monotonic() + FIRST_LOOK_SECONDS

    def is_due(self) -> bool:
        """Whether it is time; it is once, then."""
        now = time.monotonic()
        if now < self._next or not self.pending or not self._lock.acquire(blocking=False):
            return False
        try:
            self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
            self._next = now + self._pause
            return True
        finally:
            self._lock.release()

    def add(self, sent: Sent) -> None:
        """Takes what has just been sent."""
        self.pending[sent.request] = sent
        self._pause = FIRST_LOOK_SECONDS
        self._next = time.monotonic() + FIRST_LOOK_SECONDS

    def hasten(self) -> None:
        """Notes that it may be time already."""
        self._next = 0.0
