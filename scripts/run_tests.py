"""Runs the tests, two files at a time, and what fails once more, alone.

A test that fails again fails the run. One that passes alone is *unsteady*: the last lines report it
with both outcomes, and so does ``unsteady.json``. More than :data:`MOST` of them, or one that had
wrong numbers, lost variables or an unexpected death, fail the run too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNSTEADY = ROOT / "unsteady.json"

MOST = 5
"""With more failures than these in the first pass, nothing is run again."""

NEVER_FORGIVEN = re.compile(
    r"WrongNumbersError|LostVariablesError|ProcessDiedError|SessionBrokenError|ArrayGoneError"
    r"|Arrays are not equal|Arrays are not almost equal|Not equal to tolerance"
)
"""What says that jaxnb was wrong, and not that a test came too early or too late."""


@dataclass(frozen=True)
class Failure:
    """A test that failed in the first pass.

    Attributes:
        nodeid: Its name.
        message: The last line of its error.
        late_s: How late, at worst, a thread of its worker woke that time.
        alone: What became of it alone: ``"passed"``, ``"failed"`` or ``""`` if it was not run.
    """

    nodeid: str
    message: str
    late_s: float
    alone: str = ""

    @property
    def is_forgivable(self) -> bool:
        """Whether it may be unsteady."""
        return not NEVER_FORGIVEN.search(self.message)

    @property
    def is_unsteady(self) -> bool:
        """Whether it is: it failed beside other tests and passes alone."""
        return self.is_forgivable and self.alone == "passed"


def run(options: Sequence[str], environment: dict[str, str]) -> tuple[int, list[Failure]]:
    """Runs pytest; returns its exit status and what failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "failures.json"
        command = [sys.executable, "-m", "pytest", *options]
        status = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | environment | {"JAXNB_FAILURES": str(report)},
            check=False,
        ).returncode
        found = json.loads(report.read_text()) if report.exists() else []
    return status, [Failure(**each) for each in found]


def judge(status: int, failures: Sequence[Failure]) -> str:
    """Returns why a first pass has failed for good; empty if its failures are to be run again."""
    if status != 1:
        return f"pytest ended with exit status {status}"
    if not failures:
        return "pytest failed and named no test"
    if len(failures) > MOST:
        return f"{len(failures)} tests failed; more than {MOST} are not run again"
    return ""


def report(failures: Sequence[Failure]) -> list[str]:
    """Returns the last lines of a run whose failures were run again."""
    lines = []
    for each in failures:
        verdict = "unsteady" if each.is_unsteady else "FAILED"
        lines.append(f"{verdict}: {each.nodeid}")
        lines.append(f"    beside others: {each.message} (a thread woke {each.late_s:.1f} s late)")
        lines.append(f"    alone: {each.alone}")
        if each.alone == "passed" and not each.is_forgivable:
            lines.append("    never forgiven: wrong numbers, lost variables, an unexpected death")
    return lines


def main() -> int:
    """Runs both passes and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", dest="marks", default="", help="as pytest's -m")
    parser.add_argument("-n", dest="workers", default="2", help="files at a time")
    parser.add_argument("paths", nargs="*", default=["tests"])
    chosen = parser.parse_args()
    # Both passes name the same rows.
    seed = os.environ.get("SEED") or str(random.SystemRandom().randrange(10**6))
    environment = {"JAXNB_TEST_SEED": seed}
    first = ["-n", chosen.workers, "--dist", "loadfile", "--no-loadscope-reorder", "-q"]
    marks = ["-m", chosen.marks] if chosen.marks else []
    status, failures = run([*first, *marks, *chosen.paths], environment)
    print(f"the same rows again: SEED={seed} make test", flush=True)
    _write([])
    if status == 0:
        return 0
    if why := judge(status, failures):
        print(f"tests: {why}", flush=True)
        return status
    print(f"tests: {len(failures)} failed and are run once more, alone", flush=True)
    again = []
    for each in failures:
        alone, _ = run(["-n", "1", "-q", each.nodeid], environment)
        again.append(Failure(**asdict(each) | {"alone": "failed" if alone else "passed"}))
    _write([each for each in again if each.is_unsteady])
    print("\n".join(report(again)), flush=True)
    return 0 if all(each.is_unsteady for each in again) else 1


def _write(unsteady: Sequence[Failure]) -> None:
    UNSTEADY.write_text(json.dumps([asdict(each) for each in unsteady], indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
