"""Runs a cell in this process as the IPython kernel would, and reports what it did."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
import traceback
from collections.abc import Coroutine, Mapping
from contextlib import nullcontext
from dataclasses import replace
from types import FrameType, TracebackType
from typing import Any

import jax
from IPython.core.error import UsageError

from jaxnb.arrays.process_names import Names
from jaxnb.arrays.process_packing import is_spread
from jaxnb.arrays.process_pulls import HELD, LARGE_VALUES
from jaxnb.cells import (
    process_output,
    process_repeating,
    process_script,
    process_shell,
    process_values,
)
from jaxnb.cells.process_repeating import Repeats
from jaxnb.compat import ipykernel, ipython
from jaxnb.compat.ipykernel import NOTHING, KeepingDisplayHook, install_display_hook
from jaxnb.compat.jax_arrays import is_deleted
from jaxnb.compat.jax_runtime import wait_until_ready
from jaxnb.debugging.process_debugger import Questions
from jaxnb.debugging.process_steps import Stepper
from jaxnb.errors import JaxnbError
from jaxnb.labels import NO_TEXT, text_of
from jaxnb.lockstep import process_interrupts
from jaxnb.lockstep.process_origins import ORIGINS
from jaxnb.lockstep.process_recorder import Recorder
from jaxnb.model.arrays import PackRequest
from jaxnb.model.cells import CellReply, CellRequest, ProcessError, ValueInfo
from jaxnb.profile.process_timekeeper import Timekeeper
from jaxnb.wire import process_features
from jaxnb.wire.process_features import CellHere

MAX_NAMED = 100_000
"""So many objects are looked at for the names of arrays."""


class CapturingDisplayHook(KeepingDisplayHook):
    """Keeps the last expression's value and its formats; knows arrays that were deleted."""

    def compute_format_data(self, result: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Formats the value, once the arrays in it are computed: to format them is to read them.

        An array whose buffer is gone cannot be asked for its repr.
        """
        if isinstance(result, jax.Array) and is_deleted(result):
            return {"text/plain": "<jax.Array, deleted>"}, {}
        wait_until_ready(*process_values.arrays_in(result))
        if isinstance(result, jax.Array) and is_spread(
            result
        ):  # a card takes the place of all other formats
            return {"text/plain": repr(result)}, {}
        return super().compute_format_data(result)


class Runner:
    """Runs cells in the shell of this process's kernel.

    Args:
        kernel: The process's ipykernel (ipyparallel's subclass of it).
        process_index: Who this process is.
        recorder: Sees what cells dispatch.
        timekeeper: Keeps what the main thread did when.
    """

    def __init__(
        self,
        kernel: Any,
        process_index: int,
        recorder: Recorder,
        timekeeper: Timekeeper,
    ) -> None:
        self._kernel = kernel
        self._recorder = recorder
        self._timekeeper = timekeeper
        self._shell = kernel.shell
        self.process_index = process_index
        self._error: ProcessError | None = None
        self._began = 0.0
        self._raised_at: float | None = None
        self._raised: BaseException | None = None
        self._cell: CellHere | None = None
        self._code_name = ""
        self._install_hooks()
        ORIGINS.variables = lambda times: Names(MAX_NAMED).walk(
            self._shell.user_ns, self._hidden(), times
        )

    def _install_hooks(self) -> None:
        shell = self._shell
        process_shell.install_commands(shell)
        Questions(self._kernel)
        process_shell.install_tracebacks(shell)
        install_display_hook(shell, CapturingDisplayHook)
        ipython.keep_tracebacks(shell, self._keep_traceback)
        show = shell.showtraceback

        def showtraceback(*arguments: Any, **settings: Any) -> None:
            if settings.get("running_compiled_code") and ipython.is_outermost(shell):
                error = sys.exc_info()[1]
                self._left(error)
                if error is not None and text_of(error) == NO_TEXT:
                    self._keep_error(error, with_calls=True)
                if isinstance(error, UsageError) or process_shell.has_group(error):
                    return  # IPython would print it to standard error: it is kept below
            if self._error is None:  # else IPython fails as it makes the text of what is kept
                show(*arguments, **settings)

        shell.showtraceback = showtraceback
        ipython.name_cells(shell, lambda: self._code_name)

    def _hidden(self) -> set[str]:
        names, hidden = self._shell.user_ns, self._shell.user_ns_hidden
        return {name for name in hidden if hidden[name] is names.get(name)}

    async def run(self, request: CellRequest) -> CellReply:
        """Runs one cell; whatever it raises is in the reply."""
        shell = self._shell
        self._error = self._raised = self._raised_at = None
        script = request.script
        self._code_name = f"<cell {request.cell}>"
        if script is not None:
            main = process_script.main_module(script)
            self._code_name, shell.user_ns = script.path, vars(main)
        shell.displayhook.take()
        shell.execution_count = request.cell
        self._began = time.monotonic()
        cell = self._cell = CellHere(request, self._code_name, shell.user_ns, self._began)
        process_features.begin(cell)
        self._recorder.begin(request, self._code_name)
        calls: list[float] = []
        stepper = Stepper(shell) if request.steps else None
        try:
            self._recorder.meet(request)
            if script is not None:
                process_script.run(script, main, self.process_index, len(request.ranks), self._left)
            else:
                with ipykernel.with_own_input(self._kernel):
                    if request.aside:
                        process_repeating.evaluate(shell, request, self._code_name)
                    else:
                        with (
                            Repeats(shell, request.calls, calls, self._timekeeper).installed()
                            if request.calls != 0
                            else nullcontext()
                            if stepper is None
                            else stepper.installed()
                        ):
                            await self._run_in_shell(_as_numbered(request))
            if self._error is None:
                self._recorder.launches.settle()
                self._recorder.launches.let_go()
        # A script; an interrupt between IPython's own handlers; or nobody to agree with.
        except BaseException as error:
            if script is None and not isinstance(error, Exception | KeyboardInterrupt | SystemExit):
                raise  # the kernel cancels it
            self._keep_error(error, with_calls=script is not None)
        seconds = cell.seconds = time.monotonic() - cell.began
        try:  # a signal's handler of the user's may raise anywhere
            value = self._value_at_end(cell, request)
        finally:
            trails = self._recorder.end(self._ending())
        return CellReply(
            process_index=self.process_index,
            value=value,
            error=self._error,
            seconds=seconds,
            trails=trails,
            calls=tuple(calls),
            replicas=self._recorder.replicas.trails(),
            settings=self._recorder.settings.changes(),
            refused=self._recorder.refused_at(),
            has_failed=bool(self._recorder.launches.told()),
            steps=None if stepper is None else stepper.trail,
            **process_features.told(cell),
        )

    def _value_at_end(self, cell: CellHere, request: CellRequest) -> ValueInfo | None:
        """Tells features that the code has ended; returns the value, for which it may compute."""
        try:
            cell.raised, self._raised = self._raised, None
            process_features.over(cell)
            return self._take_value(request)
        except KeyboardInterrupt:
            if self._error is None:
                self._keep_error(KeyboardInterrupt("while jaxnb waited for the cell's value"))
            return None

    async def _run_in_shell(self, code: str) -> None:
        """Runs code as ipykernel's ``do_execute`` does.

        That one cannot be called: ipykernel 7 asks for the thread of its shell channel before
        it runs a cell with ``await``, and ipyparallel's engines have none.
        """
        shell = self._shell
        if (found := self._awaiting(code)) is None:
            result = shell.run_cell(code, store_history=True)
        else:
            result = await self._run_task(shell.run_cell_async(code, store_history=True, **found))
        if process_shell.is_child():  # of an os.fork() in the cell
            process_shell.end(result and (result.error_before_exec or result.error_in_exec))
        self._keep_error_of(result)

    def _awaiting(self, code: str) -> dict[str, Any] | None:
        """Returns what IPython has made of code that awaits; None for other code."""
        has_own = bool(self._shell.input_transformers_post)  # which may make anything of anything
        if not has_own and "await" not in code and "async" not in code:
            return None  # IPython makes the same of it once more: not twice for every cell
        made: dict[str, Any] = {"transformed_cell": code, "preprocessing_exc_tuple": None}
        try:
            made["transformed_cell"] = self._shell.transform_cell(code)
        except Exception:  # IPython shows it as the cell's error
            made["preprocessing_exc_tuple"] = sys.exc_info()
        return made if self._shell.should_run_async(code, **made) else None

    def _left(self, error: BaseException | None) -> None:
        """Tells who waits for this process what it has raised: to format that takes a while."""
        self._raised_at = time.monotonic()
        name, line = type(error).__name__, _line_in_cell(error, self._code_name)
        self._recorder.lockstep.end(ProcessError(name, "", "", "", line=line).ending)
        if self._cell is not None:
            process_features.left(self._cell)

    def _ending(self) -> str:
        return "had finished" if self._error is None else self._error.ending

    def _keep_error_of(self, result: Any) -> None:
        """Keeps an error that IPython has not shown.

        Groups of errors, and a magic that is wrong where it stands. And a second SIGINT that
        strikes while IPython formats the first makes it give up.
        """
        error = result and (result.error_before_exec or result.error_in_exec)
        if error is not None and self._error is None:
            lines = [f"UsageError: {error}"]
            if not isinstance(error, UsageError):
                own = error.with_traceback(process_shell.without_ours(error.__traceback__))
                lines = [line.rstrip("\n") for line in traceback.format_exception(own)]
            self._keep_traceback(type(error), error, lines)

    async def _run_task(self, cell: Coroutine[Any, Any, Any]) -> Any:
        """Runs a cell that awaits.

        SIGINT raises KeyboardInterrupt in the cell's Python code, as it does in one that does
        not await. While the cell is suspended, SIGINT cancels it: its code sees that at its
        ``await``.
        """
        loop = asyncio.get_running_loop()
        entered = interrupted = False

        async def guarded() -> Any:
            # A KeyboardInterrupt that leaves a task ends the event loop.
            nonlocal entered
            entered = True
            try:
                return await cell
            except KeyboardInterrupt as error:  # between IPython's own handlers
                entered = False  # no call: a second one might leave the task before it
                self._keep_error(error)
                return None

        task = ORIGINS.continue_in(asyncio.ensure_future(guarded()))

        def on_sigint(_: int, frame: FrameType | None) -> None:
            nonlocal interrupted
            if process_interrupts.is_kept():
                return
            interrupted = True
            error, current = process_interrupts.strike_by_signal(), asyncio.current_task(loop)
            # Once the cell has yielded, the loop's own code still runs as its task: an exception
            # there would end the process.
            if current is task and entered and process_interrupts.runs(guarded.__code__, frame):
                raise error
            # add_signal_handler would not run before the code returns to the loop. This
            # handler runs at once, and writes to the pipe that the loop sleeps on.
            loop.call_soon_threadsafe(task.cancel)
            if current is not task and process_interrupts.is_in_cell(frame):
                # A task that the cell started; see above for KeyboardInterrupt.
                raise asyncio.CancelledError

        previous = signal.signal(signal.SIGINT, on_sigint)
        result = None
        try:
            with process_interrupts.cell(cell):
                result = await task
        except asyncio.CancelledError:  # interrupted before IPython could catch it
            cell.close()
            if not interrupted:
                raise
            self._keep_error(KeyboardInterrupt())
        finally:
            signal.signal(signal.SIGINT, previous)
            self._shell.events.trigger("post_execute")
            self._shell.events.trigger("post_run_cell", result)
        if interrupted and self._error is not None and self._error.type_name == "CancelledError":
            self._error = replace(self._error, type_name="KeyboardInterrupt")
        return result

    def large_value(self, request: PackRequest) -> Any:
        """Returns the value of an earlier cell that was too large to travel with its result.

        Raises:
            JaxnbError: It is no longer here, or not what it was.
        """
        advice = "assign it to a name and pull that"
        outputs = self._outputs()
        found = [
            outputs[n] for n, of in LARGE_VALUES.items() if of == request.cell and n in outputs
        ]
        if not found:
            raise JaxnbError(
                f"process {self.process_index} no longer holds it: `Out` has another value, or "
                f"none; {advice}"
            )
        value = found[0]
        if isinstance(value, jax.Array) and value.is_deleted():
            raise JaxnbError(
                f"it was deleted on process {self.process_index} since, or donated to a computation"
            )
        if request.digest and process_values.describe(value, {}, 0).digest != request.digest:
            raise JaxnbError(
                f"it was changed on process {self.process_index} since the cell ran; {advice}"
            )
        return value

    def _take_value(self, request: CellRequest) -> ValueInfo | None:
        value, bundle = self._shell.displayhook.take()
        if value is NOTHING or self._error is not None:
            return None
        info = process_values.describe(
            value,
            bundle,
            # Of jaxnb's own expressions no value is in Out: they travel whatever their size.
            sys.maxsize if request.aside else request.max_payload_bytes,
            hold=lambda arrays: HELD.hold(request.request_id, arrays),
        )
        outputs = self._outputs()
        for number in (LARGE_VALUES.keys() - outputs.keys()) | {request.cell}:
            LARGE_VALUES.pop(number, None)
        is_too_large = info.payload is None and not info.payload_note
        if is_too_large and outputs.get(request.cell) is value:
            LARGE_VALUES[request.cell] = request.request_id
        return info

    def _outputs(self) -> Mapping[int, Any]:
        """Returns what ``Out`` has."""
        found: Mapping[int, Any] = self._shell.user_ns.get("_oh", {})
        return found

    def _keep_error(self, error: BaseException, *, with_calls: bool = False) -> None:
        """Keeps what was raised where IPython shows nothing."""
        if with_calls:
            lines = process_shell.python_lines(error)
        else:
            lines = traceback.format_exception_only(error)
        self._keep_traceback(type(error), error, lines)

    def _keep_traceback(self, kind: type[BaseException], error: Any, lines: list[str]) -> None:
        text = text_of(error)
        said = process_shell.cause_first(text)
        ansi = process_output.shortened("\n".join(lines).replace(text, said))
        ipython.note_traceback(self._shell, lines)
        self._raised = error
        at = self._raised_at or time.monotonic()
        self._error = ProcessError(
            type_name=kind.__name__,
            message=process_output.shortened(said),
            traceback=process_shell.ANSI.sub("", ansi),
            traceback_ansi=ansi,
            line=_line_in_cell(error, self._code_name),
            seconds=at - self._began,
            at=at,
        )


def _as_numbered(request: CellRequest) -> str:
    """Returns the code with lines before it, so that its lines count as the notebook's do.

    IPython removes leading empty lines, so they are comments. A cell magic must stay first.
    """
    if request.code.lstrip().startswith("%%"):
        return request.code
    code = request.code.lstrip("\n")
    blank = "#\n" * (len(request.code) - len(code))
    return "# %%spmd\n" * (request.first_line - 1) + blank + code


def _line_in_cell(error: Any, code_name: str) -> int | None:
    if isinstance(error, SyntaxError) and error.filename == code_name:
        return error.lineno
    line = None
    frame: TracebackType | None = getattr(error, "__traceback__", None)
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == code_name:
            line = frame.tb_lineno
        frame = frame.tb_next
    return line
