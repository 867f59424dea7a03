"""The order in which a process's threads make what they were let make."""

from __future__ import annotations

import threading


class _Own(threading.local):
    """The grants that a thread is making."""

    def __init__(self) -> None:
        self.numbers: set[int] = set()


class Turns:
    """Has threads go one after the other, by the numbers of their grants.

    All processes then hand computations to JAX in one order: collectives of two threads would pair
    with the wrong ones otherwise. A computation that is dispatched within another one, by the same
    thread, does not wait for that one.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._over = 0
        self._early: set[int] = set()
        self._own = _Own()

    def begin(self, number: int) -> None:
        """Waits until all grants with smaller numbers are over, but for this thread's own.

        Each comes to that: its thread hands JAX a computation that all processes make, or raises,
        or ends. The notebook says of a main thread that it waits here.
        """
        own = self._own.numbers
        if number != self._over + 1:  # which only grows; almost always it is its turn
            with self._lock:
                self._waiting += 1
                try:
                    while any(n not in self._early | own for n in range(self._over + 1, number)):
                        self._changed.wait()
                finally:
                    self._waiting -= 1
        own.add(number)

    def end(self, number: int) -> None:
        """Tells that a grant is over: its computation was handed to JAX, or is not made.

        It may be told again.
        """
        with self._lock:
            if number > self._over:
                self._early.add(number)
            while self._over + 1 in self._early:
                self._over += 1
                self._early.discard(self._over)
            if self._waiting:
                self._changed.notify_all()
        self._own.numbers.discard(number)  # last: what is raised before has it told again
