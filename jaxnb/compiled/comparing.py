"""Comparing a function under several shardings: from objects, from text, for more devices."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from jaxnb.cells.result import CellResult
from jaxnb.cells.sinks import OutputSink
from jaxnb.compiled.comparison import Comparison
from jaxnb.compiled.compiling import parse_call, taken_apart
from jaxnb.compiled.planning import Definitions, no_definitions
from jaxnb.errors import CellError, JaxnbError, UsageError
from jaxnb.model.compiled import ComparisonReport

EXAMPLE = "specs={'data': \"P('data'), P()\"}"


def compare_here(
    function: Any,
    args: Any,
    kwargs: Mapping[str, Any] | None,
    specs: Any,
    mesh: Any,
    out_specs: Mapping[str, Any] | None,
    repeats: int | None,
    run: bool,
) -> Comparison:
    """Compares on this process, and on all that run the same cell; see :func:`jaxnb.compare`."""
    out_specs = out_specs or {}
    _require_variants(specs, out_specs, repeats)
    from jaxnb.compiled import process_comparing, process_variants

    call = process_variants.given(function, args, kwargs or {})
    return Comparison(process_comparing.compare(call, specs, mesh, out_specs, repeats, run))


def _require_variants(specs: Any, out_specs: Mapping[str, Any], repeats: Any) -> None:
    if not isinstance(specs, Mapping) or not specs:
        raise UsageError(
            "Give each sharding a name: specs={'data': (P('data'), P()), 'whole': P()}. Nothing "
            "was run."
        )
    names = [name for name in specs if not isinstance(name, str)]
    if names:
        raise UsageError(f"A variant's name must be text, not {names[0]!r}. Nothing was run.")
    if unknown := [name for name in out_specs if name not in specs]:
        raise UsageError(
            f"There is no variant {unknown[0]!r}: `specs` has {', '.join(map(repr, specs))}. "
            "Nothing was run."
        )
    is_number = isinstance(repeats, int) and not isinstance(repeats, bool)
    if repeats is not None and (not is_number or repeats < 1):
        raise UsageError(f"`repeats` is a whole number from 1, not {repeats!r}. Nothing was run.")


def require_no_setup(setup: str) -> None:
    """Raises UsageError if a setup is given where nothing is planned."""
    if setup:
        raise UsageError(
            "`setup` is for a plan: give `devices` too. Nothing was run. On the group's "
            "own devices, run the setup as a cell."
        )


def code_of(
    call: str,
    specs: Any,
    mesh: Any,
    out_specs: Mapping[str, Any] | None,
    repeats: int | None,
    run: bool,
) -> str:
    """Returns the expression that compares on a process; everything in it was parsed.

    Args:
        call: The call, as an expression.
        specs: Name to specs, an expression each.
        mesh: An expression, or axes and sizes.
        out_specs: Name to specs.
        repeats: How many calls to measure.
        run: Whether to run anything.

    Raises:
        UsageError: Something is no expression.
    """
    parts = taken_apart(parse_call(call)).body
    assert isinstance(parts, ast.Tuple)
    function, positional, keywords = map(ast.unparse, parts.elts)
    out_specs = out_specs or {}
    if isinstance(mesh, Mapping):
        mesh = repr(dict(mesh))
    mesh = None if mesh is None else _expression("mesh", mesh)
    return (
        f"__import__('jaxnb').compare({function}, {positional}, kwargs={keywords}, "
        f"specs={_by_name('specs', specs)}, mesh={mesh}, "
        f"out_specs={_by_name('out_specs', out_specs)}, repeats={repeats!r}, run={bool(run)})"
    )


def _by_name(what: str, values: Mapping[str, Any]) -> str:
    entries = [f"{name!r}: {_expression(f'{what}[{name!r}]', v)}" for name, v in values.items()]
    return f"{{{', '.join(entries)}}}"


def _expression(what: str, text: Any) -> str:
    """Returns an expression in text, once it was parsed."""
    if not isinstance(text, str):
        raise UsageError(
            f"{what} is an object of type {type(text).__name__}, which lives in this process. "
            f"Nothing was run. Name what there is on the processes, as text: mesh='mesh', "
            f"{EXAMPLE}."
        )
    try:
        return ast.unparse(ast.parse(text.strip(), mode="eval"))
    except (SyntaxError, ValueError):
        raise UsageError(
            f"{what} is {text!r}, which is not a Python expression. Nothing was run. Type e.g. "
            f"{EXAMPLE}."
        ) from None


def compare_on(
    run: Callable[..., CellResult], code: str, label: str, sink: OutputSink | None
) -> Comparison:
    """Compares on the processes of a group.

    Args:
        run: ``Session.run``, with its settings.
        code: What :func:`code_of` returns.
        label: What is shown in its place, where processes wait, or in tracebacks.
        sink: Where output goes; without one it is printed in the end.

    Raises:
        UsageError: As on the processes.
        CellError: A process raised.
    """
    try:
        result = run(code, aside=label, sink=sink)
    except CellError as error:
        errors = error.result.errors
        messages = {each.message for each in errors.values()}
        kinds = {each.type_name for each in errors.values()}
        if kinds == {"UsageError"} and len(messages) == 1:
            raise UsageError(messages.pop()) from None
        raise
    if result.stdout and sink is None:
        print(result.stdout, end="")  # noqa: T201  # what the function printed when it was traced
    values = [each.value for each in result.per_process.values()]
    first: Comparison = values[0]
    if any(each != first for each in values):
        raise JaxnbError(
            "The processes report different comparisons, which is a bug in jaxnb. Nothing was "
            "changed. `spmd.last_result.per_process` has what each says."
        )
    return first


def compare_planned(
    code: str,
    *,
    devices: int,
    setup: str = "",
    definitions: Definitions = no_definitions,
    label: str,
) -> Comparison:
    """Compares what a call compiles to for devices that there need not be; nothing is run.

    Args:
        code: What :func:`code_of` returns.
        devices: How many.
        setup: Code to run first.
        definitions: What the code may use of a group.
        label: What to call it in messages.

    Raises:
        UsageError: As :func:`jaxnb.compiled.planning.plan`.
        NotCompiledError: The setup raised.
    """
    from jaxnb.compiled import planning

    whole = f"{setup}\n{code}" if setup else code
    answer = planning.answer(whole, devices=devices, definitions=definitions, label=label)
    assert isinstance(answer, ComparisonReport)
    return Comparison(answer)
