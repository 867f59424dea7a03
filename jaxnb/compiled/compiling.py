"""What a call compiles to, as all processes of a group say that agree."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxnb.errors import JaxnbError, NotCompiledError, UsageError
from jaxnb.labels import one_line, processes_label
from jaxnb.model import compiled as model
from jaxnb.model.arrays import MeshInfo
from jaxnb.model.cells import CallRequest
from jaxnb.pictures import exchange
from jaxnb.wire.asking import Channel

if TYPE_CHECKING:
    import numpy as np

    from jaxnb.compiled.roofline import Roofline
    from jaxnb.display.card import Card

EXAMPLE = "`f(x)`, or `jax.jit(f)(x, key=3)`"


def parse_call(code: str) -> ast.Call:
    """Returns the call that an expression is.

    Raises:
        UsageError: It is none: no expression, or one that calls nothing at its outermost.
    """
    text = code.strip()
    if not text:
        raise UsageError(f"Name the call whose collectives you want: {EXAMPLE}. Nothing was run.")
    try:
        body = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UsageError(
            f"`{one_line(text)}` is not a Python expression ({reason}). Nothing was run. Type "
            f"the call whose collectives you want: {EXAMPLE}."
        ) from None
    return require_call(body, text)


def require_call(body: ast.expr, text: str) -> ast.Call:
    """Returns an expression if it is a call.

    Raises:
        UsageError: It is none.
    """
    if isinstance(body, ast.Call):
        return body
    advice = f"Type the call whose collectives you want: {EXAMPLE}."
    if isinstance(body, ast.Name | ast.Attribute):
        advice = f"If it is a function, type it with its arguments: `{one_line(text)}(...)`."
    elif isinstance(body, ast.BinOp | ast.UnaryOp | ast.Compare | ast.Subscript):
        advice = f"Put it into a function: `def f(...): return {one_line(text)}`, then `f(...)`."
    raise UsageError(f"`{one_line(text)}` is not a call. Nothing was run. {advice}")


def taken_apart(call: ast.Call) -> ast.Expression:
    """Returns an expression of a call's parts: the function, a tuple and a dict of arguments."""
    keywords = ast.Dict(
        keys=[None if k.arg is None else ast.Constant(k.arg) for k in call.keywords],
        values=[k.value for k in call.keywords],
    )
    positional = ast.Tuple(elts=list(call.args), ctx=ast.Load())
    parts = ast.Tuple(elts=[call.func, positional, keywords], ctx=ast.Load())
    return ast.fix_missing_locations(ast.Expression(ast.copy_location(parts, call)))


COMPILE_SECONDS = 3600.0
"""How long a process may compile; large programs take minutes. An interrupt ends it sooner."""

_STAGES = {
    "prepared": "the code before it raised",
    "evaluated": "its function and arguments could not be evaluated",
    "traced": "JAX could not trace it",
    "lowered": "JAX could not lower it",
    "compiled": "XLA could not compile it",
    "read": "what XLA compiled could not be read",
}


class Collectives(list[model.Collective]):
    """The collectives of a compiled call, in the order in which they stand in the program.

    A list; a notebook shows it as a table, ``print`` too. Nothing of it was run.

    Args:
        report: What the call compiles to.
        planned: It was compiled for devices that there need not be.

    Attributes:
        report: What it was made of.
        planned: As above.
    """

    def __init__(self, report: model.CompiledReport, *, planned: bool = False) -> None:
        super().__init__(report.collectives)
        self.report = report
        self.planned = planned

    @property
    def totals(self) -> tuple[model.AxisTotal, ...]:
        """What they move by the mesh axes that they go along, the most first."""
        return self.report.totals

    @property
    def num_devices(self) -> int:
        """How many devices the program runs on."""
        return self.report.num_devices

    @property
    def meshes(self) -> tuple[MeshInfo, ...]:
        """The meshes that its shardings are on."""
        return self.report.meshes

    @property
    def flops(self) -> float | None:
        """What XLA counts of arithmetic on each device, loop bodies once; None if unknown."""
        return self.report.flops

    @property
    def accessed_bytes(self) -> float | None:
        """What XLA counts of memory read and written by each device, likewise."""
        return self.report.accessed_bytes

    @property
    def memory(self) -> model.Memory | None:
        """What the program needs of each device's memory; None if XLA does not say."""
        return self.report.memory

    def matrix(self) -> np.ndarray[Any, Any]:
        """Returns how many bytes each device sends to each in one call.

        Around rings, and pair by pair for an all-to-all. What is in loops of unknown length counts
        once. A row's sum is what that device sends; the totals add for each collective what the
        device sends that sends most.

        Returns:
            By sender and receiver, in the order of ``report.devices``.
        """
        return exchange.matrix(self.report)

    def roofline(self, flops: float, bandwidth: Mapping[str, float]) -> Roofline:
        """Returns how long a call takes at least, and what bounds it.

        Args:
            flops: Arithmetic operations that a device makes in a second: 197e12, say.
            bandwidth: Axis to the bytes that a device sends along it in a second.

        Raises:
            UsageError: A speed is missing or not possible, or there is no such axis.
        """
        from jaxnb.compiled.roofline import roofline

        return roofline(self.report, flops, bandwidth)

    def picture(self) -> Card:
        """Draws what moves: each collective step by step, and the bytes from device to device."""
        from jaxnb.pictures.card_matrix import moves_card

        return moves_card(self.report)

    def __str__(self) -> str:
        from jaxnb.compiled import card_collectives

        return card_collectives.collectives_card(self.report, planned=self.planned).text

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        # For text, IPython prefers its printer of lists to a mimebundle.
        printer.text(str(self))

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        from jaxnb.compiled import card_collectives

        card = card_collectives.collectives_card(self.report, planned=self.planned)
        return {"text/plain": card.text, "text/html": card.html}


