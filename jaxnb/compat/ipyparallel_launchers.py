"""ipyparallel's own names in its launchers."""

from __future__ import annotations

from typing import Any

from ipyparallel.cluster import launcher


class WatchedEngineSet(launcher.LocalEngineSetLauncher):  # type: ignore[misc]
    """ipyparallel's set of local engines, told when one of them has ended."""

    def engine_ended(self, data: dict[str, Any], output: str) -> None:
        """Takes what is known of an engine that has ended, and the last that it wrote."""

    def _notice_engine_stopped(self, data: dict[str, Any]) -> None:
        ended = self.launchers.get(data["identifier"])
        output = ended.get_output() if ended is not None else ""
        super()._notice_engine_stopped(data)
        self.engine_ended(data, output)
