"""Bytes between the notebook's arrays and the processes' buffers, as fast as they go."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from jaxnb.arrays.regions import boxes
from jaxnb.model.arrays import Exposure, MemoryPass, Part
from jaxnb.model.cells import CallRequest
from jaxnb.wire import peer_memory
from jaxnb.wire.asking import TICK_SECONDS, Channel

PIECE_BYTES = 16 << 20
"""Threads look for an interrupt, and for other work, between pieces of this size."""

SCRATCH_BYTES = 1 << 20
"""What is not contiguous here goes through a buffer that fits a core's cache."""

CHUNK_BYTES = 4 << 20
"""Size of the messages where a process's memory is out of reach."""

INLINE_BYTES = 1 << 20
"""Less than this is not worth a thread."""

INLINE_PIECE_BYTES = 256 << 10
"""Nor are pieces smaller than this, however many: threads take turns to prepare them."""

INLINE_PARTS_BYTES = 64 << 10
"""Fewer bytes of a process cost less in a message: who reads them where they are has to say so
when that is done."""

MAX_THREADS = 4
"""More do not copy faster than memory is."""


Ticker = Callable[[int], None]
"""Takes how many bytes have been moved so far."""

Meter = Callable[[str, int], AbstractContextManager[Ticker]]
"""Shows progress: made with what is done and the number of bytes."""


@contextmanager
def no_meter(doing: str, total_bytes: int) -> Iterator[Ticker]:
    """Shows nothing."""
    yield lambda done_bytes: None


def request_for(
    function: str, /, *, is_interruptible: bool = False, **arguments: Any
) -> CallRequest:
    """Returns what asks a process for a step of a pull or push.

    Args:
        function: ``"pulls.NAME"`` or ``"pushes.NAME"``, of the modules ``jaxnb.arrays.process_…``.
        is_interruptible: It runs code of the user's, or waits for computations.
        arguments: Its arguments.
    """
    return CallRequest(f"jaxnb.arrays.process_{function}", arguments, is_interruptible)


class Move(NamedTuple):
    """One buffer of a process and the array here that it is read into or written from.

    Attributes:
        process_index: The process.
        access: Whether its memory is within reach.
        transfer: The transfer that keeps the buffer open.
        exposure: The buffer, or for a read its bytes, if they have come: the array's elements in C
            order.
        array: The array here; it need not be contiguous.
        dtype: For a write: the dtype in the buffer.
    """

    process_index: int
    access: MemoryPass
    transfer: str
    exposure: Part
    array: np.ndarray[Any, Any]
    dtype: np.dtype[Any] | None = None


class _Piece(NamedTuple):
    """A part of a move, small enough to be done at once: a box, and where its bytes start."""

    move: Move
    offset: int
    box: np.ndarray[Any, Any]

    @property
    def place(self) -> tuple[int, np.ndarray[Any, Any]]:
        """Where it is in the process, and here."""
        return self.move.exposure.address + self.offset, self.box

    @property
    def nbytes(self) -> int:
        """Its bytes in the process, whose dtype may be narrower."""
        return self.box.size * (self.move.dtype or self.box.dtype).itemsize


class Mover:
    """Moves bytes; remembers whose memory is within reach.

    Args:
        meter: Returns what shows progress.
    """

    def __init__(self, meter: Callable[[], Meter]) -> None:
        self._meter = meter
        self._reach: dict[MemoryPass, bool] = {}

    @property
    def inline_bytes(self) -> int:
        """So many bytes of a process are better sent than read where they are."""
        return CHUNK_BYTES if False in self._reach.values() else INLINE_PARTS_BYTES

    def read(self, channel: Channel, moves: Sequence[Move], name: str) -> None:
        """Fills the moves' arrays, which are called ``name``.

        Raises:
            KeyboardInterrupt: It was interrupted; the arrays hold anything.
            ProcessDiedError: A process died.
            JaxnbError: A process did not give its bytes.
        """
        for move in moves:
            if not isinstance(move.exposure, Exposure):
                _fill(move.array, move.exposure)
        if not (moves := [move for move in moves if isinstance(move.exposure, Exposure)]):
            return
        doing, label = f"pulling {name}", f"{name} was pulled"
        self._move(channel, moves, doing, label, _read_direct, _read_request)

    def write(self, channel: Channel, moves: Sequence[Move], name: str) -> None:
        """Fills the processes' buffers with what is called ``name``.

        Raises:
            KeyboardInterrupt: It was interrupted; the buffers hold anything.
            ProcessDiedError: A process died.
            JaxnbError: A process did not take its bytes.
        """
        doing, label = f"pushing {name}", f"{name} was pushed"
        self._move(channel, moves, doing, label, _write_direct, _write_request)

    def _move(
        self,
        channel: Channel,
        moves: Sequence[Move],
        doing: str,
        label: str,
        direct: Callable[[int, Sequence[_Piece]], None],
        request: Callable[[_Piece], CallRequest],
    ) -> None:
        accesses = {id(move.access): move.access for move in moves}  # once for each process
        within_reach = {key for key, access in accesses.items() if self._is_near(access)}
        near = [move for move in moves if id(move.access) in within_reach]
        far = [move for move in moves if id(move.access) not in within_reach]
        total = sum(move.exposure.nbytes for move in moves)
        done = 0
        with self._meter()(doing, total) as tick:

            def add(nbytes: int) -> None:
                nonlocal done
                done += nbytes
                tick(done)

            if near:
                _in_threads(channel, near, direct, add, label)
            if far:
                _in_chunks(channel, far, request, add, label)

    def _is_near(self, access: MemoryPass) -> bool:
        if access not in self._reach:
            self._reach[access] = peer_memory.is_within_reach(
                access.pid, access.address, access.nonce
            )
        return self._reach[access]


