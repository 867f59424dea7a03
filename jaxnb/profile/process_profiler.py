"""``jax.profiler`` around a cell of this process."""

from __future__ import annotations

import gzip
import json
import shutil
import socket
import tempfile
import zlib
from pathlib import Path
from typing import Any

import jax

from jaxnb.labels import text_of
from jaxnb.model.insight import Profile
from jaxnb.wire import process_features
from jaxnb.wire.process_features import CellHere, Feature
from jaxnb.wire.process_sentinel import ThisProcess

_PIDS = 1000
"""A trace of one process has smaller process ids: one for each of its devices, and its host."""


class Profiler(Feature):
    """Profiles cells that ask for it, however they end.

    Args:
        parent: Where files are until they are asked for, which is removed with the group.

    Attributes:
        folder: Where those of the last cell are that was profiled; None if they were taken.
        trouble: Why there are none.
    """

    def __init__(self, parent: str) -> None:
        self._parent = parent
        self._is_on = False
        self.folder: Path | None = None
        self.trouble = ""

    def begin(self, cell: CellHere) -> None:
        """Begins a profile; a cell whose process runs another one is not profiled."""
        self._end()  # that of a cell which was cancelled
        if not cell.request.profile:
            return
        self.take()
        try:
            self.folder = Path(tempfile.mkdtemp(dir=self._parent))
            jax.profiler.start_trace(str(self.folder))
            self._is_on = True
        except Exception as error:
            advice = "`%spmd jax.profiler.stop_trace()` ends a profile that a cell has started."
            self.trouble = f"{text_of(error).rstrip('.')}. {advice}"

    def over(self, cell: CellHere) -> None:
        """Ends the profile."""
        self._end()

    left = over  # to record how an error is formatted takes seconds

    def _end(self) -> None:
        if not self._is_on:
            return
        self.trouble = "jax.profiler has written no file."
        try:
            jax.profiler.stop_trace()
        except Exception as error:  # the cell may have ended it, or started another one
            self.trouble = f"{text_of(error).rstrip('.')} (its files were in {self.folder})."
        self._is_on = False

    def take(self) -> None:
        """Removes the files."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder = None


def read(process: ThisProcess, since: float) -> Profile:
    """Returns the profile of the last cell that was profiled, and removes it here.

    Args:
        process: This process.
        since: The time that is 0 in the trace, in seconds since 1970.
    """
    (profiler,) = (f for f in process_features.REGISTERED if isinstance(f, Profiler))
    folder = profiler.folder
    xplane = None if folder is None else next(folder.rglob("*.xplane.pb"), None)
    if folder is None or xplane is None:
        return Profile(trouble=profiler.trouble)
    planes = jax.profiler.ProfileData.from_file(str(xplane)).planes
    stats: dict[str, Any] = dict(stat for plane in planes for stat in plane.stats)
    late = (
        stats.get("profile_start_time", since * 1e9) / 1e3 - since * 1e6
    )  # microseconds, of nanoseconds
    name = f"process {process.index} ({socket.gethostname()})"
    events: list[dict[str, Any]] = []
    for trace in folder.rglob("*.trace.json.gz"):
        with gzip.open(trace) as file:
            events += filter(None, json.load(file)["traceEvents"])
    for event in events:
        event["pid"] += _PIDS * (process.index + 1)
        if "ts" in event:
            event["ts"] += late
        elif event["name"] == "process_name":
            of = event["args"]["name"]
            event["args"]["name"] = name if of == "/host:CPU" else f"{name} {of}"
    text = json.dumps(events, separators=(",", ":"))[1:-1]
    profile = Profile(xplane.read_bytes(), zlib.compress(text.encode(), 1))
    profiler.take()
    return profile
