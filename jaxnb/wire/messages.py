"""What travels between the notebook and processes: frames, signatures, events, and their bytes."""

from __future__ import annotations

import hashlib
import pickle
import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxnb.launch.deaths import Death
from jaxnb.model.cells import ProcessError, RichOutput, StreamChunk, StreamName


def dump(thing: Any) -> list[Any]:
    """Returns the frames of an object: its pickle, then the buffers that it refers to.

    A :class:`pickle.PickleBuffer` in the object becomes such a buffer.
    """
    buffers: list[pickle.PickleBuffer] = []
    payload = pickle.dumps(thing, protocol=5, buffer_callback=buffers.append)
    return [payload, *(buffer.raw() for buffer in buffers)]


def load(frames: Sequence[Any]) -> Any:
    """Returns the object of frames; buffers in it are views of them.

    The frames were signed with the cluster's key (:mod:`jaxnb.wire.signing`), which the
    caller has checked.
    """
    payload, *buffers = frames
    return pickle.loads(payload, buffers=buffers)


# Jupyter's messages are signed with the cluster's key, but the signature covers header, parent
# header, metadata and content only. What is unpickled is in the buffers, so their digest goes
# into the metadata.

METADATA_KEY = "jaxnb"
"""Marks a request or reply as jaxnb's; its value is :func:`digest` of the buffers."""

AFTER_KEY = "jaxnb_after"
"""With a request by the controller: the number of the last that was sent past it, before."""


def digest(*buffers: Any) -> str:
    """Returns a digest of buffers, for the metadata of the message that carries them."""
    total = hashlib.blake2b(digest_size=32)
    for buffer in buffers:
        view = memoryview(buffer)
        # The sizes too: else bytes could move from one buffer to the next.
        total.update(view.nbytes.to_bytes(8, "little"))
        total.update(view)
    return total.hexdigest()


MORE_KEY = "jaxnb_more"
"""In the metadata of a reply: whether its request has output, which ends with an "idle"."""

DROPPED_MESSAGE = "jaxnb_dropped"
"""The type of the messages that tell the notebook what was not sent."""

QUESTION_TYPE = "application/vnd.jaxnb.question+json"
"""The MIME type of what a process asks the user: it comes after all that was written before."""

OUTPUT_TYPES = frozenset(
    ("stream", "display_data", "update_display_data", "clear_output", DROPPED_MESSAGE)
)
"""The kinds of messages that have a cell's output."""


def printable(thing: Any) -> Any:
    """Returns a text, or what is made of texts, with lone surrogates escaped, as Python does.

    What stands for a byte that could not be decoded (``surrogateescape``) is sent as it is, unless
    there are others beside it.
    """
    match thing:
        case str():
            return _encodable(thing)
        case dict():
            return {printable(key): printable(value) for key, value in thing.items()}
        case list() | tuple():
            return [printable(each) for each in thing]
    return thing


def _encodable(text: str) -> str:
    if text.isascii():
        return text
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


QUIET_TYPES = frozenset(("status", "apply_reply"))
"""The kinds of messages that are no output of what is asked for."""


def install(kernel: Any, on_output: Callable[[], None]) -> None:
    """Has all output that the kernel of this process sends be text that can be sent.

    Args:
        kernel: The kernel.
        on_output: Called, in any thread, before output is sent.
    """
    send = kernel.session.send

    def send_printable(
        stream: Any, message: Any, content: Any = None, *args: Any, **named: Any
    ) -> Any:
        kind = message["msg_type"] if isinstance(message, dict) else message
        if kind not in QUIET_TYPES:
            on_output()
        if not isinstance(message, dict):
            content = printable(content) if kind in OUTPUT_TYPES else content
        elif kind in OUTPUT_TYPES:
            message["content"] = printable(message["content"])
        return send(stream, message, content, *args, **named)

    kernel.session.send = send_printable


@dataclass(frozen=True, slots=True)
class Display:
    """A rich output of a process."""

    process_index: int
    output: RichOutput


@dataclass(frozen=True, slots=True)
class Reply:
    """A process has answered: all its output has been received before."""

    process_index: int
    answer: Any


@dataclass(frozen=True, slots=True)
class ClearOutput:
    """A process asked for its output so far to be cleared."""

    process_index: int
    wait: bool


@dataclass(frozen=True, slots=True)
class Dropped:
    """A process has written more than a cell keeps.

    Attributes:
        process_index: The process.
        name: Of which stream.
        lines: How many lines were not sent; none yet when that begins.
        characters: How many characters.
        most_lines: How many lines it sends of a cell.
        most_characters: How many characters.
    """

    process_index: int
    name: StreamName
    lines: int
    characters: int
    most_lines: int
    most_characters: int


@dataclass(frozen=True, slots=True)
class Question:
    """A process waits for an answer of the user's.

    Attributes:
        process_index: The process.
        number: Of its questions the later one's is larger; 0 if a debugger asks nothing more.
        prompt: What it asks.
        hidden: What is typed is not to be shown: a password.
        alone: A debugger asks: no other process is given the answer.
    """

    process_index: int
    number: int
    prompt: str
    hidden: bool
    alone: bool


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Why a process gave no answer.

    Attributes:
        process_index: The process.
        reason: Why, as the end of a sentence whose subject is the process.
        death: How it died, if it did.
        error: What it raised, if it did.
    """

    process_index: int
    reason: str
    death: Death | None = None
    error: ProcessError | None = None

    def __str__(self) -> str:
        return self.reason


Output = StreamChunk | Display | ClearOutput | Dropped | Question
Event = Output | Reply


class Exchange:
    """One request to several processes, and what comes back, as a queue of events.

    Events of one process come in the order in which it sent them, and its :class:`Reply`
    last.
    """

    def __init__(self) -> None:
        # Not a SimpleQueue: if a signal's handler returns after the time-out of its get(), that
        # waits without end (CPython 3.11), and an interrupt would be lost.
        self.events: queue.Queue[Event | None] = queue.Queue()

    def get(self, timeout_seconds: float) -> Event | None:
        """Returns the next event, or None after ``timeout_seconds`` or a :meth:`wake`."""
        try:
            return self.events.get(timeout=timeout_seconds)
        except queue.Empty:
            return None

    def drain(self) -> Iterator[Event]:
        """Yields the events that have come, without waiting; a :meth:`wake` ends nothing."""
        while True:
            try:
                event = self.events.get_nowait()
            except queue.Empty:
                return
            if event is not None:
                yield event

    def wake(self) -> None:
        """Makes a waiting :meth:`get` return."""
        self.events.put(None)


def event_of(message: Mapping[str, Any]) -> Output | None:
    """Returns the output in a message, its process yet to be named; None for no output."""
    content = message["content"]
    match message["header"]["msg_type"]:
        case "stream":
            return StreamChunk(-1, content["name"], content["text"])
        case "display_data" if QUESTION_TYPE in content["data"]:
            return Question(-1, **content["data"][QUESTION_TYPE])
        case "display_data" | "update_display_data" as kind:
            return Display(
                -1,
                RichOutput(
                    content["data"],
                    content.get("metadata", {}),
                    content.get("transient", {}).get("display_id"),
                    update=kind == "update_display_data",
                ),
            )
        case "clear_output":
            return ClearOutput(-1, content.get("wait", False))
        case msg_type if msg_type == DROPPED_MESSAGE:
            return Dropped(-1, **content)
    return None
