"""Runs the tests, two files at a time, and what fails once more, alone.

A test that fails again fails the run. One that passes alone is *unsteady*: the last lines report it
with both outcomes, and so does ``unsteady.json``. More than :data:`MOST` of them, or one that had
wrong numbers, lost variables or an unexpected death, fail the run too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNSTEADY = ROOT / "unsteady.json"

HUNG, NO_OUTCOME = 124, 70
"""Exit statuses of runs that did not come to pytest's own."""

MOST = 5
"""With more failures than these in the first pass, nothing is run again."""

NEVER_FORGIVEN = re.compile(
    r"WrongNumbersError|LostVariablesError|ProcessDiedError|SessionBrokenError|ArrayGoneError"
    r"|Arrays are not equal|Arrays are not almost equal|Not equal to tolerance"
    r"|\bassert -?[\d.]+ == -?[\d.]+|left behind|crashed|^not collected: "
)
"""What says that jaxnb, or the suite, was wrong, and not that a test came too early or too late."""

FIRST_SECONDS, ALONE_SECONDS = 3600.0, 900.0
"""A pass that takes longer hangs where pytest's own time-out does not reach: it is ended."""

SHOWN_CHARS = 400


@dataclass(frozen=True)
class Failure:
    """A test that failed in the first pass.

    Attributes:
        nodeid: Its name.
        message: What it raised, in one line.
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


@dataclass(frozen=True)
class Outcome:
    """What became of one run of pytest.

    Attributes:
        status: Its exit status.
        collected: How many tests were to run.
        ended: How many of them did.
        passed: How many passed.
        failures: Those that failed, and what else did: a worker, a file that is no test.
    """

    status: int
    collected: int = 0
    ended: int = 0
    passed: int = 0
    failures: tuple[Failure, ...] = ()


def run(options: Sequence[str], seconds: float) -> Outcome:
    """Runs pytest, and ends it with all its workers if it hangs."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outcome.json"
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options],
            cwd=ROOT,
            env=os.environ | {"JAXNB_OUTCOME": str(file)},
            start_new_session=True,
        )
        try:
            status = process.wait(seconds)
        except BaseException as error:
            # As Ctrl-C does: fixtures end their groups.
            os.killpg(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            print(f"tests: pytest hung and was ended after {seconds:.0f} s", flush=True)
            return Outcome(HUNG)
        if not file.exists():
            return Outcome(status or NO_OUTCOME)
        found = json.loads(file.read_text())
    failures = tuple(Failure(**each) for each in found.pop("failures"))
    return Outcome(status, **found, failures=failures)


def judge(outcome: Outcome) -> str:
    """Returns why a first pass has failed for good; empty if its failures are to be run again."""
    crashed = [f.nodeid for f in outcome.failures if "crashed" in f.message]
    uncollected = [f.nodeid for f in outcome.failures if f.message.startswith("not collected: ")]
    if outcome.status not in (0, 1):
        return f"pytest ended with exit status {outcome.status}"
    if uncollected:
        return f"not collected: {', '.join(uncollected)}"
    if crashed:
        return f"a worker crashed: {', '.join(crashed)}"
    if outcome.ended != outcome.collected:
        return f"{outcome.ended} of {outcome.collected} tests came to an end"
    if outcome.status and not outcome.failures:
        return "pytest failed and named no test"
    if len(outcome.failures) > MOST:
        return f"{len(outcome.failures)} tests failed; more than {MOST} are not run again"
    return ""


def report(failures: Sequence[Failure]) -> list[str]:
    """Returns the last lines of a run whose failures were run again."""
    lines = []
    for each in failures:
        verdict = "unsteady" if each.is_unsteady else "FAILED"
        lines.append(f"{verdict}: {each.nodeid}")
        message = each.message[:SHOWN_CHARS]
        lines.append(f"    beside others: {message} (a thread woke {each.late_s:.1f} s late)")
        lines.append(f"    alone: {each.alone}")
        if each.alone == "passed" and not each.is_forgivable:
            lines.append("    never forgiven: wrong numbers, lost variables, an unexpected death")
    return lines


def main() -> int:
    """Runs both passes and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", dest="marks", default="", help="as pytest's -m")
    counts = [str(n) for n in range(1, 65)]
    parser.add_argument(
        "-n", dest="workers", default="2", choices=counts, metavar="N", help="files"
    )
    parser.add_argument("--unsteady", type=Path, default=UNSTEADY, help="where to report them")
    parser.add_argument("paths", nargs="*", default=["tests"])
    chosen = parser.parse_args()
    # A worker that crashed is not replaced: what it had before it could be lost, or wait for ever.
    once = ["--dist=loadfile", "--no-loadscope-reorder", "--max-worker-restart=0", "-q"]
    marks = ["-m", chosen.marks] if chosen.marks else []
    _write(chosen.unsteady, [])
    options = ["-n", chosen.workers, "--durations=20", *once, *marks, *chosen.paths]
    outcome = run(options, FIRST_SECONDS)
    if why := judge(outcome):
        print(f"tests: {why}", flush=True)
        return outcome.status or 1
    if outcome.status == 0:
        return 0
    print(f"tests: {len(outcome.failures)} failed and are run once more, alone", flush=True)
    again = []
    for each in outcome.failures:
        alone = run(["-n", "1", *once, each.nodeid], ALONE_SECONDS)
        has_passed = alone.status == 0 and alone.passed == alone.collected == 1
        again.append(Failure(**asdict(each) | {"alone": "passed" if has_passed else "failed"}))
    _write(chosen.unsteady, [each for each in again if each.is_unsteady])
    print("\n".join(report(again)), flush=True)
    return 0 if all(each.is_unsteady for each in again) else 1


def _write(file: Path, unsteady: Sequence[Failure]) -> None:
    file.write_text(json.dumps([asdict(each) for each in unsteady], indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
