"""Compiling a call for devices that nobody has, in a scratch process with that many CPU devices.

The code of the plan is run there, so it makes the mesh; a call's arguments can be
``jax.ShapeDtypeStruct``, which need no data. Functions that cells of a group have defined are
taken along by their text: definitions, not values, since a group's values are made for its own
devices.
"""

from __future__ import annotations

import ast
import re

from jaxnb.compiled.collectives import Collectives
from jaxnb.compiled.compiling import not_compiled
from jaxnb.compiled.definitions import piece_of, pieces_of
from jaxnb.compiled.earlier_cells import NO_CELLS, EarlierCells
from jaxnb.compiled.parse_call import EXAMPLE, require_call
from jaxnb.compiled.scratch import ask_scratch
from jaxnb.errors import UsageError
from jaxnb.labels import one_line
from jaxnb.model.compiled import ComparisonReport, Compiled, NotCompiled, PlanReply, PlanRequest

MAX_DEVICES = 65536


def plan(
    code: str,
    *,
    devices: int,
    cells: EarlierCells = NO_CELLS,
    name: str = "<plan>",
    first_line: int = 1,
) -> Collectives:
    """Compiles the call that is the last expression of ``code`` for ``devices`` devices.

    Args:
        code: What to run in the scratch process, and the call, which is not run.
        devices: How many CPU devices the process has.
        cells: Cells whose definitions may be taken along, in the order in which they have run.
        name: The file name of the code in tracebacks.
        first_line: The notebook's number of the first line of the code.

    Raises:
        UsageError: The last statement is not a call, or it needs a value that a cell has made
            for the group's own devices.
        NotCompiledError: The code raised, or the call cannot be compiled.
        JaxnbError: The process ended early.
    """
    found = answer(code, devices=devices, cells=cells, name=name, first_line=first_line)
    assert isinstance(found, Compiled)
    return Collectives(found.report, planned=True)


def answer(
    code: str,
    *,
    devices: int,
    cells: EarlierCells = NO_CELLS,
    name: str = "<plan>",
    first_line: int = 1,
    label: str = "",
) -> Compiled | ComparisonReport:
    """Asks a scratch process; see :func:`plan`.

    Args:
        code: As there.
        devices: As there.
        cells: As there.
        name: As there.
        first_line: As there.
        label: The call is one of ``jaxnb.compare``, and is made; what to call it in messages.

    Returns:
        What the call compiles to, or what it has compared.
    """
    if isinstance(devices, bool) or not isinstance(devices, int):
        raise UsageError(f"The number of devices must be a whole number, not {devices!r}.")
    if not 1 <= devices <= MAX_DEVICES:
        raise UsageError(
            f"The number of devices must be from 1 to {MAX_DEVICES}, not {devices}. Nothing was "
            "run."
        )
    numbered = "\n" * (first_line - 1) + code
    body = _parsed(numbered, code)
    *pieces, last = (piece_of(name, numbered, statement) for statement in body)
    definitions = tuple(pieces_of(cells.requests))
    values = cells.values(sorted({name for each in definitions for name in each.bound}))
    request = PlanRequest(
        devices, definitions, tuple(pieces), last, compares=bool(label), values=values
    )
    reply = ask_scratch(request)
    if reply.output:
        print(reply.output, end="")  # noqa: T201  # what the user's code has printed
    if isinstance(reply.answer, NotCompiled):
        _require_names(reply)
        error = reply.answer.error
        if error.type_name == "UsageError":
            raise UsageError(error.message)
        call = one_line(label or ast.unparse(body[-1]))
        advice = _ADVICE.format(devices) if error.type_name == "NameError" else ""
        raise not_compiled(call, reply.answer, f" for {devices} devices", advice)
    return reply.answer


_ADVICE = (
    "A plan for {} devices is made in a process of its own. It has what the plan's code makes, and "
    "the functions, classes, imports and plain values of %%spmd cells; other variables have to be "
    "made in the plan."
)


def _require_names(reply: PlanReply) -> None:
    """Raises UsageError for want of a name that a cell has made for the group's devices."""
    assert isinstance(reply.answer, NotCompiled)
    found = re.match(r"name '(\w+)' is not defined", reply.answer.error.message)
    if reply.answer.error.type_name != "NameError" or found is None:
        return
    name, whose = found[1], ""
    while (missing := reply.missing.get(name)) and missing.needs in reply.missing:
        name, whose = missing.needs, name
    if missing is None:
        return
    needs = f"`{whose}` needs `{name}`" if whose else f"The plan needs `{name}`"
    piece = missing.piece
    cell = piece.name.strip("<>").replace("cell ", "cell [") + "]"
    text = one_line(piece.code.strip().splitlines()[0])
    if missing.theirs:
        raise UsageError(
            f"{needs}, which {cell} makes at line {piece.line} (`{text}`), and which is "
            f"{missing.theirs} on the group: other code has changed it there. Nothing was "
            f"compiled. Make `{name}` in the plan, before the call."
        )
    if missing.needs or missing.error:
        why = missing.error or f"there is no `{missing.needs}`"
        raise UsageError(
            f"{needs}, of {cell}, line {piece.line}: `{text}`. In the plan's process that cannot "
            f"be run: {why}. Nothing was compiled. Make `{name}` in the plan, before the call."
        )
    raise UsageError(
        f"{needs}, which {cell} has made at line {piece.line}: `{text}`. A plan takes functions, "
        "classes, imports and plain values along; what cells compute was made for the devices of "
        f"the group. Nothing was compiled. Make `{name}` in the plan, before the call: there it is "
        "made for as many devices as are planned."
    )


def _parsed(numbered: str, code: str) -> list[ast.stmt]:
    try:
        body = ast.parse(numbered).body
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
    require_call(body[-1].value, ast.unparse(body[-1]))
    return body
