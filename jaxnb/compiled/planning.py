"""Compiling a call for devices that nobody has, in a scratch process with that many CPU devices.

The code of the plan is run there, so it makes the mesh; a call's arguments can be
``jax.ShapeDtypeStruct``, which need no data. Functions that cells of a group have defined are
taken along by their text: definitions, not values, since a group's values are made for its own
devices.
"""

from __future__ import annotations

import ast
import os
import pickle
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from jaxnb.compiled.compiling import EXAMPLE, Collectives, not_compiled, require_call
from jaxnb.errors import JaxnbError, UsageError
from jaxnb.labels import one_line
from jaxnb.launch.folder import command_line
from jaxnb.model import compiled as model
from jaxnb.model.cells import CellRequest


@dataclass(frozen=True)
class EarlierCells:
    """Cells that have run.

    Attributes:
        requests: The cells, in the order in which they have run.
        values: Returns the group's plain values of some names, to be compared with what the
            definitions give.
    """

    requests: Iterable[CellRequest] = ()
    values: Callable[[Sequence[str]], model.GroupValues] = lambda _: model.GroupValues()


NO_CELLS = EarlierCells()


_LAST_LINES = 15

LOOK_SECONDS = 0.2
"""How often it is looked whether an interrupt has come, at least."""


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
    """Reads to the end.

    Not in one blocking call: where a signal reaches another thread than the main one it would
    not end that, and Python handles signals between its own instructions only.
    """
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=LOOK_SECONDS)[0]


def _last_lines(log: IO[bytes]) -> str:
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - 20_000))
    lines = log.read().decode(errors="replace").splitlines()
    return "\n".join(line[:300] for line in lines[-_LAST_LINES:]) or "(nothing)"


# A cell's functions, classes and imports are run again by their text. So are assignments that
# compute nothing, of literals, lambdas, and functions made of functions (``step =
# jax.jit(step)``),
# and what changes such a value or a setting (``layers.append(64)``, ``jax.config.update(…)``).
# What
# other statements bind was made for the group's devices: those names are taken away.

_MAKERS = frozenset(
    {
        "jit", "grad", "value_and_grad", "vmap", "checkpoint", "remat", "shard_map", "partial",
        "custom_vjp", "custom_jvp", "P", "PartitionSpec", "NamedSharding", "ShapeDtypeStruct",
        "dtype", "int", "float", "bool", "str", "len", "range", "tuple", "list", "dict", "set",
    }
)  # fmt: skip
"""Last words of what may be called in an assignment: it makes functions, describes arrays, or
makes plain values of plain values."""

_CHANGES = frozenset({"append", "extend", "insert", "add", "update", "setdefault", "pop", "remove"})
"""Methods that change a container, or a setting, in place."""

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_INNER = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def pieces_of(cells: Iterable[CellRequest]) -> Iterator[model.PlanPiece]:
    """Returns the statements of cells, each with whether a plan runs it, and what it binds.

    Args:
        cells: The cells, in the order in which they have run.
    """
    for cell in cells:
        # Magics and `!commands` are no Python; the lines count on.
        lines = ["" if re.match(r"\s*[%!]", line) else line for line in cell.code.splitlines()]
        text = "\n" * (cell.first_line - 1) + "\n".join(lines)
        try:
            body = ast.parse(text).body
        except (SyntaxError, ValueError):
            continue
        for node in body:
            yield piece_of(f"<cell {cell.cell}>", text, node)


def piece_of(name: str, text: str, node: ast.stmt) -> model.PlanPiece:
    """Returns a statement as a piece of a plan.

    Args:
        name: The file name of its text.
        text: The text that it stands in.
        node: The statement.
    """
    bound, changed = tuple(dict.fromkeys(_bound(node))), ""
    match node:
        case ast.Expr(ast.Call(func=ast.Attribute(value=ast.Name(id=changed)))):
            pass
    return model.PlanPiece(
        name, statement_text(text, node), text, bound, _is_definition(node), changed
    )


