"""Pure: what processes and the conductor tell each other, as packets.

A word has a fixed size for the size of the group, and is packed and unpacked in a microsecond or
two. Stops are rare, and as long as they need to be: what all tell of them is alike, and packed.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from jaxnb.lockstep.messages import Asking, End, Explanation, Go, Lane, Processes, Side, Stop, Word

DIGEST_BYTES = 16

MAX_ERROR_BYTES = 400
"""What a process has raised is cut to so many bytes."""

MAX_TEXT_BYTES = 1 << 15
"""What a process tells of its word is cut to so many bytes."""

MAX_WAITS = 1000
"""Of so many waiting threads is told at most."""

_LANES: tuple[Lane, ...] = ("main", "other")
_SAY = struct.Struct(f"<cBQi{DIGEST_BYTES}s{DIGEST_BYTES}s")
_BEGIN = struct.Struct("<cq")
_EXPLAIN = struct.Struct("<cQQ")
_HELLO = struct.Struct("<cI")
_GO = struct.Struct("<cQQ")
_STOP = struct.Struct("<cQ")


class WireError(ValueError):
    """A packet is not one of these: cut short, or forged."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A process says who it is; the first packet of its connection."""

    process: int


@dataclass(frozen=True, slots=True)
class Begin:
    """A process begins a cell, which ``members`` were asked to run."""

    cell: int
    members: Processes


class Say(NamedTuple):
    """A thread of a process is about to dispatch a word."""

    token: int
    lane: Lane
    word: Word
    text: str = ""


@dataclass(frozen=True, slots=True)
class Withdraw:
    """A thread does not wait for an answer any more, unless it has one by now."""

    token: int


@dataclass(frozen=True, slots=True)
class Explain:
    """A thread tells of its word when it was stopped, and wants to know of the others'."""

    token: int
    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Leave:
    """A process has left its cell."""

    end: End


@dataclass(frozen=True, slots=True)
class InterruptRaised:
    """A process's main thread has raised KeyboardInterrupt, by a signal."""


@dataclass(frozen=True, slots=True)
class InterruptHandled:
    """A handler of the user's own is called for a signal, in a process's main thread."""


@dataclass(frozen=True, slots=True)
class InterruptHeld:
    """A signal came while a process's main thread waited, or made what it was let make."""


@dataclass(frozen=True, slots=True)
class Interrupt:
    """A cell is to be interrupted on all its processes."""

    cell: int


@dataclass(frozen=True, slots=True)
class Ask:
    """The notebook wants to know who waits, and for whom."""


Said = (
    Hello
    | Begin
    | Say
    | Withdraw
    | Explain
    | Leave
    | InterruptRaised
    | InterruptHandled
    | InterruptHeld
    | Interrupt
    | Ask
)


_BARE: dict[bytes, Said] = {
    b"t": InterruptRaised(),
    b"u": InterruptHandled(),
    b"k": InterruptHeld(),
    b"a": Ask(),
}
"""Packets that say nothing but what they are."""


class Packets:
    """Packs and unpacks for a group of one size.

    Args:
        num_processes: Its size.
    """

    def __init__(self, num_processes: int) -> None:
        self._bytes = (num_processes + 7) // 8
        self._count = num_processes
        self._sets: dict[bytes, Processes] = {}
        self._packed: dict[Processes, bytes] = {}
        self.max_bytes = _SAY.size + self._bytes + MAX_TEXT_BYTES

    def pack(self, said: Said) -> bytes:
        """Returns what a process says as a packet."""
        match said:
            case Say(token, lane, word, text):
                head = _SAY.pack(
                    b"s", _LANES.index(lane), token, word.line, word.program, word.inputs
                )
                return head + self._set(word.participants) + _cut(text, MAX_TEXT_BYTES)
            case Withdraw(token):
                return _STOP.pack(b"w", token)
            case Begin(cell, members):
                return _BEGIN.pack(b"b", cell) + self._set(members)
            case Leave(End(error)):
                return b"l" + _cut(error, MAX_ERROR_BYTES)
            case Explain(token, number, text):
                return _EXPLAIN.pack(b"e", token, number) + _cut(text, MAX_TEXT_BYTES)
            case Hello(process):
                return _HELLO.pack(b"h", process)
            case Interrupt(cell):
                return _BEGIN.pack(b"i", cell)
            case _:
                return next(code for code, bare in _BARE.items() if said == bare)

    def unpack(self, packet: bytes) -> Said:
        """Returns what a process has said.

        Raises:
            WireError: It is none of these.
        """
        try:
            return self._unpack(packet)
        except (struct.error, IndexError) as error:
            raise WireError(f"a packet of {len(packet)} bytes that nobody says: {error}") from None

    def _unpack(self, packet: bytes) -> Said:
        match packet[:1]:
            case b"s":
                _, lane, token, line, program, inputs = _SAY.unpack_from(packet)
                end = _SAY.size + self._bytes
                word = Word(self._processes(packet[_SAY.size : end]), program, inputs, line)
                return Say(token, _LANES[lane], word, packet[end:].decode(errors="replace"))
            case b"b":
                _, cell = _BEGIN.unpack_from(packet)
                return Begin(cell, self._processes(packet[_BEGIN.size :]))
            case b"l":
                return Leave(End(packet[1:].decode(errors="replace")))
            case b"e":
                _, token, number = _EXPLAIN.unpack_from(packet)
                return Explain(token, number, packet[_EXPLAIN.size :].decode(errors="replace"))
            case b"h":
                _, process = _HELLO.unpack(packet)
                if process >= self._count:
                    raise WireError(f"there is no process {process}")
                return Hello(process)
            case b"w":
                return Withdraw(_STOP.unpack(packet)[1])
            case b"i":
                return Interrupt(_BEGIN.unpack(packet)[1])
        if packet not in _BARE:
            raise WireError(f"a packet of {len(packet)} bytes that nobody says")
        return _BARE[packet]

    def _set(self, processes: Processes) -> bytes:
        if processes not in self._packed:
            number = sum(1 << process for process in processes)
            self._packed[processes] = number.to_bytes(self._bytes, "little")
        return self._packed[processes]

    def _processes(self, packed: bytes) -> Processes:
        if packed not in self._sets:
            number = int.from_bytes(packed, "little")
            if len(packed) != self._bytes or not number or number >> self._count:
                raise WireError(f"a set of processes of {len(packed)} bytes that is none")
            found = tuple(i for i in range(self._count) if number >> i & 1)
            self._sets[packed] = found
        return self._sets[packed]


