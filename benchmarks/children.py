"""Fresh Python processes that measure something and report it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.processes import ROOT, own_processes


class ChildFailed(RuntimeError):
    """A benchmark's child process failed; the message has the end of what it printed."""


def run_reporting(module: str, arguments: list[str], timeout: float) -> Any:
    """Run ``python -m MODULE REPORT ARGUMENTS...``; return what it wrote to REPORT as JSON.

    Whatever the process leaves running is ended.

    Raises:
        ChildFailed: It failed, or did not end in ``timeout`` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="jaxnb-bench-") as folder, own_processes() as env:
        report_path, log_path = Path(folder, "report.json"), Path(folder, "log")
        with log_path.open("w") as log:
            try:
                subprocess.run(
                    [sys.executable, "-m", module, str(report_path), *arguments],
                    cwd=ROOT,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    timeout=timeout,
                    check=True,
                )
            except subprocess.SubprocessError as error:
                tail = "\n".join(log_path.read_text(errors="replace").splitlines()[-25:])
                raise ChildFailed(f"{error}\n{tail}") from None
        return json.loads(report_path.read_text())