def statement_text(text: str, node: ast.stmt) -> str:
    """Returns a statement's text behind as many empty lines as there are before it."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    if decorators:
        start = min(each.lineno for each in decorators)
        found = "\n".join(text.splitlines()[start - 1 : node.end_lineno])
    else:
        start = node.lineno
        found = ast.get_source_segment(text, node) or ""
    return "\n" * (start - 1) + found


def _bound(node: ast.AST) -> Iterator[str]:
    """Yields the names that a statement binds, or whose value it changes in place."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.alias(name=name, asname=other):
            yield other or name.partition(".")[0]
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name
        case ast.Subscript(ctx=ast.Store() | ast.Del(), value=ast.Name(id=name)):
            yield name
        case ast.Attribute(ctx=ast.Store() | ast.Del(), value=ast.Name(id=name)):
            yield name
        case ast.Expr(ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method))):
            if method in _CHANGES:
                yield name
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
    if not isinstance(node, (*_SCOPES, *_INNER)):
        for child in ast.iter_child_nodes(node):
            yield from _bound(child)


def _is_definition(node: ast.stmt) -> bool:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Pass():
            return True
        case ast.Import() | ast.ImportFrom():
            return True
        case ast.Assign(targets=targets, value=value):
            return all(map(_is_target, targets)) and _is_plain(value)
        case ast.AnnAssign(target=target, value=value) | ast.AugAssign(target=target, value=value):
            return _is_target(target) and (value is None or _is_plain(value))
        case ast.Expr(ast.Call(func=ast.Attribute(value=owner, attr=method)) as call):
            is_ours = isinstance(owner, ast.Name) or ast.unparse(owner) == "jax.config"
            arguments = [*call.args, *call.keywords]
            return is_ours and method in _CHANGES and all(map(_is_plain, arguments))
        case ast.If(test=test, body=body, orelse=other):
            return _is_plain(test) and all(map(_is_definition, [*body, *other]))
        case ast.Try(body=body, handlers=handlers, orelse=other, finalbody=last):
            inner = [each for handler in handlers for each in handler.body]
            return all(map(_is_definition, [*body, *inner, *other, *last]))
    return False


def _is_target(node: ast.expr) -> bool:
    match node:
        case ast.Name():
            return True
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return all(map(_is_target, parts))
        case ast.Starred(value=value):
            return _is_target(value)
        case ast.Subscript(value=ast.Name(), slice=key):
            return _is_plain(key)
        case ast.Attribute(value=ast.Name()):
            return True
    return False


def _is_plain(node: ast.AST) -> bool:
    """Whether to compute a value again gives the same on any number of devices, at no cost."""
    if isinstance(node, ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr):
        return False
    if isinstance(node, ast.Call):
        called = node.func
        last = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if last not in _MAKERS:
            return False
    # The body of a lambda is run only when it is called.
    inner = node.args if isinstance(node, ast.Lambda) else node
    return all(map(_is_plain, ast.iter_child_nodes(inner)))


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
    assert isinstance(found, model.CompiledReport)
    return Collectives(found, planned=True)


def answer(
    code: str,
    *,
    devices: int,
    cells: EarlierCells = NO_CELLS,
    name: str = "<plan>",
    first_line: int = 1,
    label: str = "",
) -> model.CompiledReport | model.ComparisonReport:
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
    request = model.PlanRequest(
        devices, definitions, tuple(pieces), last, compares=bool(label), values=values
    )
    reply = ask_scratch(request)
    if reply.output:
        print(reply.output, end="")  # noqa: T201  # what the user's code has printed
    if isinstance(reply.answer, model.NotCompiled):
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


def _require_names(reply: model.PlanReply) -> None:
    """Raises UsageError for want of a name that a cell has made for the group's devices."""
    assert isinstance(reply.answer, model.NotCompiled)
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
