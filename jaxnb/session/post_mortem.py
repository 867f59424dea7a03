"""Opens a debugger where the last cell that failed has raised."""

from __future__ import annotations

from collections.abc import Iterable

from jaxnb.cells.card_error import error_groups
from jaxnb.cells.result import CellResult
from jaxnb.cells.sinks import OutputSink
from jaxnb.debugging.asking import refusal
from jaxnb.errors import UsageError
from jaxnb.labels import capitalized, processes_label
from jaxnb.session.session import Session

_CODE = "__import__('jaxnb.debugging.process_debugger', fromlist=['_']).post_mortem()"


def others_advice(result: CellResult | None) -> str:
    """Returns how to look at the other processes that failed; empty if none did, or nobody can."""
    groups = [] if result is None or refusal() else error_groups(result)
    failed = sorted(i for each in groups if not each.is_consequence for i in each.processes)
    if result is None or len(failed) < 2:
        return ""
    opened = groups[0].processes[0]
    other = next(i for i in failed if i != opened)
    return (
        f"Cell [{result.cell}] failed on {processes_label(failed)}. This is process {opened}; "
        f"`%debug --ranks {other}` looks at another."
    )


def post_mortem(
    session: Session,
    ranks: Iterable[int] | None = None,
    *,
    sink: OutputSink | None = None,
    cell: int | None = None,
) -> None:
    """Has the user look at where the last cell that failed has raised, until they leave.

    Args:
        session: The session.
        ranks: On which processes, one after the other; on the likely cause by default.
        sink: Where its output goes.
        cell: The number of the cell that asks.

    Raises:
        UsageError: No cell has failed there, or the user cannot be asked.
        CellError: It came before any code of the cell ran.
    """
    result = session.last_failed
    if result is None:
        raise UsageError("No cell has failed on these processes. Nothing was run.")
    processes = [error_groups(result)[0].processes[0]] if ranks is None else sorted(set(ranks))
    if others := [i for i in processes if i not in result.errors]:
        failed = sorted(result.errors)
        raise UsageError(
            f"Cell [{result.cell}] failed on {processes_label(failed)}, not on "
            f"{processes_label(others)}. Type `%spmd_debug --ranks {failed[0]}`."
        )
    if why := refusal():
        raise UsageError(f"{capitalized(why)}, so no debugger was opened.")
    for each in processes:  # all at once would say first where each of them is
        session.run(_CODE, ranks=[each], aside="%spmd_debug", sink=sink, cell=cell)
