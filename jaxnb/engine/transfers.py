"""Answers what the notebook asks in order to move values, one function per kind of request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxnb.engine import pulls
from jaxnb.engine.exposures import Exposures
from jaxnb.engine.held import HELD
from jaxnb.engine.pushes import Pushes
from jaxnb.model import (
    BindRequest,
    BuildRequest,
    Chunk,
    CurrentRequest,
    Done,
    ExposeRequest,
    LayoutRequest,
    NotFound,
    Packed,
    PackRequest,
    PlaceRequest,
    ReadRequest,
    ReleaseRequest,
    WriteRequest,
)
from jaxnb.paths import parse_path


class Transfers:
    """The pulls and pushes that this process takes part in.

    Args:
        shell: The IPython shell whose namespace values are in.
        process_index: This process.
        large_value: Returns the value of a cell.
    """

    def __init__(
        self,
        shell: Any,
        process_index: int,
        large_value: Callable[[PackRequest], Any],
    ) -> None:
        self._shell = shell
        self._process_index = process_index
        self._large_value = large_value
        self._exposures = Exposures()
        self._pushes = Pushes(process_index, self._exposures)

    def answer(self, request: Any) -> Any:
        """Answers a request.

        Raises:
            TypeError: The request is not known.
            Exception: Whatever a value raises that cannot be pickled.
        """
        namespace = self._shell.user_ns
        match request:
            case PackRequest():
                return self._pack(request)
            case ExposeRequest():
                return pulls.expose(request, self._process_index, self._exposures, HELD)
            case ReadRequest(transfer, buffer, start, stop):
                return Chunk(self._exposures.read(transfer, buffer, start, stop))
            case CurrentRequest():
                return pulls.current(request, namespace, HELD)
            case LayoutRequest():
                return pulls.layout(request, self._process_index, namespace)
            case PlaceRequest():
                return self._pushes.place(request, namespace)
            case WriteRequest(transfer, buffer, start, data):
                self._exposures.write(transfer, buffer, start, data)
            case BuildRequest(transfer):
                self._pushes.build(transfer)
            case BindRequest(transfer):
                # Not hidden from %who: the shell would keep a reference to what it hides.
                self._shell.push(self._pushes.bind(transfer))
            case ReleaseRequest(transfer):
                self._pushes.release(transfer)
            case _:
                raise TypeError(f"unknown request {request!r}")
        return Done(self._process_index)

    def _pack(self, request: PackRequest) -> Packed | NotFound:
        subscripts = 0
        if request.cell:
            value = self._large_value(request)
        else:
            try:
                value, subscripts = pulls.find(parse_path(request.path), self._shell.user_ns)
            except pulls.NotFoundError as error:
                return pulls.not_found(self._process_index, error)
        return pulls.pack(
            value,
            subscripts,
            transfer=request.transfer,
            eager_bytes=request.eager_bytes,
            process_index=self._process_index,
            exposures=self._exposures,
            held=HELD,
            cell=request.cell,
        )
