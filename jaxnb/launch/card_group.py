"""Cards of the whole group: started, its state, stopped, and progress on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from jaxnb.display.card import Card, render
from jaxnb.display.text import text_table
from jaxnb.labels import format_seconds, plural, ranks_label
from jaxnb.model.group import DeviceInfo, GroupInfo, ProcessInfo

FOLD_ABOVE = 8
"""With more processes than this the table is a click away."""


@dataclass(frozen=True, slots=True)
class _Row:
    process_index: int
    pid: int
    host: str
    devices: str
    state: str


def start_card(group: GroupInfo, replayed: int | None = None) -> Card:
    """What was started: processes, devices, hosts, launcher, and the time it took.

    Args:
        group: The group.
        replayed: How many cells were run again.
    """
    tail = f"ready in {format_seconds(group.start_seconds)}"
    if replayed is not None:
        tail += f" · {plural(replayed, 'cell')} run again"
    return group_card(group, tail, False)


def status_card(group: GroupInfo) -> Card:
    """The group and the state of each process."""
    tail = f"{group.state} · {plural(group.cells_run, 'cell')} run"
    if group.last_cell is not None:
        tail += f", last [{group.last_cell}]"
    if group.running_cell is not None:
        tail += f" · [{group.running_cell}] is running"
    return group_card(group, tail, True)


def stopped_card(seconds: float) -> Card:
    """Says that the group has stopped; ``seconds`` is how long that took."""
    text = f"Stopped in {format_seconds(seconds)}; no process is left."
    return Card(render("line", text=text), text)


def progress_card(stage: str, detail: str, seconds: float | None) -> Card:
    """What a start is doing, and since when; shown again and again in the same place."""
    parts = [stage, detail, "" if seconds is None else format_seconds(seconds)]
    text = " · ".join(part for part in parts if part)
    return Card(render("progress", parts=[part for part in parts if part]), text)


def group_heading(group: GroupInfo) -> str:
    """Returns ``"4 processes × 2 CPU devices = 8 devices"``."""
    platform = group.platform.upper()
    per_process = {len(process.devices) for process in group.processes}
    total = sum(len(process.devices) for process in group.processes)
    processes = plural(len(group.processes), "process")
    if len(per_process) != 1:
        return f"{processes}, {platform}, {plural(total, 'device')}"
    each = plural(per_process.pop(), f"{platform} device")
    return f"{processes} × {each} = {plural(total, 'device')}"


def group_card(group: GroupInfo, tail: str, with_state: bool, notes: Sequence[str] = ()) -> Card:
    """The group: its processes and devices, what there is to say of it, and what is to be known."""
    heading = group_heading(group)
    notes = (*group.notes, *notes)
    detail = " · ".join(
        [
            f"JAX {group.jax_version}",
            f"collectives {group.collectives}",
            f"launcher {group.launcher}",
            f"check {group.check}",
        ]
    )
    rows = [_row(process) for process in group.processes]
    hosts = _hosts(group)
    with_state = with_state or any(row.state != "ready" for row in rows)
    folded = len(rows) > FOLD_ABOVE
    html = render(
        "group",
        heading=heading,
        tail=tail,
        detail=detail,
        rows=rows,
        folded=folded,
        hosts=hosts,
        with_state=with_state,
        broken=group.state == "broken",
        notes=notes,
    )
    lines = [f"{heading} · {tail}", detail]
    shown = [row for row in rows if row.state != "ready"] if folded else rows
    if folded:
        lines.append(f"{plural(len(rows), 'process')} on {hosts}")
    if shown:
        lines.append(_text_rows(shown, with_state))
    return Card(html, "\n".join([*lines, *notes]))


def _text_rows(rows: list[_Row], with_state: bool) -> str:
    header = ["process", "pid", "host", "devices", *(["state"] if with_state else [])]
    body = [
        [str(r.process_index), str(r.pid), r.host, r.devices, *([r.state] if with_state else [])]
        for r in rows
    ]
    return text_table([header, *body], ">><<<"[: len(header)])


def _row(process: ProcessInfo) -> _Row:
    state: str = process.state
    if process.detail:
        state += f"{':' if state == 'dead' else ','} {process.detail}"
    return _Row(process.process_index, process.pid, process.host, _devices(process.devices), state)


def _devices(devices: tuple[DeviceInfo, ...]) -> str:
    """``"0-1"``, with the kind where it says more than the platform."""
    if not devices:
        return "none"
    ids = ranks_label(device.id for device in devices)
    kinds = sorted({d.kind for d in devices if d.kind.lower() != d.platform.lower()})
    return f"{ids} ({', '.join(kinds)})" if kinds else ids


def _hosts(group: GroupInfo) -> str:
    counts = Counter(process.host for process in group.processes)
    if len(counts) == 1:
        return next(iter(counts))
    named = ", ".join(f"{host} ({count})" for host, count in list(counts.items())[:4])
    return f"{plural(len(counts), 'host')}: {named}{', …' if len(counts) > 4 else ''}"
