"""What a process answers to the notebook's requests, in its main thread and beside it."""

from __future__ import annotations

import asyncio
import gc
import linecache
import logging
import os
import re
import secrets
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import CodeType, FrameType
from typing import Any, NamedTuple

from jaxnb.arrays.process_pulls import Exposures
from jaxnb.arrays.process_pushes import AmbientMesh
from jaxnb.arrays.process_replicas import Replicas
from jaxnb.cells import process_shell
from jaxnb.cells.process_output import Paging
from jaxnb.cells.process_runner import Runner
from jaxnb.compat import ipykernel
from jaxnb.compat.ipykernel import PythonOutStream
from jaxnb.debugging.process_debugger import Debugging
from jaxnb.errors import StartError
from jaxnb.launch import process_compiling, process_join
from jaxnb.launch.folder import direct_name, sentinel_name
from jaxnb.lockstep import process_interrupts, process_recorded
from jaxnb.lockstep.messages import Failures
from jaxnb.lockstep.process_cell import InLockstep
from jaxnb.lockstep.process_interrupts import AT_PROMPT, TYPED, frames_of, is_of_cell
from jaxnb.lockstep.process_origins import ORIGINS
from jaxnb.lockstep.process_recorder import Recorder
from jaxnb.model.cells import (
    CallRequest,
    CellRequest,
    CheckRequest,
    JointRequest,
    ProcessError,
    Request,
    RequestFailed,
)
from jaxnb.model.dispatches import Argument, DigestedArray, Processes, ProgramLine, Recording
from jaxnb.model.group import ProcessReport, StackEntry, Whereabouts
from jaxnb.pitfalls.process_pitfalls import NanWatch, Pitfalls
from jaxnb.profile.process_cell_memory import MemoryOfCells
from jaxnb.profile.process_profiler import Profiler
from jaxnb.profile.process_stats import Statistics, looking, quickly_back
from jaxnb.profile.process_timekeeper import Timekeeper
from jaxnb.recovery import hooks
from jaxnb.wire import messages, process_features, process_sentinel
from jaxnb.wire.messages import AFTER_KEY, METADATA_KEY, MORE_KEY, digest, dump, load
from jaxnb.wire.process_sentinel import LARGEST_BYTES, Listener, ThisProcess
from jaxnb.wire.process_together import Rounds


def recording(process: ThisProcess) -> Recording:
    """Returns what it has dispatched in its cell."""
    return process.recorder.recording()


def failures(process: ThisProcess) -> dict[Processes, Failures]:
    """Returns what has failed of what it has dispatched, by the processes that it spans."""
    return process.recorder.launches.told()


def still_computed(process: ThisProcess) -> tuple[str, ...]:
    """Returns what it has dispatched that has not ended."""
    return process_recorded.still_computed()


def arguments(process: ThisProcess, processes: Sequence[int], number: int) -> list[Argument]:
    """Returns what it was to give to a dispatch of its last cell that was not made.

    Args:
        process: This process.
        processes: Those that the dispatch spans.
        number: Which one over these it is.
    """
    return process.recorder.arguments(tuple(processes), number)


def program(process: ThisProcess, fingerprint: int) -> list[ProgramLine]:
    """Returns a program that it has dispatched; empty if it does not remember it."""
    return process.recorder.programs.lines(fingerprint)


def bound(process: ThisProcess) -> dict[str, Argument]:
    """Returns the names that hold global arrays, and where those come from."""
    return {each.name: each for each in ORIGINS.bound()}


def digested(process: ThisProcess) -> list[DigestedArray]:
    """Returns the arrays whose replicas it has digested in its last cell."""
    return process.recorder.replicas.digested()


class Call(NamedTuple):
    """A call as it was when it was looked at.

    The call itself is not kept: it would keep its variables, and so the memory of arrays, after it
    has ended.
    """

    code: CodeType
    line: int


