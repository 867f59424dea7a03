"""Answers the notebook's requests in this process: one function per kind of request."""

from __future__ import annotations

import traceback
from typing import Any

from jaxnb.engine import bootstrap, stats
from jaxnb.engine.runner import Runner
from jaxnb.errors import StartError
from jaxnb.model import (
    CellRequest,
    CheckRequest,
    FetchRequest,
    JoinRequest,
    ProcessError,
    Request,
    RequestFailed,
    StatsRequest,
)


class Responder:
    """Holds what one process needs to answer requests.

    Args:
        kernel: The process's kernel.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._runner: Runner | None = None

    async def answer(self, request: Request) -> Any:
        """Answers a request; an exception becomes a :class:`~jaxnb.model.RequestFailed`."""
        try:
            return await self._answer(request)
        except (Exception, KeyboardInterrupt) as error:
            return failure(error)

    async def _answer(self, request: Request) -> Any:
        match request:
            case CellRequest():
                return await self._joined_runner().run(request)
            case FetchRequest():
                return self._joined_runner().fetch(request)
            case JoinRequest():
                bootstrap.join(request)
                return None
            case CheckRequest():
                self._joined_runner()
                return bootstrap.check()
            case StatsRequest():
                return stats.device_stats()
        raise TypeError(f"unknown request {request!r}")

    def _joined_runner(self) -> Runner:
        identity = bootstrap.joined()
        if identity is None:
            raise StartError("This process has not joined a group yet.")
        if self._runner is None:
            self._runner = Runner(self._kernel, identity.process_index)
            if not identity.bare:
                self._kernel.shell.push(bootstrap.namespace(), interactive=False)
        return self._runner


def failure(error: BaseException) -> RequestFailed:
    """Describes an exception that kept a request from being answered."""
    identity = bootstrap.joined()
    text = "".join(traceback.format_exception(error))
    described = ProcessError(type(error).__name__, str(error), text, text)
    return RequestFailed(identity.process_index if identity else None, described)
