"""Runs a script as ``__main__`` in this process, as Python would in one of its own.

The process goes on when the script has ended. So what Python does as a process ends is done here:
threads that are not daemons are waited for, exit handlers run, output is written.
"""

from __future__ import annotations

import asyncio
import atexit
import builtins
import codecs
import contextlib
import importlib.util
import io
import linecache
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import thread as executors
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any
from unittest.mock import patch

from IPython import get_ipython

from jaxnb.cells import process_output, process_shell
from jaxnb.cells.process_shell import python_lines
from jaxnb.lockstep import process_interrupts
from jaxnb.lockstep.process_origins import ORIGINS
from jaxnb.model.scripts import OF_TERMINALS, Script, begin_script


def run(
    script: Script,
    main: ModuleType,
    process_index: int,
    num_processes: int,
    ended: Callable[[BaseException], None],
) -> None:
    """Runs a script.

    Args:
        script: The script.
        main: Its module, empty: of :func:`main_module`.
        process_index: Who this process is.
        num_processes: The size of the group.
        ended: Told at once what the script raises: others may wait for this process.

    Raises:
        SystemExit: It has ended with a status other than 0, which is the exception's ``code``.
        BaseException: Whatever it raised.
    """
    begin_script(script.name)
    _leave_the_kernel(script)
    arguments = [
        each.replace("{process_index}", str(process_index)).replace(
            "{num_processes}", str(num_processes)
        )
        for each in script.arguments
    ]
    lines = script.source.decode("utf-8", "replace").splitlines(keepends=True)
    linecache.cache[script.path] = (len(script.source), None, lines, script.path)
    with contextlib.ExitStack() as stack:
        stack.enter_context(process_interrupts.in_file(script.path))
        stack.enter_context(process_output.without_limits())
        stack.enter_context(_streams(script.input_pid if process_index == 0 else 0))
        handlers = stack.enter_context(_exit_handlers())
        stack.enter_context(_no_event_loop())
        ORIGINS.continue_in(None)  # no task of the kernel's is left
        stack.enter_context(_followed_tasks())
        stack.enter_context(patch.dict(sys.modules, {"__main__": main}))
        stack.enter_context(patch.object(sys, "argv", arguments))
        path = [script.folder, *filter(None, sys.path)]  # IPython has put the working directory in
        stack.enter_context(patch.object(sys, "path", path))
        threads = set(threading.enumerate())
        raised: BaseException | None = None
        hook = sys.excepthook
        try:
            if package := main.__spec__ and main.__spec__.parent:
                importlib.import_module(package)
            exec(compile(script.source, script.path, "exec", dont_inherit=True), vars(main))
        except BaseException as error:
            raised = error
            if not isinstance(error, SystemExit) or _status(error):
                ended(error)
            left = [thread.name for thread in _that_hold(threads)]
            if left and not isinstance(
                error, SystemExit
            ):  # as Python does before it waits for them
                told = [*python_lines(error), f"jaxnb: waits for thread {', '.join(left)} to end"]
                print("\n".join(told), file=sys.stderr)
            if sys.excepthook is not hook and not isinstance(error, SystemExit):
                sys.excepthook(type(error), error, error.__traceback__)
        if process_shell.is_child():
            process_shell.end(raised)
        _finish(threads, handlers)
        if raised is not None and not (isinstance(raised, SystemExit) and not raised.code):
            raise raised


def _leave_the_kernel(script: Script) -> None:
    """Has libraries that ask whether this is a notebook find that it is not, from now on.

    rich, tqdm and others would display what plain Python prints, coloured in a pipe too.
    """
    if (shell := get_ipython()) is not None:
        if "FORCE_COLOR" not in script.environment:
            shell.colors = "nocolor"  # for debuggers
        type(shell).clear_instance()
    for name in ("__IPYTHON__", "display"):
        vars(builtins).pop(name, None)
    vars(sys).pop("ps1", None)
    sys.displayhook = sys.__displayhook__
    for name in OF_TERMINALS:
        os.environ.pop(name, None)
    os.environ.update(script.environment)


def main_module(script: Script) -> ModuleType:
    """Returns what a script has as ``__main__``, before it runs."""
    main = ModuleType("__main__")
    main.__file__ = script.path
    vars(main)["__builtins__"] = builtins
    if script.module:
        spec = importlib.util.spec_from_file_location(script.module, script.path)
        assert spec is not None
        main.__spec__, main.__loader__, main.__package__ = spec, spec.loader, spec.parent
        main.__cached__ = spec.cached  # type: ignore[attr-defined]
    else:
        main.__loader__ = SourceFileLoader("__main__", script.path)
    return main


def _status(error: SystemExit) -> int:
    """Returns the exit status, which is the exception's ``code`` then; text is written."""
    status = process_shell.exit_status(error, sys.stderr)
    error.code, error.args = status, (status,)
    return status