def calls() -> list[Call]:
    """Returns the calls of the main thread, innermost first, those first that a cell awaits."""
    with _looking():
        return [Call(each.f_code, each.f_lineno or 0) for each in frames_of(_innermost())]


def _innermost() -> FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident or 0)


@contextmanager
def _looking() -> Iterator[None]:
    """Looks as others do, and has no garbage collected by itself.

    To look at another thread's call is to make an object for it. In Python 3.11 that may begin a
    collection, which lets the other thread go on: then the object is made for a call that has
    ended, and what is in its place by then is written over. (A collection lets others go on where
    it frees something of JAX, or calls what JAX has put into ``gc.callbacks``.) A threshold of 0
    is what nobody looks at; ``gc.disable()`` would be seen by ``timeit``, which would keep it.
    """
    with looking():
        before = gc.get_threshold()[0]
        gc.set_threshold(0)
        try:
            yield
        finally:
            if gc.get_threshold()[0] == 0:
                gc.set_threshold(before)


MAX_FRAMES = 40
"""Of a deeper stack the innermost are told."""

_CELL = re.compile(r"<cell (\d+)>")


@quickly_back()
def where(process: ThisProcess) -> Whereabouts:
    """Returns where the main thread is."""
    recorder = process.recorder
    recording = recorder.recording(1)
    # What it waits to be let make comes after all that it has made.
    last = recording.refused or next(iter(recording.dispatches), None)
    return Whereabouts(
        process.index,
        stack(),
        recorder.cell_seconds(),
        process_interrupts.seconds_since_strike(),
        process_interrupts.seconds_since_missed(),
        last,
        process_compiling.main_thread_does(),
    )


def stack() -> tuple[StackEntry, ...]:
    """Returns the main thread's Python stack, outermost first."""
    found = calls()[:MAX_FRAMES]
    typed = next((i for i, each in enumerate(found) if each.code is AT_PROMPT), len(found))
    return tuple(_described(each, i > typed) for i, each in reversed([*enumerate(found)]))


def _described(call: Call, has_prompt: bool) -> StackEntry:
    code, line = call.code, call.line or None
    cell = _CELL.fullmatch(code.co_filename)
    source = linecache.getline(code.co_filename, line or 0).strip()
    number = int(cell[1]) if cell else 0 if is_of_cell(code) else None
    source = TYPED if has_prompt and number is not None else source
    return StackEntry(code.co_filename, line, code.co_qualname, source, number)


class _Joined(NamedTuple):
    """What a process that has joined a group answers with."""

    runner: Runner
    sentinel: Listener
    direct: Listener
    process: ThisProcess


