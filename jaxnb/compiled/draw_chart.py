"""A comparison as bars; the only module that imports matplotlib, where it is asked for."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator

from jaxnb.compiled import ranking
from jaxnb.compiled.card_comparison import TITLES, format_time
from jaxnb.display.blocks import Shown
from jaxnb.display.card import card_of
from jaxnb.display.markup import View
from jaxnb.labels import format_bytes
from jaxnb.model.compiled import Column, ComparisonReport, Variant

# Okabe and Ito's colours, which people tell apart who do not see all colours.
_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
_HATCHES = ("", "//", "..", "xx", "\\\\", "oo", "++", "--")

_INK = "#808080"
"""Readable on white and on black: the page shows through."""


class Chart(Figure):
    """A figure that shows itself in a notebook, whether or not ``pyplot`` was imported.

    Attributes:
        words: What it shows.
    """

    words = ""

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        stream = io.BytesIO()
        self.savefig(stream, format="png", dpi=110)
        data = base64.b64encode(stream.getvalue()).decode()
        picture = Shown(View("image", data, "image/png", self.words))
        return {"text/html": card_of(picture).html, "text/plain": self.words}


def chart(report: ComparisonReport) -> Chart:
    """Draws what shardings of a function send, need and take, as horizontal bars.

    The best of each is marked with a star.
    """
    columns: list[Column] = [
        c for c in TITLES if any(ranking.number(v, c) is not None for v in report.variants)
    ]
    columns = columns or ["bytes"]
    names: tuple[Any, ...] = ("text.color", "axes.edgecolor", "xtick.color", "ytick.color")
    with rc_context({**dict.fromkeys(names, _INK), "axes.facecolor": "none"}):
        return _drawn(report, columns)


def _drawn(report: ComparisonReport, columns: Sequence[Column]) -> Chart:
    height = 1.5 + 0.42 * len(report.variants)
    figure = Chart(figsize=(3.1 * len(columns) + 0.8, height), layout="constrained")
    figure.set_facecolor("none")
    axes = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    for ax, column in zip(axes, columns, strict=True):
        _draw(ax, report.variants, column)
    axes[0].set_yticks(range(len(report.variants)), [v.name for v in report.variants])
    axes[0].invert_yaxis()
    title = f"{report.function} under {len(report.variants)} shardings"
    figure.suptitle(title, fontsize=10)
    figure.words = f"{title}, as bars: {', '.join(TITLES[c][1] for c in columns)}"
    return figure


def _draw(ax: Any, variants: Sequence[Variant], column: Column) -> None:
    stacks = _stacks(variants, column)
    left = [0.0] * len(variants)
    for place, (label, sizes) in enumerate(stacks.items()):
        look = {"color": _COLORS[place % len(_COLORS)], "hatch": _HATCHES[place % len(_HATCHES)]}
        ax.barh(range(len(variants)), sizes, left=left, height=0.62, label=label or None,
                edgecolor=_INK, linewidth=0.5, **look)  # fmt: skip
        left = [before + size for before, size in zip(left, sizes, strict=True)]
    timed = enumerate(variants) if column == "time" else ()
    for place, variant in timed:
        if (timing := variant.timing) is not None:
            ax.plot([timing.low, timing.high], [place, place], color=_INK, linewidth=1.2)
    _values(ax, variants, column)
    ax.set_title(TITLES[column][1], fontsize=9)
    ax.tick_params(labelsize=8)
    ax.spines[["top", "right"]].set_visible(False)
    if len(stacks) > 1:
        ax.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.18),
                  ncols=min(3, len(stacks)))  # fmt: skip


def _stacks(variants: Sequence[Variant], column: Column) -> dict[str, list[float]]:
    """Returns the parts of the bars: label to a size for each variant."""
    parts: list[dict[str, float]] = []
    for variant in variants:
        report = variant.report
        if column == "bytes" and report is not None:
            totals = report.totals
            parts.append({", ".join(t.axes) or "no axis": t.bytes for t in totals})
        elif column == "memory" and report is not None and report.memory is not None:
            memory = report.memory
            parts.append({
                "arguments": memory.argument_bytes,
                "outputs": memory.output_bytes - memory.alias_bytes,
                "temporary": memory.temporary_bytes,
            })  # fmt: skip
        else:
            parts.append({"": ranking.number(variant, column) or 0.0})
    labels = dict.fromkeys(label for part in parts for label in part if label) or {"": None}
    return {label: [part.get(label, 0.0) for part in parts] for label in labels}


def _values(ax: Any, variants: Sequence[Variant], column: Column) -> None:
    numbers = [ranking.number(variant, column) for variant in variants]
    ends = [number or 0.0 for number in numbers]
    if column == "time":
        ends = [v.timing.high if v.timing else 0.0 for v in variants]
    room = (max(ends) or 1.0) * 1.5
    ax.set_xlim(0, room)
    is_size = column in ("bytes", "memory")
    show = format_bytes if is_size else format_time
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: show(x) if x else "0"))
    # Sizes are in binary units, so their ticks are at powers of two.
    step = 2.0 ** math.ceil(math.log2(room / 4)) if is_size else None
    ax.xaxis.set_major_locator(MultipleLocator(step) if step else MaxNLocator(3))
    best = ranking.marked(variants, column)
    for place, (number, end, is_best) in enumerate(zip(numbers, ends, best, strict=True)):
        text = "–" if number is None else show(number)
        ax.text(end + 0.02 * room, place, f"{text} ★" if is_best else text,
                va="center", fontsize=8, fontweight="bold" if is_best else "normal")  # fmt: skip