def compile_on(channel: Channel, code: str) -> Collectives:
    """Returns what a call compiles to on the processes of a group.

    All of them compile it, as they may exchange something while they do.

    Args:
        channel: To the processes.
        code: The call.

    Raises:
        UsageError: It is not a call.
        NotCompiledError: It cannot be compiled on some process.
        ProcessDiedError: A process died.
        JaxnbError: The processes compiled different programs, or one gave no answer.
    """
    parse_call(code)
    request = CallRequest("jaxnb.compiled.process_compiled.collectives", {"code": code})
    everyone = dict.fromkeys(range(channel.num_processes), request)
    answers = channel.ask_together(everyone, seconds=COMPILE_SECONDS)
    channel.require(answers, f"`{one_line(code)}` was compiled")
    failed = {i: a for i, a in answers.items() if isinstance(a, model.NotCompiled)}
    if failed:
        raise _failed(code, failed, channel.num_processes)
    return Collectives(_agreed(code, answers))


def _failed(
    code: str, failed: Mapping[int, model.NotCompiled], num_processes: int
) -> NotCompiledError:
    first = next(iter(failed.values()))
    where = ""
    if len(failed) < num_processes:
        others = sorted(set(range(num_processes)) - set(failed))
        where = (
            f" on {processes_label(failed)}; {processes_label(others)} compiled it. The processes "
            "have different variables"
        )
    advice = ""
    if "device" in first.error.message:
        advice = (
            "If it is meant for more devices than the group has, plan it: `%%spmd_collectives "
            "--devices N`, or `jaxnb.plan(..., devices=N)`."
        )
    return not_compiled(code, first, where, advice)


def not_compiled(
    code: str, answer: model.NotCompiled, where: str = "", advice: str = ""
) -> NotCompiledError:
    """Returns the error that says why a call could not be compiled.

    Args:
        code: The call.
        answer: What a process answered.
        where: On which processes, as the end of a sentence.
        advice: What to type next.
    """
    said = str(answer.error).partition("\n")[0]
    said += "" if said.endswith((".", "!", "?")) else "."
    message = (
        f"`{one_line(code)}` was not compiled: {_STAGES[answer.stage]}{where}. It was not run."
    )
    whole = " ".join(part for part in (message, said, advice) if part)
    return NotCompiledError(whole, rendering=answer.error.traceback)


def _agreed(code: str, answers: Mapping[int, model.CompiledReport]) -> model.CompiledReport:
    """Returns one of the answers if all are the same.

    Raises:
        JaxnbError: They are not.
    """
    groups: dict[str, list[int]] = {}
    for index, answer in answers.items():
        groups.setdefault(answer.fingerprint, []).append(index)
    if len(groups) > 1:
        raise JaxnbError(
            f"The processes compiled different programs for `{one_line(code)}`: "
            f"{' ≠ '.join(map(processes_label, groups.values()))}. Run as it is, they would not do "
            "the same, and JAX would not notice. Nothing was run. `%spmd` each of its arguments "
            "and its function to see where they differ."
        )
    return answers[min(answers)]
