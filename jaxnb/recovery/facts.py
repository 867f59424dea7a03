"""Pure: what a saved state is of, and whether it fits a group."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jaxnb.errors import UsageError
from jaxnb.labels import paths_label, processes_label
from jaxnb.model.group import GroupInfo
from jaxnb.recovery.messages import Lost


@dataclass(frozen=True, slots=True)
class Facts:
    """What a saved state has to fit.

    Attributes:
        jax: The version of JAX.
        python: That of Python, without its last number.
        platform: Of the devices.
        num_processes: Size of the group.
        devices_per_process: Devices of each process.
    """

    jax: str
    python: str
    platform: str
    num_processes: int
    devices_per_process: int

    @property
    def size(self) -> tuple[int, int]:
        """Processes, and devices of each."""
        return self.num_processes, self.devices_per_process

    @property
    def num_devices(self) -> int:
        """Devices of the group."""
        return self.num_processes * self.devices_per_process

    @classmethod
    def of(cls, group: GroupInfo) -> Facts:
        """Returns those of a group."""
        python = ".".join(platform.python_version_tuple()[:2])
        devices = {len(process.devices) for process in group.processes}
        count = len(group.processes)
        return cls(group.jax_version, python, group.platform, count, max(devices))


def require_fit(path: Path, saved: Facts, now: Facts) -> tuple[str, ...]:
    """Returns what there is to say where it fits.

    Raises:
        UsageError: It does not fit.
    """
    for field, sentence in (
        ("python", "by Python {}; this is {}, which cannot read its functions' code"),
        ("platform", "on {} devices; these are {}"),
    ):
        before, after = getattr(saved, field), getattr(now, field)
        if before != after:
            raise UsageError(
                f"{path} was saved {sentence.format(before, after)}. Nothing was loaded. It fits a "
                f"group of `%spmd_start --platform {saved.platform}`, with Python {saved.python}."
            )
    if saved.jax == now.jax:
        return ()
    return (f"Saved with JAX {saved.jax}, loaded with {now.jax}.",)


def lost_here(lost: Iterable[Lost], before: int, now: int) -> list[Lost]:
    """Returns what processes have lost that take what others had packed.

    Args:
        lost: What those had not packed.
        before: How many there were.
        now: How many there are; further ones take what the first had.
    """
    found = []
    for each in lost:
        who = tuple(i for i in range(now) if (i if i < before else 0) in each.processes)
        if who:
            found.append(replace(each, processes=who))
    return found


def resized_notes(
    before: tuple[int, int], now: tuple[int, int], gone: str, differing: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Returns what there is to say of variables that come from a group of another size.

    Args:
        before: Its processes, and devices of each.
        now: Those of this group.
        gone: What becomes of what further processes had: ``"is not loaded"``.
        differing: The variables that differed by process; None if that is not known.
    """
    if before == now:
        return ()
    (had, each_had), (has, each_has) = before, now
    notes = [
        f"Arrays over several processes lie on {has} × {each_has} devices now, not on {had} × "
        f"{each_had}."
    ]
    if has == had or differing == []:
        return tuple(notes)
    others = processes_label(range(min(had, has), max(had, has)))
    if differing is not None:
        what = f"{paths_label(differing, what='part')} differed by process: those of"
        what += f" {others} are gone" if has < had else f" {others} are what process 0 had"
    elif has > had:
        what = f"Whatever else {others} {'holds' if has - had == 1 else 'hold'} is what process 0"
        what += " had"
    else:
        what = f"Whatever else {others} had {gone}"
    return (*notes, f"{what}.")
