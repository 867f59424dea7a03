"""Compiling a call for devices that nobody has, in a scratch process with that many CPU devices.

The code of the plan is run there, so it makes the mesh; a call's arguments can be
``jax.ShapeDtypeStruct``, which need no data. The variables of a group are taken along as a recovery
carries them, except arrays: these were made for the group's devices.
"""

from __future__ import annotations

import ast
import os
import pickle
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import IO, TYPE_CHECKING

from jaxnb.compiled.compiling import EXAMPLE, Collectives, not_compiled, require_call
from jaxnb.errors import JaxnbError, UsageError
from jaxnb.labels import one_line
from jaxnb.launch.folder import command_line
from jaxnb.model import compiled as model

if TYPE_CHECKING:
    from jaxnb.recovery.files import Contents


Definitions = Callable[[], "Contents | None"]
"""Returns the variables of a group, packed; None if there are none, or no answer."""


def no_definitions() -> None:
    """Returns no variables: used where there is no group."""


_LAST_LINES = 15

LOOK_SECONDS = 0.2
"""An interrupt is noticed within this time."""


def ask_scratch(request: model.PlanRequest) -> model.PlanReply:
    """Starts a scratch process, asks it, and ends it.

    It reads a file, and has a pipe to this process and no sockets. However long it takes, it can
    be interrupted; it ends with this process too, in whatever way that ends.

    Raises:
        KeyboardInterrupt: It was interrupted; the process is gone.
        JaxnbError: It ended without an answer.
    """
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as log:
        pickle.dump(request, asked)
        asked.seek(0)
        process = subprocess.Popen(
            command_line("jaxnb.compiled.process_compiled", str(os.getpid())),
            stdin=asked,
            stdout=subprocess.PIPE,
            stderr=log,
            # Jupyter interrupts the kernel's whole process group.
            start_new_session=True,
        )
        with process:
            try:
                answer = _answer_of(process)
            finally:
                process.kill()  # it has answered, or nobody waits for it
                process.wait()
        if not answer:
            raise JaxnbError(
                f"The scratch process for {request.num_devices} devices (pid {process.pid}) "
                f"ended with status {process.returncode} before it answered. The group is "
                f"unchanged. Its last lines:\n{_last_lines(log)}"
            )
    reply: model.PlanReply = pickle.loads(answer)
    return reply


def _answer_of(process: subprocess.Popen[bytes]) -> bytes:
    """Reads to the end, in calls that each return soon.

    A signal that reaches another thread does not end a blocking read, and Python runs handlers only
    between instructions.
    """
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=LOOK_SECONDS)[0]


def _last_lines(log: IO[bytes]) -> str:
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - 20_000))
    lines = log.read().decode(errors="replace").splitlines()
    return "\n".join(line[:300] for line in lines[-_LAST_LINES:]) or "(nothing)"


MAX_DEVICES = 2048
"""JAX takes CPU devices of higher numbers for those of another process."""


def plan(
    code: str,
    *,
    devices: int,
    definitions: Definitions = no_definitions,
    name: str = "<plan>",
    first_line: int = 1,
) -> Collectives:
    """Compiles the call that is the last expression of ``code`` for ``devices`` devices.

    Args:
        code: What to run in the scratch process, and the call, which is not run.
        devices: How many CPU devices the process has.
        definitions: Returns the group's variables that the code may use.
        name: The file name of the code in tracebacks.
        first_line: The line number, in the notebook, of the code's first line.

    Raises:
        UsageError: The last statement is not a call, or it needs an array of the group.
        NotCompiledError: The code raised, or the call cannot be compiled.
        JaxnbError: The process ended early.
    """
    found = answer(code, devices=devices, definitions=definitions, name=name, first_line=first_line)
    assert isinstance(found, model.CompiledReport)
    return Collectives(found, planned=True)


def answer(
    code: str,
    *,
    devices: int,
    definitions: Definitions = no_definitions,
    name: str = "<plan>",
    first_line: int = 1,
    label: str = "",
) -> model.CompiledReport | model.ComparisonReport:
    """Asks a scratch process what the last call of ``code`` compiles to, or has compared.

    ``code``, ``devices``, ``definitions``, ``name`` and ``first_line`` are as for :func:`plan`.
    ``label`` is what messages call the call, if it is one of ``jaxnb.compare``; that call is then
    run. It is empty for a plan.

    Returns:
        What the call compiles to, or what it has compared.
    """
    if isinstance(devices, bool) or not isinstance(devices, int):
        raise UsageError(
            f"The number of devices must be a whole number, not {devices!r}. Nothing was run."
        )
    if not 1 <= devices <= MAX_DEVICES:
        raise UsageError(
            f"The number of devices must be from 1 to {MAX_DEVICES}, not {devices}. Nothing was "
            "run."
        )
    numbered = "\n" * (first_line - 1) + code
    call = _call_of(numbered)
    reply = ask_scratch(
        model.PlanRequest(devices, definitions(), name, numbered, compares=bool(label))
    )
    if reply.output:
        print(reply.output, end="")  # noqa: T201  # what the user's code has printed
    if isinstance(reply.answer, model.NotCompiled):
        error = reply.answer.error
        if error.type_name in ("UsageError", "ArrayGoneError"):
            raise UsageError(error.message)
        advice = _ADVICE.format(devices) if error.type_name == "NameError" else ""
        where = f" for {devices} devices"
        raise not_compiled(one_line(label or call), reply.answer, where, advice)
    return reply.answer


_ADVICE = (
    "A plan for {} devices is made in a process of its own. It has what the plan's code makes, and "
    "the variables of the group's first process except its arrays; other variables have to be made "
    "in the plan."
)


def _call_of(code: str) -> str:
    """Returns the text of the call that a plan ends with.

    Raises:
        UsageError: It does not end with a call.
    """
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError) as error:
        line = f" at line {error.lineno}" if isinstance(error, SyntaxError) else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UsageError(
            f"The plan is not valid Python{line}: {reason}. Nothing was run. A plan's code has "
            "no magics."
        ) from None
    if not body or not isinstance(body[-1], ast.Expr):
        raise UsageError(
            f"The last line of a plan has to be the call to compile: {EXAMPLE}. Nothing was run."
        )
    text = ast.unparse(body[-1])
    require_call(body[-1].value, text)
    return text