def _in_threads(
    channel: Channel,
    moves: Sequence[Move],
    work: Callable[[int, Sequence[_Piece]], None],
    add: Callable[[int], None],
    label: str,
) -> None:
    """Does all pieces, several at once; the calling thread waits, and looks for interrupts."""
    moves = sorted(moves, key=lambda move: move.process_index)  # one call for several pieces
    pieces = [piece for move in moves for piece in _pieces(move, PIECE_BYTES)]

    def run(batch: list[_Piece]) -> int:
        for index, those in groupby(batch, key=lambda piece: piece.move.process_index):
            of_process = [*those]
            try:
                work(of_process[0].move.access.pid, of_process)
            except OSError as error:
                raise _UnreachableError(index, error) from error
        return sum(piece.nbytes for piece in batch)

    size = sum(piece.box.nbytes for piece in pieces)
    if size < max(INLINE_BYTES, INLINE_PIECE_BYTES * len(pieces)):
        for batch in _batches(pieces):
            channel.check()
            with _telling_deaths(channel, label):
                add(run(batch))
        return
    pool = ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1), "jaxnb-move")
    try:
        left = {pool.submit(run, batch) for batch in _batches(pieces)}
        while left:
            channel.check()
            done, left = wait(left, TICK_SECONDS, FIRST_COMPLETED)
            with _telling_deaths(channel, label):
                for each in done:
                    add(each.result())
        channel.check()  # all may have been done since the last look
    finally:
        # Nothing may write into an array that its owner believes to be left alone.
        pool.shutdown(cancel_futures=True)


class _UnreachableError(Exception):
    """The memory of a process could not be read or written: the process, and the error."""


@contextmanager
def _telling_deaths(channel: Channel, label: str) -> Iterator[None]:
    """Raises ProcessDiedError where a process's memory is out of reach since it has died."""
    try:
        yield
    except _UnreachableError as unreachable:
        index, error = unreachable.args
        channel.require({index: channel.why_unreachable(index, error)}, label)
        raise error from None


def _batches(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """Puts small pieces together: to hand one over to a thread costs as much as to copy it."""
    batch: list[_Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += piece.box.nbytes
        if size >= INLINE_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _pieces(move: Move, limit: int) -> Iterator[_Piece]:
    """Cuts a move into boxes whose bytes are adjacent in the process."""
    if not move.array.nbytes:
        return
    itemsize = (move.dtype or move.array.dtype).itemsize
    offset = 0
    for box in boxes(move.array, limit):
        yield _Piece(move, offset, box)
        offset += box.size * itemsize


def _read_direct(pid: int, pieces: Sequence[_Piece]) -> None:
    peer_memory.read(pid, *(each.place for each in pieces if each.box.flags.c_contiguous))
    for piece in pieces:
        address = piece.place[0]
        for box in [] if piece.box.flags.c_contiguous else boxes(piece.box, SCRATCH_BYTES):
            scratch = np.empty(box.shape, box.dtype)
            peer_memory.read(pid, (address, scratch))
            box[...] = scratch
            address += scratch.nbytes


def _write_direct(pid: int, pieces: Sequence[_Piece]) -> None:
    for piece in pieces:
        dtype = piece.move.dtype or piece.box.dtype
        if piece.box.flags.c_contiguous and dtype == piece.box.dtype:
            peer_memory.write(pid, piece.place)
            continue
        address = piece.place[0]
        for box in boxes(piece.box, SCRATCH_BYTES):
            scratch = _converted(box, dtype)
            peer_memory.write(pid, (address, scratch))
            address += scratch.nbytes


def _in_chunks(
    channel: Channel,
    moves: Sequence[Move],
    request: Callable[[_Piece], CallRequest],
    add: Callable[[int], None],
    label: str,
) -> None:
    """Reads or writes by messages: each process a few ahead."""
    queues: dict[int, list[_Piece]] = {}
    for move in moves:
        queues.setdefault(move.process_index, []).extend(_pieces(move, CHUNK_BYTES))
    expected = {index: iter(pieces) for index, pieces in queues.items()}
    requests = {index: map(request, pieces) for index, pieces in queues.items()}
    for index, answer in channel.ask_all(requests):
        channel.require({index: answer}, label)
        piece = next(expected[index])
        if answer is not None:  # of a read
            _fill(piece.box, answer)
        add(piece.nbytes)


def _fill(box: np.ndarray[Any, Any], data: Any) -> None:
    box[...] = np.frombuffer(data, dtype=box.dtype).reshape(box.shape)


def _read_request(piece: _Piece) -> CallRequest:
    stop = piece.offset + piece.box.nbytes
    return request_for("pulls.read", **_room(piece), start=piece.offset, stop=stop)


def _write_request(piece: _Piece) -> CallRequest:
    array = _converted(piece.box, piece.move.dtype or piece.box.dtype)
    data = pickle.PickleBuffer(array.reshape(-1).view(np.uint8).data)
    return request_for("pushes.write", **_room(piece), start=piece.offset, data=data)


def _room(piece: _Piece) -> dict[str, Any]:
    return {"transfer": piece.move.transfer, "buffer": piece.move.exposure.buffer}


def _converted(box: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    # What overflows was refused before; infinities and NaN are as they are.
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return np.ascontiguousarray(box, dtype=dtype)
