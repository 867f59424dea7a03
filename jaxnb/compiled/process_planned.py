"""The program of a scratch process: runs a plan's code, compiles its call, answers, and ends."""

from __future__ import annotations

import ast
import io
import os
import pickle
import sys
import types
from collections.abc import Iterable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from typing import Any

import jax

from jaxnb.cells.process_repeating import keep_lines
from jaxnb.compiled import process_compiled
from jaxnb.compiled.parse_call import plain_text, require_call
from jaxnb.launch import process_bootstrap
from jaxnb.launch.lifeline import end_with_parent
from jaxnb.model.compiled import (
    ComparisonReport,
    Compiled,
    Missing,
    NotCompiled,
    PlanPiece,
    PlanReply,
    PlanRequest,
)

MAX_OUTPUT = 20_000
"""Characters of what a plan prints; its end is kept."""

MAX_THREADS = 512


def answer(request: PlanRequest) -> PlanReply:
    """Answers a plan in this process, which has not used JAX yet.

    Its devices are the CPU's, whatever else there is: no GPU is touched.
    """
    # What the code computes on all devices needs a thread for each of them. Nobody else is
    # served by this process, so there is no other use for them.
    os.environ["NPROC"] = str(max(4, min(2 * request.num_devices, MAX_THREADS)))
    _use_cpus(request.num_devices)
    printed = io.StringIO()
    # A module of its own as __main__: dataclasses and pickle look a class's module up.
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    definitions = _Definitions(vars(module))
    definitions.namespace.update(process_bootstrap.namespace())
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        definitions.run_all(request.definitions)  # what they print was seen in their cells
    definitions.compare(request.values.texts)
    _use_cpus(request.num_devices)  # a cell may have asked for others
    if request.values.x64 is not None:
        jax.config.update("jax_enable_x64", request.values.x64)
    with redirect_stdout(printed), redirect_stderr(printed):
        found = _answer(request, definitions)
    return PlanReply(found, _end_of(printed.getvalue()), definitions.missing)


def _use_cpus(count: int) -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", count)


class _Definitions:
    """Runs the definitions of cells.

    One that lacks a name is tried again after each statement of the plan, which may make it; it
    then meets all else as it was before, and what the plan itself has bound.

    Args:
        namespace: Where they are run.

    Attributes:
        namespace: The same.
        missing: By name what cells have made that is not there.
    """

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace
        self.missing: dict[str, Missing] = {}
        self._of_plan: set[str] = set()
        self._met: dict[PlanPiece, dict[str, Any]] = {}
        self._makers: dict[str, PlanPiece] = {}

    def run(self, piece: PlanPiece) -> None:
        """Runs a statement of a cell, or takes away what it has made, if that is no definition."""
        if piece.changed and not self._is_changed_here(piece.changed):
            return
        if not piece.is_definition:
            self._lack(Missing(piece))
            return
        met = dict(self.namespace)
        try:
            _run(piece, self.namespace)
        except (Exception, SystemExit) as error:
            needs = error.name if isinstance(error, NameError) else ""
            text = "" if needs else f"{type(error).__name__}: {error}"
            self._lack(Missing(piece, needs or "", text))
            self._met.setdefault(piece, met)
        else:
            self._have(piece)

    def _is_changed_here(self, name: str) -> bool:
        """Whether a method is one of a container, and changes that alone."""
        value = self.namespace.get(name)
        return name in self.missing or isinstance(value, dict | list | set) or value is jax.config

    def compare(self, theirs: Mapping[str, str | None]) -> None:
        """Takes away names whose plain values are others than the group's."""
        for name, text in theirs.items():
            if name in self._makers and name in self.namespace:
                mine = plain_text(self.namespace[name])
                if mine != text:
                    piece = replace(self._makers[name], bound=(name,))
                    self._lack(Missing(piece, theirs=text or "something else"))

    def run_all(self, pieces: Iterable[PlanPiece]) -> None:
        """Runs statements of cells."""
        for piece in pieces:
            self.run(piece)

    def run_of_plan(self, piece: PlanPiece) -> None:
        """Runs a statement of the plan, then the definitions that waited for what it has made."""
        _run(piece, self.namespace)
        self._have(piece)
        self._of_plan.update(piece.bound)
        for each in dict.fromkeys(m.piece for m in self.missing.values() if m.needs):
            now = dict(self.namespace)
            self.namespace |= {k: v for k, v in self._met[each].items() if k not in self._of_plan}
            self.run(each)
            made = {name: self.namespace[name] for name in each.bound if name in self.namespace}
            self.namespace.clear()
            self.namespace.update(now, **made)

    def _have(self, piece: PlanPiece) -> None:
        for name in piece.bound:
            self.missing.pop(name, None)
            self._makers[name] = piece

    def _lack(self, missing: Missing) -> None:
        for name in missing.piece.bound:
            if isinstance(self.namespace.get(name), types.ModuleType):
                continue  # an attribute of it was set
            self.namespace.pop(name, None)
            self.missing[name] = missing


def _run(piece: PlanPiece, namespace: dict[str, Any]) -> None:
    keep_lines(piece.name, piece.whole)
    exec(compile(piece.code, piece.name, "exec", dont_inherit=True), namespace)


def _answer(
    request: PlanRequest, definitions: _Definitions
) -> Compiled | NotCompiled | ComparisonReport:
    try:
        for piece in request.pieces:
            definitions.run_of_plan(piece)
        keep_lines(request.call.name, request.call.whole)
        if request.compares:
            code = compile(request.call.code.strip(), request.call.name, "eval")
            report: ComparisonReport = eval(code, definitions.namespace).report
            return replace(report, planned=True)
        # Parsed as a statement: its lines count as the notebook's do.
        expression = ast.parse(request.call.code).body[0]
        assert isinstance(expression, ast.Expr)
        call = require_call(expression.value, request.call.code)
    except (Exception, SystemExit) as error:
        return NotCompiled(0, "prepared", process_compiled.described(error))
    return process_compiled.compile_call(call, definitions.namespace, 0, request.call.name)


def _end_of(text: str) -> str:
    if len(text) <= MAX_OUTPUT:
        return text
    return f"… {len(text) - MAX_OUTPUT} characters not shown\n{text[-MAX_OUTPUT:]}"


def main() -> None:
    """Answers one plan.

    Ends with its owner, which it watches.
    """
    end_with_parent(int(sys.argv[1]))
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is not the answer
    request: PlanRequest = pickle.load(sys.stdin.buffer)
    sys.stdin = open(os.devnull)  # noqa: SIM115  # input() ends at once, and `exit()` closes it
    reply = answer(request)
    with replies:
        replies.write(pickle.dumps(reply))
    os._exit(0)  # XLA's own end takes longer than all of this


if __name__ == "__main__":
    main()
