"""The profiles of all processes of a cell, as XProf and Perfetto open them."""

from __future__ import annotations

import gzip
import shutil
import time
import zlib
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from jaxnb.errors import UsageError
from jaxnb.labels import format_bytes, processes_label
from jaxnb.model.cells import CallRequest
from jaxnb.model.group import ProcessReport
from jaxnb.model.insight import Profile
from jaxnb.wire.asking import Channel
from jaxnb.wire.messages import Unanswered

TRACE = "trace.json.gz"

READ_SECONDS = 600.0
"""To turn a million events into text takes ten seconds, longer on a busy host."""


class ProfiledCell:
    """A cell whose processes are profiled, and the folder for that: a run, as XProf says.

    Args:
        directory: Where the user wants profiles.
        cell: The cell's number.

    Attributes:
        folder: Where the files of this cell go; they are there once it has ended.

    Raises:
        UsageError: The folder cannot be made.
    """

    def __init__(self, directory: str, cell: int) -> None:
        self._began = time.time()
        self._directory = Path(directory).expanduser()
        run = f"{datetime.fromtimestamp(self._began):%Y_%m_%d_%H_%M_%S_%f}_cell_{cell}"
        self.folder = self._directory / "plugins" / "profile" / run
        try:
            self.folder.mkdir(parents=True)
        except OSError as error:
            raise UsageError(
                f"No profile can be written to {directory}: {error.strerror}. Nothing was run. "
                "Name another folder: `%%spmd_profile DIR`."
            ) from None

    def save(
        self, processes: Iterable[int], reports: Iterable[ProcessReport], channel: Channel
    ) -> str:
        """Takes the profiles from processes, and writes them.

        Args:
            processes: Those that have run the cell.
            reports: What they told at their start.
            channel: What they are asked over.

        Returns:
            What became of it, for the user.
        """
        hosts = {each.process_index: each.host for each in reports}
        asked = {"since": self._began}
        request = CallRequest("jaxnb.profile.process_profiler.read", asked, is_interruptible=True)
        found: dict[int, Profile] = {}
        missing: dict[str, list[int]] = {}
        try:
            answers = channel.ask(dict.fromkeys(processes, request), seconds=READ_SECONDS)
            for index, answer in sorted(answers.items()):
                why = f"it {answer}." if isinstance(answer, Unanswered) else answer.trouble
                if why:
                    missing.setdefault(why, []).append(index)
                else:
                    found[index] = answer
            if found:
                self._write(found, hosts)
        except KeyboardInterrupt:
            found, missing = {}, {"interrupted while it was read.": [*processes]}
        except OSError as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            return (
                f"The profile was not written: {error.strerror} ({self.folder}). The cell is not "
                "affected. Make room there or name another folder, and run it again."
            )
        without = " ".join(f"Without {processes_label(who)}: {why}" for why, who in missing.items())
        if not found:
            shutil.rmtree(self.folder, ignore_errors=True)
            return f"There is no profile. {without}"
        nbytes = sum(file.stat().st_size for file in self.folder.iterdir())
        return (
            f"Profile of {processes_label(found)}, {format_bytes(nbytes)}: type `xprof --logdir "
            f"{self._directory}`, or open {self.folder / TRACE} at https://ui.perfetto.dev. "
            f"{without}"
        ).rstrip()

    def _write(self, profiles: dict[int, Profile], hosts: dict[int, str]) -> None:
        digits = len(str(max(hosts)))
        for index, each in profiles.items():
            name = f"process_{index:0{digits}}_{hosts[index]}.xplane.pb"
            (self.folder / name).write_bytes(each.xplane)
        with gzip.open(self.folder / TRACE, "wb", compresslevel=1) as trace:
            trace.write(b'{"displayTimeUnit":"ns","traceEvents":[')
            for k, each in enumerate(profiles.values()):
                trace.write(b"," * bool(k) + zlib.decompress(each.events))
            trace.write(b"]}")
