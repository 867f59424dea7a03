"""ipyparallel's own names in its launchers."""

from __future__ import annotations

from typing import Any

from ipyparallel.cluster import launcher

from jaxnb.compat.uses import Use


class WatchedEngineSet(launcher.LocalEngineSetLauncher):  # type: ignore[misc]
    """ipyparallel's set of local engines, told when one of them has ended."""

    def engine_ended(self, data: dict[str, Any], output: str) -> None:
        """Takes what is known of an engine that has ended, and the last that it wrote."""

    def _notice_engine_stopped(self, data: dict[str, Any]) -> None:
        ended = self.launchers.get(data["identifier"])
        output = ended.get_output() if ended is not None else ""
        super()._notice_engine_stopped(data)
        self.engine_ended(data, output)


def _probe() -> str:
    told: list[str] = []

    class Told(WatchedEngineSet):
        def engine_ended(self, data: dict[str, Any], output: str) -> None:
            told.append(data["identifier"])

    engines = Told(cluster_id="probe")
    engines.launchers = {"0": launcher.BaseLauncher(), "1": launcher.BaseLauncher()}
    engines.launchers["0"].get_output = lambda: ""
    engines._notice_engine_stopped({"identifier": "0", "pid": 1, "exit_code": 0})
    return "" if told == ["0"] else f"told {told}"


USES = (
    Use(
        "ipyparallel",
        ("LocalEngineSetLauncher._notice_engine_stopped",),
        "noticing the death of a process that was not forked",
        "With `--launcher local` a death is noticed only when the process is asked something.",
        _probe,
    ),
)
"""What is used here."""