class Responder:
    """Holds what one process needs to answer requests.

    Args:
        kernel: The process's kernel.

    Attributes:
        turn: Held while a request is answered: the next one waits, though a cell awaits.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._joined: _Joined | None = None
        self.turn = asyncio.Lock()
        self._answering: set[asyncio.Task[None]] = set()
        self._has_answered, self._answered = asyncio.Event(), 0

    async def answer(self, request: Request) -> Any:
        """Answers a request; an exception becomes a :class:`~jaxnb.model.RequestFailed`.

        Also ``sys.exit()`` in a user's ``__reduce__``: it would end the process, which it does not
        in a cell.
        """
        try:
            process_interrupts.is_answering = True
            return await self._answer(request)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            return failure(error)
        finally:
            process_interrupts.is_answering = False  # no call: a handler might raise before it
            if self._joined is not None:  # what a handler has raised may have kept it from that
                self._joined.process.recorder.lockstep.end("left the cell in a signal's handler")

    async def _answer(self, request: Request) -> Any:
        if self._joined is None:
            self._joined = self._join()
        runner, sentinel, _, process = self._joined
        recorder = process.recorder
        match request:
            case CellRequest():
                return await runner.run(request)
            case CheckRequest():
                report, settings = process_join.check(recorder), recorder.settings.report
                return replace(report, token=sentinel.token, settings=settings)
            case JointRequest(request=call):
                with recorder.joint(request):
                    return process_sentinel.call(process, call.function, call.arguments)
        return process_sentinel.call(process, request.function, request.arguments)

    def _join(self) -> _Joined:
        identity = process_join.joined()
        if identity is None:
            raise StartError("This process has not joined a group yet.")
        index, shell = identity.process_index, self._kernel.shell
        lockstep = InLockstep(index, identity.num_processes, process_join.conductor)
        nans = NanWatch(index)
        recorder = Recorder(index, lockstep, nans, Replicas(index))
        timekeeper = Timekeeper(recorder)
        recorder.agreement.waited = timekeeper.waited
        # The profiler is last: it records nothing of the others as a cell begins.
        features = Paging(shell, index), Debugging(), Profiler(identity.socket_folder)
        process_features.register(
            [MemoryOfCells(), timekeeper, AmbientMesh(), Pitfalls(), Rounds(), nans, *features]
        )
        hooks.begin()
        runner = Runner(self._kernel, index, recorder, timekeeper)
        process = ThisProcess(
            index,
            shell,
            recorder,
            Statistics(shell),
            Exposures(),
            {},
            runner.large_value,
        )
        listener = partial(
            Listener, self._kernel.session.key, identity.socket_folder, token=secrets.token_hex(16)
        )
        pid = os.getpid()
        sentinel = listener(name=sentinel_name(index, pid), largest_bytes=LARGEST_BYTES)
        watch, asked = process_sentinel.watch, (sentinel, process)
        threading.Thread(target=watch, args=asked, name="jaxnb-sentinel", daemon=True).start()
        direct = listener(name=direct_name(index, pid))
        ipykernel.call_when_readable(self._kernel, direct.fd, partial(self._take, direct))
        if not identity.bare:
            shell.push(process_join.namespace(), interactive=False)
        return _Joined(runner, sentinel, direct, process)

    def _take(self, direct: Listener) -> None:
        """Answers what has come past the controller, in turn."""
        while direct.has_message():
            if (received := direct.receive()) is not None:
                task = asyncio.ensure_future(self._answer_direct(direct, *received))
                self._answering.add(task)  # asyncio itself keeps none
                task.add_done_callback(self._answering.discard)

    async def after(self, number: int) -> None:
        """Waits until the request of that number, past the controller, has been answered."""
        while self._answered < number:
            self._has_answered.clear()
            await self._has_answered.wait()

    async def _answer_direct(
        self, direct: Listener, identities: list[bytes], message: Mapping[str, Any]
    ) -> None:
        try:
            direct.answer(identities, message, (await answer(self, message))[1])
        finally:
            self._answered = max(self._answered, message["content"].get("number", 0))
            self._has_answered.set()
        self._take(direct)  # to send may have taken the sign that another has come


def failure(error: BaseException) -> RequestFailed:
    """Describes an exception that kept a request from being answered."""
    identity = process_join.joined()
    text = "".join(traceback.format_exception(error))
    described = ProcessError(type(error).__name__, str(error), text, text)
    return RequestFailed(identity.process_index if identity else None, described)


class _Output:
    """Whether the current request has had output.

    That goes over another socket than the reply, so only an "idle" that follows it there says that
    all of it has come. Most requests have none, and end with the reply.
    """

    def __init__(self) -> None:
        self._is_sent = False
        self.is_ended_by_idle = False

    def begin(self) -> None:
        """A request begins."""
        self._is_sent = self.is_ended_by_idle = False

    def sent(self) -> None:
        """Some is sent; for any thread."""
        self._is_sent = True

    def end(self) -> bool:
        """The request ends; returns whether it has had output."""
        PythonOutStream.flush_all()
        self.is_ended_by_idle = self._is_sent
        return self.is_ended_by_idle


# A request travels as an ipyparallel ``apply_request`` whose metadata say that it is jaxnb's.
# ipyparallel's handler runs functions synchronously, inside the kernel's running event loop, so
# a cell with ``await`` could not run under it; this one is a coroutine.

_KIND = "apply_request"


def install(kernel: Any = None) -> None:
    """Makes this process's kernel answer jaxnb's requests, and refuse ipyparallel's own.

    ipyparallel's ``apply`` unpickles buffers, which its signature does not cover: whoever can put
    other buffers to a signed message could run code here.
    """
    kernel = ipykernel.this_kernel() if kernel is None else kernel
    if getattr(ipykernel.handlers(kernel).get(_KIND), "is_jaxnb", False):
        return
    responder, output = Responder(kernel), _Output()

    async def apply_request(stream: Any, ident: Any, parent: Any) -> None:
        if not is_ours(parent):
            _refuse(kernel, stream, ident, parent)
            return
        await responder.after(parent["metadata"].get(AFTER_KEY, 0))
        output.begin()
        reply, frames = await answer(responder, parent)
        _send_reply(kernel, stream, ident, parent, frames, has_output=output.end())
        if isinstance(reply, ProcessReport):  # by which the notebook sees that output reaches it
            output.is_ended_by_idle = True

    def is_wanted(status: str, parent: Any) -> bool:
        return not is_ours(parent) or (status == "idle" and output.is_ended_by_idle)

    apply_request.is_jaxnb = True  # type: ignore[attr-defined]
    ipykernel.handlers(kernel)[_KIND] = apply_request
    process_interrupts.install()
    process_shell.install_forks()
    messages.install(kernel, output.sent)
    ipykernel.publish_status(kernel, is_wanted)
    ipykernel.leave_signals_alone(kernel, is_ours)
    kernel.log.setLevel(logging.ERROR)  # all that its handler shows; four are made in each cell


def is_ours(message: Any) -> bool:
    """Whether a message is a request of jaxnb's."""
    return bool(message) and METADATA_KEY in message.get("metadata", {})


