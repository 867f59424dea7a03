"""What Slurm says of a job: for its keeper."""

from __future__ import annotations

import asyncio
import re
import subprocess
from typing import Any

ENDED = {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL",
         "DEADLINE", "OUT_OF_MEMORY", "REVOKED", "COMPLETING"}  # fmt: skip
"""States in which nothing of a job runs on, or starts any more."""


INVALID = "Invalid job id"
"""What Slurm says of a job that it does not know, or not any more."""

ANSWER_SECONDS = 10.0
"""So long one of Slurm's programs may take."""

COMPLETING_TRIES, COMPLETING_SECONDS = 10, 0.15
"""Slurm does not say why a job ends as long as something of it does: so often it is asked again."""


async def job_state(job_id: str) -> dict[str, Any] | None:
    """Returns what Slurm says of a job: ``state``, ``reason``, ``seconds_left``, ``is_over``.

    None if it does not answer, which says nothing of the job.
    """
    status, said = await _said("squeue", "-h", "-j", job_id, "-o", "%T|%r|%L")
    state, _, rest = said.partition("|")
    if status and INVALID not in said:
        return None
    if state and state not in ENDED and not status:
        reason, _, left = rest.partition("|")
        return _state(state, reason, seconds_of(left))
    # Of a job that has ended squeue says no more than that, if anything.
    for _ in range(COMPLETING_TRIES):
        status, said = await _said("scontrol", "show", "job", "-o", job_id)
        if status:
            return _state("ENDED", is_over=True) if INVALID in said else None
        found = dict(re.findall(r"(\w+)=(\S*)", said))
        if found.get("JobState") != "COMPLETING":
            break
        await asyncio.sleep(COMPLETING_SECONDS)
    state = found.get("JobState", "ENDED")
    return _state(state, found.get("Reason", ""), is_over=state in ENDED)


def _state(
    state: str, reason: str = "", seconds_left: int | None = None, *, is_over: bool = False
) -> dict[str, Any]:
    reason = "" if reason == "None" else reason
    return {"state": state, "reason": reason, "seconds_left": seconds_left, "is_over": is_over}


async def silent_seconds() -> int | None:
    """Returns after how long Slurm takes a node that does not answer for down, if it says so."""
    _, said = await _said("scontrol", "show", "config")
    return silent_seconds_in(said)


def silent_seconds_in(config: str) -> int | None:
    """Returns the seconds that Slurm's configuration says; see :func:`silent_seconds`."""
    found = re.search(r"SlurmdTimeout\s*=\s*(\d+)", config)
    return int(found[1]) if found else None


async def _said(*words: str) -> tuple[int, str]:
    """Returns the exit status of a program, and what it has written; -1 if it takes too long."""
    process = await asyncio.create_subprocess_exec(
        *words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), ANSWER_SECONDS)
    except TimeoutError:
        process.kill()
        return -1, ""
    return process.returncode or 0, output.decode(errors="replace").strip()


def seconds_of(text: str) -> int | None:
    """Returns the seconds that ``1-02:03:04``, ``2:03:04`` or ``3:04`` mean; None of other text."""
    if not (found := re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)):
        return None
    days, hours, minutes, seconds = (int(each or 0) for each in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
