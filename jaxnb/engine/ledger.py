"""What this process has been asked, what it has answered, and what it has sent meanwhile.

A request, a reply or a piece of output may be lost on its way. The notebook asks the sentinel for
this ledger when it has waited for a while, sends a request that never came again, and has what is
missing sent again. A request is known by its message's id: one that comes twice runs once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxnb.engine.plain_text import printable

NUMBER_KEY = "jaxnb_number"
"""In the metadata of output: which message it is of its request, from 1."""

FENCE_MESSAGE = "jaxnb_fence"
"""The type of a message that comes after all output that was sent before it."""

ACKNOWLEDGED_KEY = "jaxnb_acknowledged"
"""In the metadata of a request: requests whose replies the notebook has."""

OUTPUT_TYPES = frozenset(
    ("stream", "display_data", "update_display_data", "clear_output", "jaxnb_dropped")
)

KEPT_REQUESTS = 64
"""Of so many requests reply and output are kept; of a reply that was acknowledged nothing is."""

SEEN_REQUESTS = 100_000
"""So many requests are known, should they come again."""

KEPT_CHARS = 1 << 20
"""How much output of a request is kept: what is older cannot be sent again, and is said to be
lost where it was."""

KEPT_REPLY_BYTES = 1 << 20
"""A longer reply to what is no cell is not kept: it only reads, and is made again."""


@dataclass
class _Entry:
    reply: list[Any] | None = None
    is_answered: bool = False
    last_number: int = 0
    end_number: int | None = None
    outputs: deque[tuple[int, str, Any]] = field(default_factory=deque)
    chars: int = 0


class Ledger:
    """Safe to use from any thread: the sentinel's reads it."""

    def __init__(self) -> None:
        # Reentrant: the collection of garbage may run a __del__ that prints, anywhere.
        self._lock = threading.RLock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._running: set[str] = set()
        self._send_fence: Callable[[str, int], object] = lambda request, number: None

    def install_fence(self, send: Callable[[str, int], object]) -> None:
        """Takes what sends a fence: of which request, and the number of its last output."""
        self._send_fence = send

    def fence(self, request: str) -> None:
        """Sends a message after the output of a request that has ended.

        What has not come when that message comes was lost on the way.
        """
        with self._lock:
            entry = self._entries.get(request)
            if entry is not None and entry.end_number is not None:  # all of it has been sent
                self._send_fence(request, entry.end_number)

    def begin(self, request: str) -> bool:
        """Notes that a request has come; returns whether it is to be answered now.

        It is not if it is being answered, or its reply is kept, or it was a cell.
        """
        with self._lock:
            if request in self._seen:
                entry = self._entries.get(request)
                again = entry is not None and entry.is_answered and entry.reply is None
                if request in self._running or not again:
                    return False
            self._seen[request] = None
            while len(self._seen) > SEEN_REQUESTS:
                self._seen.popitem(last=False)
            self._entries.setdefault(request, _Entry())
            while len(self._entries) > KEPT_REQUESTS:
                self._entries.popitem(last=False)
            self._running.add(request)
            return True

    def answered(self, request: str, reply: Sequence[Any], *, is_cell: bool) -> None:
        """Keeps the frames of a reply until it is acknowledged."""
        sizes = sum(memoryview(each).nbytes for each in reply)
        with self._lock:
            self._running.discard(request)
            entry = self._entries.get(request)
            if entry is not None:
                entry.is_answered = True
                if is_cell or sizes <= KEPT_REPLY_BYTES:
                    entry.reply = [bytes(each) for each in reply]

    def reply(self, request: str) -> list[Any] | None:
        """Returns the frames of a reply that is kept."""
        with self._lock:
            entry = self._entries.get(request)
            return entry.reply if entry is not None else None

    def acknowledge(self, requests: Iterable[str]) -> None:
        """Forgets replies that the notebook has."""
        with self._lock:
            for request in requests:
                entry = self._entries.get(request)
                if entry is not None:
                    entry.reply = []

    def number(self, request: str, kind: str, content: Mapping[str, Any]) -> int | None:
        """Returns the number of a message that is about to be sent; None if it has none.

        The "idle" that ends the output of a request has the last one.
        """
        is_end = kind == "status" and content.get("execution_state") == "idle"
        if not is_end and kind not in OUTPUT_TYPES:
            return None
        with self._lock:
            entry = self._entries.get(request)
            if entry is None:
                return None
            if is_end and entry.end_number is not None:
                return entry.end_number
            entry.last_number += 1
            if is_end:
                entry.end_number = entry.last_number
            else:
                self._keep(entry, kind, content)
            return entry.last_number

    def _keep(self, entry: _Entry, kind: str, content: Mapping[str, Any]) -> None:
        entry.outputs.append((entry.last_number, kind, content))
        entry.chars += _chars(content)
        while entry.chars > KEPT_CHARS:
            entry.chars -= _chars(entry.outputs.popleft()[2])

    def told(self, requests: Iterable[str]) -> dict[str, Any]:
        """Returns what is known of requests, as plain data for the notebook."""
        with self._lock:
            known = {each: self._entries[each] for each in requests if each in self._entries}
            return {
                "is_busy": bool(self._running),
                "requests": {
                    name: {"is_answered": entry.is_answered, "end": entry.end_number}
                    for name, entry in known.items()
                },
            }

    def outputs(self, request: str, numbers: Iterable[int]) -> dict[str, Any]:
        """Returns messages of a request's output by number, as far as they are kept."""
        wanted = set(numbers)
        with self._lock:
            entry = self._entries.get(request)
            kept = entry.outputs if entry is not None else ()
            return {str(n): [kind, content] for n, kind, content in kept if n in wanted}


def _chars(content: Mapping[str, Any]) -> int:
    data = content.get("data", content)
    return 64 + sum(len(each) for each in data.values() if isinstance(each, str))


LEDGER = Ledger()
"""Of this process."""


def install(kernel: Any) -> None:
    """Has what the kernel of this process sends carry its numbers, in text that can be sent."""
    session = kernel.session
    send = session.send

    def numbered(stream: Any, message: Any, content: Any = None, *args: Any, **named: Any) -> Any:
        if isinstance(message, dict):
            kind, said, parent = message["msg_type"], message["content"], message["parent_header"]
        else:
            kind, said, parent = message, content, args[0] if args else named.get("parent")
            parent = (parent or {}).get("header", parent)
        if kind in OUTPUT_TYPES:
            said = printable(said)
            if isinstance(message, dict):
                message["content"] = said
            else:
                content = said
        number = LEDGER.number((parent or {}).get("msg_id", ""), kind, said or {})
        if number is not None:
            if isinstance(message, dict):
                message.setdefault("metadata", {})[NUMBER_KEY] = number
            else:
                named["metadata"] = {**(named.get("metadata") or {}), NUMBER_KEY: number}
        return send(stream, message, content, *args, **named)

    def send_fence(request: str, number: int) -> None:
        message = session.msg(FENCE_MESSAGE, {"number": number}, parent={"msg_id": request})
        session.send(kernel.iopub_socket, message, ident=FENCE_MESSAGE.encode())

    session.send = numbered
    LEDGER.install_fence(send_fence)