async def answer(responder: Responder, parent: Any) -> tuple[Any, list[Any]]:
    """Answers a request, one at a time, in the order in which they come.

    Returns:
        The answer, and its frames.
    """
    async with responder.turn:
        reply = await _answer(responder, parent)
    try:
        return reply, dump(reply)
    except Exception as error:  # whoever waits must not wait for ever
        return reply, dump(failure(error))


async def _answer(responder: Responder, parent: Any) -> Any:
    """Answers a request; SIGINT interrupts what is asked for, and nothing else."""
    try:
        request = _read(parent)
        if _is_interruptible(request):
            process_interrupts.allow()
        reply = await responder.answer(request)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        reply = failure(error)  # no handler raises here: ipykernel would lose the reply
    process_interrupts.ignore()
    return reply


def _is_interruptible(request: Any) -> bool:
    if isinstance(request, CallRequest):
        return request.is_interruptible
    return isinstance(request, CellRequest | JointRequest)


def _read(parent: Any) -> Any:
    frames = [getattr(buffer, "buffer", buffer) for buffer in parent["buffers"]]
    if digest(*frames) != parent["metadata"][METADATA_KEY]:
        raise ValueError("the request is not what was signed")
    return load(frames)


def _refuse(kernel: Any, stream: Any, ident: Any, parent: Any) -> None:
    why = "processes of a jaxnb group accept no functions from ipyparallel views; use `%%spmd`"
    error = {"status": "error", "ename": "PermissionError", "evalue": why, "traceback": []}
    metadata = kernel.init_metadata(parent) | {"status": "error"}
    kernel.session.send(stream, "apply_reply", error, parent=parent, ident=ident, metadata=metadata)


def _send_reply(
    kernel: Any, stream: Any, ident: Any, parent: Any, frames: list[Any], *, has_output: bool
) -> None:
    ours = {METADATA_KEY: digest(*frames), MORE_KEY: has_output}
    metadata = kernel.init_metadata(parent) | {"status": "ok"} | ours
    content = {"status": "ok"}
    kernel.session.send(
        stream,
        "apply_reply",
        content,
        parent=parent,
        ident=ident,
        buffers=frames,
        metadata=metadata,
    )
