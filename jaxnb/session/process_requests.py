"""Answers the notebook's requests in this process: one function per kind of request."""

from __future__ import annotations

import traceback
from dataclasses import replace
from functools import partial
from typing import Any

from jaxnb.arrays.process_ambient import AmbientMesh
from jaxnb.arrays.process_exposures import Exposures
from jaxnb.arrays.process_pushes import Pushes
from jaxnb.arrays.process_replicas import Replicas
from jaxnb.cells.process_paging import Paging
from jaxnb.cells.process_runner import Runner
from jaxnb.cells.process_sampling import Sampler
from jaxnb.cells.process_sleeping import sleeps_in
from jaxnb.debugging.process_debugger import Debugging
from jaxnb.errors import StartError
from jaxnb.launch import process_bootstrap
from jaxnb.lockstep.process_cell import InLockstep
from jaxnb.lockstep.process_recorder import Recorder
from jaxnb.model.cells import (
    CallRequest,
    CellRequest,
    CheckRequest,
    JoinRequest,
    JointRequest,
    ProcessError,
    Request,
    RequestFailed,
)
from jaxnb.pitfalls.process_nans import NanWatch
from jaxnb.pitfalls.process_pitfalls import Pitfalls
from jaxnb.profile.process_cell_memory import MemoryOfCells
from jaxnb.profile.process_stats import Statistics
from jaxnb.profile.process_timekeeper import Timekeeper, Times
from jaxnb.recovery import hooks
from jaxnb.wire import process_features, process_sentinel
from jaxnb.wire.process_sentinel import Sentinel, ThisProcess
from jaxnb.wire.process_together import Rounds


class Responder:
    """Holds what one process needs to answer requests.

    Args:
        kernel: The process's kernel.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._runner: Runner | None = None
        self._sentinel: Sentinel | None = None
        self._process: ThisProcess | None = None

    async def answer(self, request: Request) -> Any:
        """Answers a request; an exception becomes a :class:`~jaxnb.model.RequestFailed`.

        Also ``sys.exit()`` in a user's ``__reduce__``: it would end the process, which it does not
        in a cell.
        """
        try:
            self._mark(is_answering=True)
            return await self._answer(request)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            return failure(error)
        finally:
            self._mark(is_answering=False)

    def _mark(self, *, is_answering: bool) -> None:
        if self._process is not None:
            lockstep = self._process.recorder.lockstep
            lockstep.is_answering = is_answering
            if not is_answering:  # what a signal's handler has raised may have kept it from that
                lockstep.end("left the cell in a signal's handler")

    async def _answer(self, request: Request) -> Any:
        match request:
            case CellRequest():
                return await self._joined_runner().run(request)
            case JoinRequest():
                process_bootstrap.join(request)
                return None
            case CheckRequest():
                self._joined_runner()
                assert self._sentinel is not None
                assert self._process is not None
                recorder = self._process.recorder
                report = process_bootstrap.check(recorder)
                settings = recorder.settings.report
                return replace(report, sentinel=self._sentinel.address, settings=settings)
            case JointRequest():
                self._joined_runner()
                assert self._process is not None
                with self._process.recorder.joint(request):
                    return self._answer_alone(request.request)
        return self._answer_alone(request)

    def _answer_alone(self, request: CallRequest) -> Any:
        self._joined_runner()
        return process_sentinel.call(self._process, request.function, request.arguments)

    def _joined_runner(self) -> Runner:
        identity = process_bootstrap.joined()
        if identity is None:
            raise StartError("This process has not joined a group yet.")
        if self._runner is None:
            index = identity.process_index
            key = self._kernel.session.key
            where = identity.bind_host, identity.socket_folder
            lockstep = InLockstep(index, identity.num_processes, process_bootstrap.conductor)
            nans = NanWatch(index)
            recorder = Recorder(index, lockstep, nans, Replicas(index))
            timekeeper = Timekeeper()
            recorder.agreement.waited = timekeeper.waited
            times = Times(timekeeper, recorder)
            features = Paging(self._kernel.shell, index), Debugging()
            process_features.register(
                [MemoryOfCells(), times, AmbientMesh(), Pitfalls(), Rounds(), nans, *features]
            )
            hooks.begin()
            shell, sampler = self._kernel.shell, Sampler(timekeeper, sleeps_in)
            runner = Runner(self._kernel, index, recorder, timekeeper)
            exposures = Exposures()
            self._process = this = ThisProcess(
                index,
                shell,
                recorder,
                sampler,
                Statistics(shell),
                exposures,
                Pushes(index, exposures),
                runner.large_value,
            )
            call = partial(process_sentinel.call, this)
            self._sentinel = Sentinel(key, *where, index, call, sampler)
            self._runner = runner
            if not identity.bare:
                self._kernel.shell.push(process_bootstrap.namespace(), interactive=False)
        return self._runner


def failure(error: BaseException) -> RequestFailed:
    """Describes an exception that kept a request from being answered."""
    identity = process_bootstrap.joined()
    text = "".join(traceback.format_exception(error))
    described = ProcessError(type(error).__name__, str(error), text, text)
    return RequestFailed(identity.process_index if identity else None, described)
