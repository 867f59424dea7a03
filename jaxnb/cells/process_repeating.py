"""``%%spmd --time``: the code of a cell is run several times, and each call timed."""

from __future__ import annotations

import ast
import linecache
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax

from jaxnb.arrays.process_describe import require_tree
from jaxnb.compat.ipykernel import NOTHING
from jaxnb.model.cells import CellRequest
from jaxnb.profile.process_timekeeper import Timekeeper
from jaxnb.wire.process_together import number_of_first

TARGET_SECONDS = 1.0
"""The repeats of a timed cell take about so long together, where the user does not say how many."""

LEAST_REPEATS, MOST_REPEATS = 3, 1000
"""Fewer have no spread; more would flood a notebook with what the cell prints."""

LONG_SECONDS = 10.0
"""What takes longer than that is not run a third time."""


def calls_to_come(took: float) -> int:
    """Returns how many calls are still to be made, from the time of the first repeat."""
    if took > LONG_SECONDS:
        return 0
    wanted = math.ceil(TARGET_SECONDS / max(took, 1e-6))
    return min(max(wanted, LEAST_REPEATS), MOST_REPEATS) - 1


def keep_lines(file: str, code: str) -> None:
    """Lets tracebacks show the lines of code that is in no file."""
    lines = [f"{line}\n" for line in code.splitlines()]
    linecache.cache[file] = (len(code), None, lines, file)


def evaluate(shell: Any, request: CellRequest, name: str) -> None:
    """Evaluates an expression in a shell's namespace; its value goes to the display hook.

    Nothing is left in ``In``, ``Out`` and ``_``. What it raises goes where a cell's error goes.

    Args:
        shell: The shell of this process's kernel.
        request: Has the expression, and what is shown in its place.
        name: The file name of the code in tracebacks.
    """
    keep_lines(name, request.aside)
    hook = shell.displayhook
    try:
        with shell.builtin_trap:
            hook.value = eval(compile(request.code, name, "eval"), shell.user_ns)
        hook.bundle = hook.compute_format_data(hook.value)[0]
    except BaseException:  # the code's own: nothing awaits here that could be cancelled
        hook.take()
        shell.showtraceback()


class Repeats:
    """Has IPython run the code of its next cell several times.

    IPython compiles the cell, and runs it the first time; the code objects that it made are then
    run again, through IPython too, so that errors and ``await`` are what they always are. After
    each call the arrays of its last expression, and of the variables that it binds, are waited
    for. The value is formatted once, after the last call, outside of the times.

    Args:
        shell: The shell.
        calls: How many times in all; None for as many as take about a second, by the second call
            of the first process: all make as many, as they may wait for each other in each.
        seconds: Takes what each call took that ended without an error.
        timekeeper: Takes when results were waited for.
    """

    def __init__(
        self, shell: Any, calls: int | None, seconds: list[float], timekeeper: Timekeeper
    ) -> None:
        self._shell, self._hook = shell, shell.displayhook
        self._calls = calls
        self._codes: list[tuple[Any, bool]] = []
        self._names: set[str] = set()
        self._is_within = False
        self._is_inner = False
        self._left = 0
        self._seconds = seconds
        self._timekeeper = timekeeper

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Stands in the shell's way for the block."""
        shell = self._shell
        self._run_nodes, self._run_code = shell.run_ast_nodes, shell.run_code
        shell.run_ast_nodes = self._repeat
        try:
            yield
        finally:
            del shell.run_ast_nodes
            self._hook.keeps_only = False

    async def _repeat(self, nodes: list[ast.stmt], *rest: Any, **settings: Any) -> Any:
        if self._is_within:  # the cell runs a cell
            return await self._run_nodes(nodes, *rest, **settings)
        self._is_within = True
        self._names = _bound(nodes)
        result = settings.get("result")
        self._left, has_agreed = self._calls or 2, self._calls is not None
        try:
            while self._left:
                call = len(self._seconds)
                self._hook.value = NOTHING
                self._hook.keeps_only = True
                started = time.perf_counter()
                if call:
                    has_raised = await self._again(result)
                else:
                    has_raised = await self._first(nodes, *rest, **settings)
                if has_raised or self._fails(result, self._wait if call else self._wait_first):
                    return True
                self._seconds.append(time.perf_counter() - started)
                self._left -= 1
                if call == 1 and not has_agreed:
                    if self._fails(result, self._agree):
                        return True
                    has_agreed = True
        finally:
            if not has_agreed:
                number_of_first(0, waits=False)  # the others may wait for it
        return self._fails(result, self._show)

    def _agree(self) -> None:
        """Learns how many calls are to come; what it takes is not timed."""
        self._left = number_of_first(calls_to_come(self._seconds[1]))

    async def _first(self, nodes: list[ast.stmt], *rest: Any, **settings: Any) -> Any:
        async def run_code(code: Any, result: Any = None, *, async_: bool = False) -> Any:
            if not self._is_inner:
                self._codes.append((code, async_))
            self._is_inner = True
            try:
                return await self._run_code(code, result, async_=async_)
            finally:
                self._is_inner = False

        self._shell.run_code = run_code
        try:
            return await self._run_nodes(nodes, *rest, **settings)
        finally:
            del self._shell.run_code

    async def _again(self, result: Any) -> bool:
        for code, is_async in self._codes:
            if await self._run_code(code, result, async_=is_async):
                return True
        return False

    def _wait_first(self) -> None:
        names = self._shell.user_ns
        self._names = {name for name in self._names if _arrays(names.get(name))}
        self._wait()

    def _wait(self) -> None:
        """Waits for what the call has made."""
        names = self._shell.user_ns
        since = time.monotonic()
        jax.block_until_ready(_arrays([self._hook.value, *map(names.get, self._names)]))
        self._timekeeper.waited(since)

    def _show(self) -> None:
        """Has the last value formatted, and bound to ``_``."""
        self._hook.keeps_only = False
        value, self._hook.value = self._hook.value, NOTHING
        if value is not NOTHING:
            self._hook(value)

    def _fails(self, result: Any, action: Callable[[], None]) -> bool:
        """Does something; what it raises is the cell's error."""
        try:
            action()
        except BaseException as error:  # a KeyboardInterrupt too, as in IPython's own run_code
            if result is not None:
                result.error_in_exec = error
            self._shell.showtraceback(running_compiled_code=True)
            return True
        return False


def _arrays(value: Any) -> list[jax.Array]:
    try:
        require_tree(value)
        leaves = jax.tree.leaves(value)
    except (TypeError, ValueError):  # a dict whose keys have no order; what holds itself
        return []
    return [each for each in leaves if isinstance(each, jax.Array) and not each.is_deleted()]


def _bound(nodes: list[ast.stmt]) -> set[str]:
    """Returns the names that statements bind, or whose items or attributes they assign."""
    found = set()
    for node in (each for top in nodes for each in ast.walk(top)):
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
            if not isinstance(node.ctx, ast.Store):
                continue
            target: Any = node
            while isinstance(target, ast.Attribute | ast.Subscript):
                target = target.value
            if isinstance(target, ast.Name):
                found.add(target.id)
    return found
