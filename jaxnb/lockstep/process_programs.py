"""Programs that this process has dispatched, for when another has dispatched another one."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from jaxnb.compat import jax_dispatch as internals
from jaxnb.model.dispatches import ProgramLine

MAX_PROGRAMS = 64
"""So many are remembered, those that were compiled last. Code that jits a new function in each step
of a loop makes thousands."""

MAX_CHARS = 1_000_000
"""So long at most are the texts of all that are remembered: XLA has 15 to 40 bytes for each
character, and those of large models would take gigabytes."""

MIN_PROGRAMS = 4
"""So many are remembered however long they are."""

Lines = Callable[[], list[ProgramLine]]


class Programs:
    """Remembers programs longer than the functions live that they were compiled for.

    A program without large constants is kept as XLA has it, which costs nothing until it is asked
    for; of one with such constants the text is, which has a digest of them.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[int, tuple[int, Lines]] = OrderedDict()
        self._chars = 0
        self._lock = threading.Lock()

    def keep(self, fingerprint: int, executable: Any, text: str, facts: list[str]) -> None:
        """Remembers a program.

        Args:
            fingerprint: What it is asked for by.
            executable: As JAX dispatches it.
            text: As processes compare it.
            facts: What else tells it from others.
        """
        of_program = internals.executable_lines(executable)
        before = [ProgramLine(each) for each in facts]
        large = [line for line in text.splitlines() if line.startswith("large constant")]
        after = [ProgramLine(each) for each in large]

        def read() -> list[ProgramLine]:
            return [*before, *of_program(), *after]

        found = read() if large else None
        with self._lock:
            self._chars -= self._kept.pop(fingerprint, (0, read))[0]
            self._kept[fingerprint] = len(text), read if found is None else lambda: found
            self._chars += len(text)
            while self._is_too_much():
                self._chars -= self._kept.popitem(last=False)[1][0]

    def lines(self, fingerprint: int) -> list[ProgramLine]:
        """Returns a program for people; empty if it is not remembered. Any thread may ask."""
        with self._lock:
            kept = self._kept.get(fingerprint)
        return kept[1]() if kept is not None else []

    def _is_too_much(self) -> bool:
        count = len(self._kept)
        return count > MAX_PROGRAMS or (count > MIN_PROGRAMS and self._chars > MAX_CHARS)
