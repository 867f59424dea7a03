"""What the notebook asks of this process in order to move values: one function for each."""

from __future__ import annotations

from typing import Any

from jaxnb.arrays import process_pulls
from jaxnb.arrays.process_held import HELD
from jaxnb.arrays.regions import parse_path
from jaxnb.model.arrays import (
    Chunk,
    Exposed,
    ExposeRequest,
    Gone,
    LayoutReply,
    NotFound,
    Packed,
    PackRequest,
    Placed,
    PlaceRequest,
    Refused,
)
from jaxnb.wire.process_sentinel import ThisProcess


def pack(process: ThisProcess, request: PackRequest) -> Packed | NotFound:
    """Describes a value: its structure, and its arrays.

    Raises:
        Exception: Whatever a value raises that cannot be pickled.
    """
    subscripts: list[Any] = []
    if request.cell:
        value = process.large_value(request)
    else:
        try:
            path = parse_path(request.path)
            value, left = process_pulls.find(path, process.shell.user_ns)
            subscripts = path.last_keys(left)
        except process_pulls.NotFoundError as error:
            return process_pulls.not_found(process.index, error)
    return process_pulls.pack(
        value,
        subscripts,
        transfer=request.transfer,
        eager_bytes=request.eager_bytes,
        process_index=process.index,
        exposures=process.exposures,
        held=HELD,
        cell=request.cell,
    )


def expose(process: ThisProcess, request: ExposeRequest) -> Exposed | Gone:
    """Keeps parts of arrays in host memory, where the notebook reads them."""
    return process_pulls.expose(request, process.index, process.exposures, HELD)


def read(process: ThisProcess, transfer: str, buffer: int, start: int, stop: int) -> Chunk:
    """Returns bytes of an exposed buffer, where the process's memory is out of reach."""
    return Chunk(process.exposures.read(transfer, buffer, start, stop))


def layout(process: ThisProcess, path: str) -> LayoutReply | NotFound:
    """Returns how the arrays of a value lie over processes and devices.

    Args:
        process: This process.
        path: The value's name, with attributes and subscripts.
    """
    return process_pulls.layout(path, process.index, process.shell.user_ns)


def place(process: ThisProcess, request: PlaceRequest) -> Placed | Refused:
    """Checks that what is pushed fits, and makes room for it; nothing has moved yet."""
    return process.pushes.place(request, process.shell.user_ns)


def write(process: ThisProcess, transfer: str, buffer: int, start: int, data: Any) -> None:
    """Puts bytes into an allocated buffer, where the process's memory is out of reach."""
    process.exposures.write(transfer, buffer, start, data)


def build(process: ThisProcess, transfer: str) -> None:
    """Makes the arrays of a push out of the bytes that have come; binds no name yet."""
    process.pushes.build(transfer)


def bind(process: ThisProcess, transfer: str) -> None:
    """Binds what was pushed to its names, and ends the transfer."""
    # Not hidden from %who: the shell would keep a reference to what it hides.
    process.shell.push(process.pushes.bind(transfer))


def release(process: ThisProcess, transfer: str) -> None:
    """Ends a transfer, and drops its buffers. Unknown ones are no error."""
    process.pushes.release(transfer)
