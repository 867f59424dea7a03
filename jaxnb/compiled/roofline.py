"""How long a call takes at least on devices and links of given speeds, and what bounds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxnb.compiled.card_comparison import format_time
from jaxnb.display.blocks import Cell, Column, Facts, Note, Row, Table
from jaxnb.display.card import Card, card_of
from jaxnb.errors import UsageError
from jaxnb.labels import format_bytes, format_count
from jaxnb.model.compiled import AxisTotal, CompiledReport
from jaxnb.options import suggest


@dataclass(frozen=True)
class Roofline:
    """The least times of a call on one device; a notebook shows a table, ``print`` too.

    Attributes:
        compute_seconds: What its arithmetic takes.
        axis_seconds: What the collectives over the same axes take.
        report: What the call compiles to.
        flops: Arithmetic operations in a second.
        bandwidth: Axis to bytes that a device sends along it in a second.
    """

    compute_seconds: float
    axis_seconds: Mapping[tuple[str, ...], float]
    report: CompiledReport
    flops: float
    bandwidth: Mapping[str, float]

    @property
    def bound(self) -> tuple[str, ...]:
        """The axes whose collectives take longest; empty if the arithmetic takes longer."""
        slowest = max(self.axis_seconds, key=self.axis_seconds.__getitem__, default=())
        return slowest if self.axis_seconds.get(slowest, 0.0) > self.compute_seconds else ()

    @property
    def seconds(self) -> tuple[float, float]:
        """What a call takes at least: if everything overlaps, and if nothing does."""
        times = [self.compute_seconds, *self.axis_seconds.values()]
        return max(times), sum(times)

    def card(self) -> Card:
        """Returns the table."""
        counted = self.report.flops
        flops = "? FLOPs" if counted is None else f"{format_count(round(counted))} FLOPs"
        rows: list[Row] = [
            _row("computing", flops, f"{self.flops / 1e12:.3g} TFLOP/s", self.compute_seconds)
        ]
        for total in self.report.totals:
            if total.axes in self.axis_seconds:
                speed = f"{_speed(total.axes, self.bandwidth) / 1e9:.3g} GB/s"
                sent = format_bytes(total.scatter_bytes)
                rows.append(_row(", ".join(total.axes), sent, speed, self.axis_seconds[total.axes]))
        least, most = self.seconds
        by = f"the collectives over {', '.join(self.bound)}" if self.bound else "computing"
        times = f"{_time(least)} if all overlaps, {_time(most)} if nothing does"
        columns = [Column(), Column(align=">"), Column("at", ">"), Column("takes", ">")]
        return card_of(
            Facts([f"bound by {by}", f"a call takes at least {times}"], "roofline"),
            Table(columns, rows),
            Note(" ".join(_notes(self.report)), "dim"),
        )

    def __str__(self) -> str:
        return self.card().text

    def _repr_mimebundle_(self, **settings: Any) -> dict[str, str]:
        return self.card()._repr_mimebundle_(**settings)


def _row(what: str, amount: str, speed: str, seconds: float) -> Row:
    return [what, amount, speed, Cell(_time(seconds), "bold")]


def _time(seconds: float) -> str:
    return format_time(seconds) if seconds >= 1e-7 else f"{seconds * 1e9:.3g} ns"


def _notes(report: CompiledReport) -> list[str]:
    notes = ["Links carry what each device sends; latency and memory are left out."]
    if report.has_loops:
        notes.append("XLA counts the body of a loop once: computing takes longer.")
    if any(each.count is None for each in report.collectives):
        notes.append("Collectives in loops of unknown length count once.")
    if any(each.at_most for each in report.collectives):
        notes.append("Those in a branch that may not be taken count in full.")
    if report.widened:
        notes.append("The CPU's compiler moves bfloat16 as float32: elsewhere links carry half.")
    if any(each.bytes and not each.axes for each in report.collectives):
        notes.append("Collectives that go along no axis are left out.")
    if any("all-to-all" in each.kind for each in report.collectives):
        notes.append(
            "On a ring of n without a switch an all-to-all takes n/4 times as long: devices pass "
            "on others' data."
        )
    return notes


def roofline(report: CompiledReport, flops: float, bandwidth: Mapping[str, float]) -> Roofline:
    """Returns how long a call takes at least.

    Collectives over several axes use the links of all of them at once; all-reduces of which each
    device uses a part count as reduce-scatters.

    Args:
        report: What it compiles to.
        flops: Arithmetic operations that a device makes in a second.
        bandwidth: Axis to the bytes that a device sends along it in a second.

    Raises:
        UsageError: A speed is missing, or not above zero; or there is no such axis.
    """
    known = {name for mesh in report.meshes for name in mesh.axis_names}
    if unknown := [name for name in bandwidth if name not in known]:
        raise UsageError(
            f"There is no axis {unknown[0]!r}.{suggest(unknown[0], known)} The call's axes: "
            f"{', '.join(sorted(known)) or 'none'}. Nothing was run."
        )
    if not all(speed > 0 for speed in (flops, *bandwidth.values())):  # nan is not, either
        raise UsageError("Speeds must be above zero: FLOPs, and bytes, in a second.")
    moved = [total for total in report.totals if total.bytes]
    if missing := [name for total in moved for name in total.axes if name not in bandwidth]:
        raise UsageError(
            f"The call sends data along {missing[0]}, whose bandwidth was not given. Nothing was "
            f"run. Add it: `--bandwidth {','.join(f'{n}=9e10' for n in dict.fromkeys(missing))}`."
        )
    return Roofline(
        (report.flops or 0.0) / flops,
        {total.axes: _seconds(total, bandwidth) for total in moved if total.axes},
        report,
        flops,
        dict(bandwidth),
    )


def _speed(axes: tuple[str, ...], bandwidth: Mapping[str, float]) -> float:
    return sum(bandwidth[name] for name in axes)


def _seconds(total: AxisTotal, bandwidth: Mapping[str, float]) -> float:
    return total.scatter_bytes / _speed(total.axes, bandwidth)