def _cut(text: str, most: int) -> bytes:
    return text.encode(errors="replace")[:most]


def pack_answer(token: int, what: Go | Stop | Explanation) -> bytes:
    """Returns what the conductor answers as a packet."""
    if isinstance(what, Go):
        beside = json.dumps(what.told).encode() if what.told else b""
        return _GO.pack(b"g", token, what.number) + beside
    if isinstance(what, Explanation):
        ends = [[q, end.error] for q, end in what.ends]
        told = json.dumps([what.number, what.told, ends]).encode()
        return _STOP.pack(b"y", token) + zlib.compress(told)
    sides = [
        [
            list(side.processes),
            side.word and _plain(side.word),
            None if side.end is None else side.end.error,
        ]
        for side in what.sides
    ]
    text = json.dumps([what.number, what.kind, sides, what.was_pressed])
    return _STOP.pack(b"x", token) + text.encode()


def unpack_answer(packet: bytes) -> tuple[int, Go | Stop | Explanation]:
    """Returns whom the conductor has answered, and what.

    Raises:
        WireError: It is no answer.
    """
    try:
        if packet[:1] == b"g":
            _, token, number = _GO.unpack_from(packet)
            told = _told(json.loads(packet[_GO.size :])) if len(packet) > _GO.size else ()
            return token, Go(number, told)
        if packet[:1] == b"x":
            _, token = _STOP.unpack_from(packet)
            number, kind, sides, was_pressed = json.loads(packet[_STOP.size :])
            return token, Stop(number, kind, tuple(map(_side, sides)), bool(was_pressed))
        if packet[:1] == b"y":
            _, token = _STOP.unpack_from(packet)
            number, texts, left = json.loads(zlib.decompress(packet[_STOP.size :]))
            ends = tuple((int(i), End(str(error))) for i, error in left)
            return token, Explanation(number, _told(texts), ends)
    except (struct.error, ValueError, TypeError, zlib.error) as error:
        raise WireError(f"an answer of {len(packet)} bytes that is none: {error}") from None
    raise WireError(f"an answer of {len(packet)} bytes that is none")


def pack_waits(waits: Iterable[Asking]) -> bytes:
    """Returns who waits as a packet; of very many threads the first ones."""
    shown = list(islice(waits, MAX_WAITS))
    sets = dict.fromkeys(each.word.participants for each in shown)
    numbers = {participants: i for i, participants in enumerate(sets)}
    told = [
        [process, lane, token, numbers[word.participants], *_plain(word)[1:]]
        for process, lane, token, word in shown
    ]
    return json.dumps([list(numbers), told]).encode()


def unpack_waits(packet: bytes) -> tuple[Asking, ...]:
    """Returns who waits.

    Raises:
        WireError: It is no such packet.
    """
    try:
        sets, told = json.loads(packet)
        return tuple(
            Asking(int(process), _LANES[_LANES.index(lane)], int(token), _word([sets[k], *rest]))
            for process, lane, token, k, *rest in told
        )
    except (ValueError, TypeError, IndexError) as error:
        raise WireError(f"{len(packet)} bytes that do not tell who waits: {error}") from None


def _plain(word: Word) -> list[Any]:
    return [word.participants, word.program.hex(), word.inputs.hex(), word.line]


def _word(plain: Iterable[Any]) -> Word:
    participants, program, inputs, line = plain
    return Word(tuple(participants), bytes.fromhex(program), bytes.fromhex(inputs), line)


def _told(plain: Iterable[Any]) -> tuple[tuple[int, str], ...]:
    return tuple((int(process), str(text)) for process, text in plain)


def _side(plain: Iterable[Any]) -> Side:
    processes, word, end = plain
    said = None if word is None else _word(word)
    return Side(tuple(processes), said, None if end is None else End(str(end)))
