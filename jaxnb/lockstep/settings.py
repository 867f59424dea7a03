"""Settings that differ between processes, and whether a group can be checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxnb.labels import processes_label
from jaxnb.model.cells import CellReply
from jaxnb.model.group import ProcessReport, Settings
from jaxnb.model.insight import Pitfall
from jaxnb.model.scripts import in_notebook, the_cell

_COUNT = "--xla_force_host_platform_device_count"


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting that is not equal on all processes.

    Attributes:
        name: ``"jax_enable_x64"``.
        values: Each value with the processes that have it, that of most first.
    """

    name: str
    values: tuple[tuple[str, tuple[int, ...]], ...]

    def __str__(self) -> str:
        sides = (f"{value or 'empty'} on {processes_label(who)}" for value, who in self.values)
        return f"`{self.name}` is {', '.join(sides)}"

    @property
    def mend(self) -> str:
        """What to type so that it is equal: the value of most."""
        value = self.values[0][0]
        if self.name.isupper() or self.name.startswith("version of "):
            return "Start the processes with the same environment and the same packages."
        literal = value if _is_literal(value) else repr(value)
        return in_notebook(f"Type `%spmd jax.config.update({self.name!r}, {literal})`.")


class KnownSettings:
    """What the notebook knows of the processes' settings: as they were after their last cells."""

    def __init__(self) -> None:
        self._start: dict[int, Settings] = {}
        self._changes: dict[int, Settings] = {}
        self._differ_at_start: list[Difference] = []

    def joined(self, reports: Iterable[ProcessReport]) -> None:
        """Takes what the processes of a new group report."""
        self._start, self._changes = {r.process_index: r.settings for r in reports}, {}
        self._differ_at_start = differences({i: dict(each) for i, each in self._start.items()})

    def replied(self, replies: Mapping[int, CellReply], silent: Iterable[int]) -> None:
        """Takes what processes have answered to a cell; of those that have not nothing is new."""
        gone = set(silent)
        self._changes |= {i: each.settings for i, each in replies.items() if i not in gone}

    def differences(self) -> list[Difference]:
        """Returns the settings that differ, as far as that is known."""
        start, changes = self._start, self._changes
        if not any(changes.values()):
            return self._differ_at_start
        return differences({i: dict((*start[i], *changes.get(i, ()))) for i in start})

    def pitfalls(self) -> tuple[Pitfall, ...]:
        """Returns what there is to say of settings that differ, or came too late."""
        flags = [dict(each).get("XLA_FLAGS", "") for each in self._changes.values()]
        if not any(_COUNT in each for each in flags):
            return as_pitfalls(self.differences())
        stop = in_notebook("`%spmd_stop`, then `%spmd_start --devices-per-process N`")
        advice = f"The number of devices: {stop or '`jaxnb run --devices-per-process N`'}."
        said = "JAX has read `XLA_FLAGS` as the processes started: a cell changes nothing by it."
        return (Pitfall("settings", said, advice, cause=_COUNT),)


def differences(by_process: Mapping[int, Mapping[str, str]]) -> list[Difference]:
    """Returns the settings that differ.

    Args:
        by_process: Process index to its settings. What one of them does not know is not compared.
    """
    found = []
    for name in dict.fromkeys(name for values in by_process.values() for name in values):
        groups: dict[str, list[int]] = {}
        for index, values in sorted(by_process.items()):
            if name in values:
                groups.setdefault(values[name], []).append(index)
        if len(groups) > 1:
            sides = sorted(groups.items(), key=lambda side: (-len(side[1]), side[1]))
            found.append(Difference(name, tuple((v, tuple(who)) for v, who in sides)))
    return found


def as_pitfalls(found: Iterable[Difference]) -> tuple[Pitfall, ...]:
    """Returns differences as what a cell tells of: once for the same values."""
    return tuple(Pitfall("settings", f"{each}.", each.mend, cause=str(each)) for each in found)


def refusal(found: Iterable[Difference], name: str) -> str:
    """Returns the message for a computation that is another program where settings differ.

    It is the same on all processes that refuse it, so that it is shown once.

    Args:
        found: The settings.
        name: The computation that was not dispatched.
    """
    found = list(found)
    advice = in_notebook(" Variables are kept.")
    advice += "".join(f" {mend}" for mend in dict.fromkeys(each.mend for each in found) if mend)
    then = advice and f"{advice} Then run {the_cell()} again."
    return (
        f"Settings differ between processes: {'; '.join(map(str, found))}. So {name} is a "
        "different program on some of them, and was not dispatched: its collectives would not "
        f"match.{then or ' Set them alike on all processes.'}"
    )


def _is_literal(value: str) -> bool:
    return value in ("True", "False", "None") or value.replace(".", "", 1).lstrip("-").isdigit()


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
            kept = tuple(
                (d.number, d.name, d.fingerprint, d.arguments, d.results, d.processes)
                for d in report.trial
            )
            told.setdefault(kept, []).append(report.process_index)
    if len(told) < 2:
        return list(reports)
    sides = " ≠ ".join(processes_label(who) for who in told.values())
    why = f"the first sum over all processes was recorded differently, {sides}"
    return [replace(each, unrecorded=each.unrecorded or why) for each in reports]


def why_unrecorded(reports: Sequence[ProcessReport]) -> str:
    """Returns why a group's dispatches cannot be compared; empty if they can."""
    groups: dict[str, list[int]] = {}
    for each in reports:
        if each.unrecorded:
            groups.setdefault(each.unrecorded, []).append(each.process_index)
    return "; ".join(
        why if len(who) == len(reports) else f"{processes_label(who)}: {why}"
        for why, who in groups.items()
    )


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


def why_not_checked(reports: Sequence[ProcessReport], advice: str) -> str:
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
