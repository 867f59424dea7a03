"""Runs a plan's code in a scratch process, and compiles its call without running it."""

from __future__ import annotations

import ast
import io
import os
import sys
import types
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from typing import Any

import jax

from jaxnb.cells.process_aside import keep_lines
from jaxnb.compiled import process_compiled
from jaxnb.compiled.calls import require_call
from jaxnb.launch import process_bootstrap
from jaxnb.model.collectives import Compiled, NotCompiled
from jaxnb.model.comparisons import ComparisonReport
from jaxnb.model.plans import PlanReply, PlanRequest

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
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", request.num_devices)
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        found = _answer(request)
    return PlanReply(found, _end_of(printed.getvalue()))


def _answer(request: PlanRequest) -> Compiled | NotCompiled | ComparisonReport:
    # A module of its own as __main__: dataclasses and pickle look a class's module up.
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    namespace: dict[str, Any] = vars(module)
    namespace.update(process_bootstrap.namespace())
    try:
        for piece in request.pieces:
            keep_lines(piece.name, piece.whole)
            exec(compile(piece.code, piece.name, "exec", dont_inherit=True), namespace)
        keep_lines(request.call.name, request.call.whole)
        if request.compares:
            code = compile(request.call.code.strip(), request.call.name, "eval")
            report: ComparisonReport = eval(code, namespace).report
            return replace(report, planned=True)
        # Parsed as a statement: its lines count as the notebook's do.
        expression = ast.parse(request.call.code).body[0]
        assert isinstance(expression, ast.Expr)
        call = require_call(expression.value, request.call.code)
    except (Exception, SystemExit) as error:
        return NotCompiled(0, "prepared", process_compiled.described(error))
    return process_compiled.compile_call(call, namespace, 0, request.call.name)


def _end_of(text: str) -> str:
    if len(text) <= MAX_OUTPUT:
        return text
    return f"… {len(text) - MAX_OUTPUT} characters not shown\n{text[-MAX_OUTPUT:]}"
