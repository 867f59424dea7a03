"""The processes of a group as they are now, from their reports, their deaths and the system."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from jaxnb.launch.deaths import Death, describe_status
from jaxnb.launch.host import is_stopped
from jaxnb.model.group import ProcessInfo, ProcessReport


def process_infos(
    reports: Iterable[ProcessReport],
    deaths: Iterable[Death],
    *,
    busy: Collection[int],
    engine_ids: Mapping[int, int],
    closed: bool,
) -> list[ProcessInfo]:
    """Returns the processes, by process index.

    Args:
        reports: What each said at the start.
        deaths: Who has died since.
        busy: The process indices that are in a cell.
        engine_ids: Process index to ipyparallel's number.
        closed: The session has been closed.
    """
    dead = {death.index: death for death in deaths if death.role == "engine"}
    infos = []
    for report in reports:
        index = report.process_index
        ended = describe_status(dead[index].status) if index in dead else "stopped"
        is_dead = closed or index in dead
        infos.append(
            ProcessInfo(
                process_index=index,
                pid=report.pid,
                host=report.host,
                devices=report.local_devices,
                engine_id=engine_ids.get(index, -1),
                state="dead" if is_dead else "busy" if index in busy else "ready",
                detail=ended if is_dead else _paused(report.pid),
            )
        )
    return infos


def _paused(pid: int) -> str:
    return f"stopped, `kill -CONT {pid}` lets it go on" if is_stopped(pid) else ""
