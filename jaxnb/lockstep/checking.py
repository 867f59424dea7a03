"""Pure: what the start's trial of the recorder means for a group, in words too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jaxnb.labels import processes_label
from jaxnb.model.group import ProcessReport

LOST = (
    "Dispatches are neither recorded nor compared: processes that run different computations, a "
    "different order or different inputs silently get wrong numbers, and an interrupt always "
    "replaces the processes"
)


def judged(reports: Sequence[ProcessReport]) -> list[ProcessReport]:
    """Returns reports that say of each process whether it is recorded, by what all recorded.

    All have dispatched the same. Where their recordings of that are not equal they cannot be used
    for any comparison.
    """
    told: dict[object, list[int]] = {}
    for report in reports:
        if not report.unrecorded:
            kept = [
                (d.number, d.name, d.fingerprint, d.arguments, d.results, d.processes)
                for d in report.trial
            ]
            told.setdefault(tuple(kept), []).append(report.process_index)
    if len(told) < 2:
        return list(reports)
    sides = " ≠ ".join(processes_label(who) for who in told.values())
    why = f"the first sum over all processes was recorded differently, {sides}"
    return [replace(each, unrecorded=each.unrecorded or why) for each in reports]


def why_unrecorded(reports: Sequence[ProcessReport]) -> str:
    """Returns why a group's dispatches cannot be compared; empty if they can."""
    return _by_process({each.process_index: each.unrecorded for each in reports}, len(reports))


def notes(reports: Sequence[ProcessReport], check: str) -> tuple[str, ...]:
    """Returns what cannot be checked in a group, and what that means, as sentences.

    Args:
        reports: What its processes reported.
        check: What was asked for: where that is ``"off"`` it is no news.
    """
    if check == "off":
        return ()
    if why := why_unrecorded(reports):
        return (f"Checking is off with JAX {reports[0].jax_version}: {why}. {LOST}.",)
    sentences = dict.fromkeys(each for report in reports for each in report.reduced)
    return tuple(f"With JAX {reports[0].jax_version}: {each}" for each in sentences)


def refusal(reports: Sequence[ProcessReport], advice: str) -> str:
    """Returns why strict mode is not possible; empty if it is.

    Args:
        reports: What the processes reported.
        advice: What to type instead.
    """
    why = why_unrecorded(reports)
    version = reports[0].jax_version
    return f"Strict mode is not possible with JAX {version}: {why}. {LOST}. {advice}" if why else ""


TO_START = (
    "Start with `--check off` (in Python: `check='off'`) to go without checks, or install a JAX "
    "that jaxnb supports: `pip install 'jax>=0.10.2,<0.13'`."
)

TO_RUN = (
    "Nothing was run. Run it with `--check off` (in Python: `check='off'`) to go without checks."
)


def _by_process(told: dict[int, str], num_processes: int) -> str:
    groups: dict[str, list[int]] = {}
    for index, why in told.items():
        if why:
            groups.setdefault(why, []).append(index)
    return "; ".join(
        why if len(who) == num_processes else f"{processes_label(who)}: {why}"
        for why, who in groups.items()
    )
