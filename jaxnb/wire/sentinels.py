"""Asking the processes' sentinels, past the queue of requests that a cell may block."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jaxnb.model.group import Address, SentinelFault, Whereabouts
from jaxnb.wire.direct import Direct
from jaxnb.wire.messages import Reply

ANSWER_SECONDS = 1.0
"""A sentinel that is silent for longer cannot run: its process is stopped, or holds the lock of
its Python interpreter."""

WHERE = "jaxnb.session.process_endpoint.where"
TOLD = "jaxnb.session.process_endpoint"
"""What processes tell of their cells and devices: ``f"{TOLD}.recording"``."""


class Sentinels:
    """The sentinels of a group's processes.

    Safe to use from any thread, and from a child that the notebook has forked: each question has
    sockets of its own. So what is sent or answered too late is dropped.

    Args:
        key: The cluster's key.
        addresses: Process index to where its sentinel listens.
        notice: Shows the user a sentence: which sentinel failed, and why; once each.
    """

    def __init__(
        self,
        key: bytes,
        addresses: Mapping[int, Address],
        notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._key = key
        self._notice = notice
        self._told: set[SentinelFault] = set()
        self._addresses = addresses

    def ask(
        self,
        processes: Iterable[int],
        function: str,
        /,
        *,
        seconds: float | None = None,
        **data: Any,
    ) -> dict[int, Any]:
        """Has processes call a function, whatever their main threads do; it must be quick.

        Args:
            processes: The processes.
            function: Its name, ``jaxnb.FEATURE.process_NAME.FUNCTION``.
            seconds: How long an answer may take; ``ANSWER_SECONDS`` by default.
            data: Its arguments, of which JSON can be made.

        Returns:
            What it returned on those that answer in time and do not fail.
        """
        found = self.ask_all(processes, function, seconds=seconds, **data)
        return {i: each for i, each in found.items() if not isinstance(each, SentinelFault)}

    def ask_all(
        self, processes: Iterable[int], function: str, /, *, seconds: float | None, **data: Any
    ) -> dict[int, Any]:
        """Does what :meth:`ask` does; one that fails gives its :class:`SentinelFault`."""
        indices = set(processes) & self._addresses.keys()
        asked, replies = Direct(self._key, self._addresses), deque[Reply]()
        for index in indices:
            asked.send(index, (), replies, function=function, data=data)
        deadline = time.monotonic() + (ANSWER_SECONDS if seconds is None else seconds)
        while len(replies) < len(indices) and (left := deadline - time.monotonic()) > 0:
            asked.receive(left)
        found = {each.process_index: each.answer for each in replies}
        for index, answer in found.items():
            if isinstance(answer, BaseException):  # of a process whose jaxnb is another one
                told = f"its answer cannot be read: {type(answer).__name__}: {answer}"
                found[index] = SentinelFault(index, function.rpartition(".")[2], told)
        for fault in {each for each in found.values() if isinstance(each, SentinelFault)}:
            if fault not in self._told:
                self._told.add(fault)
                self._notice(str(fault))
        return found

    def where(
        self, processes: Iterable[int], seconds: float | None = None
    ) -> dict[int, Whereabouts]:
        """Returns where processes' main threads are, for those that tell in time.

        One whose sentinel fails has its ``fault`` instead.
        """
        found = self.ask_all(processes, WHERE, seconds=seconds)
        return {
            i: Whereabouts(i, (), fault=each.error) if isinstance(each, SentinelFault) else each
            for i, each in found.items()
        }
