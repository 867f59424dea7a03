"""Cards under a cell: the footer strip, and value with footer."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from jaxnb.cells.card_divergence import divergence_card
from jaxnb.cells.card_memory import memory_text
from jaxnb.cells.card_pitfalls import pitfalls_card
from jaxnb.cells.card_timing import timing_card
from jaxnb.cells.card_value import value_card
from jaxnb.cells.result import CellResult
from jaxnb.display.blocks import Facts
from jaxnb.display.card import Card, card_of, stacked
from jaxnb.display.text import spark
from jaxnb.errors import ProcessDiedError
from jaxnb.labels import Outputs, format_seconds, plural, ranks_label
from jaxnb.model.cells import NO_ANSWER

_STRAGGLER_RATIO = 1.5
_STRAGGLER_SECONDS = 0.05
_MAX_BARS = 64
_NEVER_ENDED = {NO_ANSWER: "no end on", ProcessDiedError.__name__: "died:"}
_ENDS = {"KeyboardInterrupt": "interrupted on", **_NEVER_ENDED}


def cell_card(result: CellResult, outputs: Outputs = "merged") -> Card:
    """The value of a cell with what comes below it; that alone if it has no value."""
    return stacked([value_card(result, outputs), below_card(result)])


def below_card(result: CellResult) -> Card:
    """How programs differ, what a cell did that JAX says nothing of, and the footer."""
    return stacked([divergence_card(result), pitfalls_card(result), footer_card(result)])


def footer_card(result: CellResult) -> Card:
    """How long the cell took per process, who was slow, what was compiled and allocated."""
    parts = [_who(result), format_seconds(result.seconds)]
    slowest = straggler(result)
    if slowest is not None:
        own = result.per_process[slowest].code_seconds
        others = median(r.code_seconds for i, r in result.per_process.items() if i != slowest)
        parts.append(f"slowest {slowest} ({format_seconds(own)}, others {format_seconds(others)})")
    if compiled := _compiled(result):
        parts.append(compiled)
    if changed := memory_text(result):
        parts.append(changed)
    if late := [i for i, each in result.per_process.items() if each.computes]:
        on = "" if len(late) == len(result.per_process) else f" on {ranks_label(late)}"
        parts.append(f"still computing{on}")
    ends: dict[str, list[int]] = {"error on": []}
    for i, error in result.errors.items():
        ends.setdefault(_ENDS.get(error.type_name, "error on"), []).append(i)
    parts += [f"{what} {ranks_label(who)}" for what, who in ends.items() if who]
    footer = card_of(_with_bars(result, Facts(parts, look="small", wrap=False)))
    if result.timing is None:
        return footer
    has_compiled = any(each.compiles for each in result.per_process.values())
    return stacked([timing_card(result.timing, compiled=has_compiled), footer])


def straggler(result: CellResult) -> int | None:
    """Returns the process that took clearly longer than the others, if one stands out."""
    ended = {
        i: each
        for i, each in result.per_process.items()
        if each.error is None or each.error.type_name not in _NEVER_ENDED
    }
    seconds = {i: each.code_seconds for i, each in ended.items()}
    if len(seconds) < 2:
        return None
    slowest = max(seconds, key=lambda i: seconds[i])
    others = max(value for i, value in seconds.items() if i != slowest)
    # Compared with the next slowest: with two slow ones neither stands out.
    stands_out = seconds[slowest] > _STRAGGLER_RATIO * others
    return slowest if stands_out and seconds[slowest] - others > _STRAGGLER_SECONDS else None


def _who(result: CellResult) -> str:
    ran = result.per_process
    if len(ran) == result.num_processes:
        return plural(len(ran), "process")
    word = "process" if len(ran) == 1 else "processes"
    return f"{word} {ranks_label(ran)} of {result.num_processes}"


def _compiled(result: CellResult) -> str:
    results = list(result.per_process.values())
    seconds = max((r.compile_seconds for r in results), default=0.0)
    loaded = sum(r.loads for r in results)  # over all processes
    compiled = sum(r.compiles for r in results) - loaded
    if seconds < 0.001 and not compiled + loaded:
        return ""
    counts = (("compiled", compiled), ("loaded", loaded))
    told = ", ".join(f"{what} {count}" for what, count in counts if count)
    return f"{told or 'compiled'} in {format_seconds(seconds)}"


def _with_bars(result: CellResult, facts: Facts) -> Facts:
    """Returns facts with a small bar for each process, as high as it took long."""
    seconds = {i: each.code_seconds for i, each in sorted(result.per_process.items())}
    longest = max(seconds.values(), default=0.0)
    # Below a few milliseconds the differences are noise.
    if len(seconds) < 2 or len(seconds) > _MAX_BARS or longest < 0.005:
        return facts
    title = ", ".join(f"{i}: {format_seconds(own)}" for i, own in seconds.items())
    return replace(facts, spark=spark(list(seconds.values()), longest), spark_title=title)