def _that_hold(threads: set[threading.Thread]) -> list[threading.Thread]:
    """Returns the threads, beside those of before, that Python waits for before a process ends."""
    return [t for t in threading.enumerate() if t not in threads and not t.daemon]


def _finish(threads: set[threading.Thread], handlers: list[Callable[[], Any]]) -> None:
    """Does what Python does before a process ends: waits for threads, runs exit handlers."""
    started = _that_hold(threads)
    if set(started) & set(executors._threads_queues):
        executors._python_exit()
    for thread in started:
        thread.join()
    while handlers:
        handler = handlers.pop()
        try:
            handler()
        except BaseException as error:
            told = ["Exception ignored in an exit handler:", *python_lines(error)]
            print("\n".join(told), file=sys.stderr)


@contextlib.contextmanager
def _exit_handlers() -> Iterator[list[Callable[[], Any]]]:
    """Yields the exit handlers that the script registers in the block; Python does not get them.

    Those of the kernel's own threads are left to Python: without ZeroMQ's, nothing can be sent.
    """
    kernels, own = set(threading.enumerate()) - {threading.main_thread()}, atexit.register
    found: list[tuple[Any, Callable[[], Any]]] = []
    handlers: list[Callable[[], Any]] = []

    def register(function: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() in kernels:
            return own(function, *args, **kwargs)

        def handler() -> Any:
            return function(*args, **kwargs)

        found.append((function, handler))
        handlers.append(handler)
        return function

    def unregister(function: Any) -> None:
        for each in [pair for pair in found if pair[0] == function]:
            found.remove(each)
            with contextlib.suppress(ValueError):
                handlers.remove(each[1])

    with patch.object(atexit, "register", register), patch.object(atexit, "unregister", unregister):
        yield handlers


@contextlib.contextmanager
def _no_event_loop() -> Iterator[None]:
    """Hides the kernel's event loop, in which this runs, so that ``asyncio.run()`` works."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    if task is not None:
        asyncio._leave_task(loop, task)
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)
        if task is not None:
            asyncio._enter_task(loop, task)


@contextlib.contextmanager
def _followed_tasks() -> Iterator[None]:
    """Has what ``asyncio.run(main())`` makes in its main task counted as the script's."""
    own = asyncio.Runner.run

    def run(runner: Any, coroutine: Any, **settings: Any) -> Any:
        async def followed() -> Any:
            ORIGINS.continue_in(asyncio.current_task())
            return await coroutine

        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or not asyncio.iscoroutine(coroutine):
            return own(runner, coroutine, **settings)
        try:
            return own(runner, followed(), **settings)
        finally:
            ORIGINS.continue_in(None)

    with patch.object(asyncio.Runner, "run", run):
        yield


class _Bytes(io.RawIOBase):
    """What a script's stream writes its bytes to: one of the kernel's streams.

    Args:
        stream: The kernel's stream.
        number: The file descriptor that it stands for.
    """

    def __init__(self, stream: Any, number: int) -> None:
        self._stream, self._number = stream, number
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def writable(self) -> bool:
        """Returns True."""
        return True

    def fileno(self) -> int:
        """Returns where the C code of this process writes."""
        return self._number

    def write(self, data: Any) -> int:
        """Writes bytes, which may end within a character."""
        self._stream.write(self._decoder.decode(bytes(data)))
        return len(data)


class _NoInput(io.TextIOBase):
    """Standard input of a process that has none."""

    def readline(self, *_: Any) -> str:  # type: ignore[override]
        """Raises what there is to know."""
        raise OSError(
            "Only process 0 of a script has a standard input, and only a file or a pipe: "
            "`jaxnb run SCRIPT.py < FILE`. Read it `if jax.process_index() == 0`. For debuggers "
            "and `input()` run the code in a notebook."
        )

    read = readline


@contextlib.contextmanager
def _streams(input_pid: int) -> Iterator[None]:
    """Gives the script streams as Python has them: with bytes below, and a file descriptor."""
    kernels = {"stdout": sys.stdout, "stderr": sys.stderr}
    streams: dict[str, Any] = {
        name: io.TextIOWrapper(
            io.BufferedWriter(_Bytes(stream, number)),
            encoding="utf-8",
            errors="backslashreplace" if name == "stderr" else "surrogateescape",
            line_buffering=True,
        )
        for number, (name, stream) in enumerate(kernels.items(), 1)
    }
    streams["stdin"] = _NoInput()
    if input_pid:
        with contextlib.suppress(OSError):
            streams["stdin"] = open(f"/proc/{input_pid}/fd/0")  # noqa: SIM115
    with contextlib.ExitStack() as stack:
        for name, stream in streams.items():
            stack.enter_context(patch.object(sys, name, stream))
        yield
    for name, kernels_own in kernels.items():
        with contextlib.suppress(ValueError):  # the script has closed it
            streams[name].flush()
        kernels_own.flush()
