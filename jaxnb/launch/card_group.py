"""Cards of the whole group: started, its state, stopped, and progress on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from jaxnb.display.blocks import Block, Column, Either, Facts, Fold, Note, Table
from jaxnb.display.card import Card, card_of, line_card
from jaxnb.display.text import text_of
from jaxnb.labels import format_seconds, plural, ranks_label
from jaxnb.model.group import DeviceInfo, GroupInfo, ProcessInfo

FOLD_ABOVE = 8
"""With more processes than this the table is a click away."""


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
    return line_card(f"Stopped in {format_seconds(seconds)}; no process is left.")


def progress_card(stage: str, detail: str, seconds: float | None) -> Card:
    """What a start is doing, and since when; shown again and again in the same place."""
    parts = [stage, detail, "" if seconds is None else format_seconds(seconds)]
    title, *facts = filter(None, parts)
    return card_of(Facts(facts, title, wrap=False))


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
    notes = (*group.notes, *notes)
    detail = [
        f"JAX {group.jax_version}",
        f"collectives {group.collectives}",
        f"launcher {group.launcher}",
        f"check {group.check}",
    ]
    with_state = with_state or any(process.state != "ready" for process in group.processes)
    return card_of(
        Facts([tail], group_heading(group), wrap=False),
        Facts(detail, look="dim", wrap=False),
        _processes(group, with_state),
        *(Note(note, wrap=False) for note in notes),
        tone="error" if group.state == "broken" else "",
    )


def _processes(group: GroupInfo, with_state: bool) -> Block:
    """The table of processes; of many a click away, and as text those that are not ready."""
    table = _table(group.processes, with_state)
    if len(group.processes) <= FOLD_ABOVE:
        return table
    summary = f"{plural(len(group.processes), 'process')} on {_hosts(group)}"
    others = [process for process in group.processes if process.state != "ready"]
    text = text_of([Facts([summary], wrap=False), _table(others, with_state)])
    return Either([Fold(Facts([summary]), [table])], text)


def _table(processes: Sequence[ProcessInfo], with_state: bool) -> Table:
    columns = [
        Column("process", ">"),
        Column("pid", ">"),
        Column("host"),
        Column("devices"),
        Column("state", optional=True),
    ]
    rows = [
        [str(each.process_index), str(each.pid), each.host, _devices(each.devices),
         _state(each) if with_state else ""]
        for each in processes
    ]  # fmt: skip
    return Table(columns, rows)


def _state(process: ProcessInfo) -> str:
    state: str = process.state
    if process.detail:
        state += f"{':' if state == 'dead' else ','} {process.detail}"
    return state


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
