"""Pure: why the processes of a running cell wait, as far as is known."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from jaxnb.model import AtWork, Whereabouts
from jaxnb.model.dispatches import Cause
from jaxnb.watch import locks_text

_TELLING: tuple[Cause, ...] = ("I/O", "lock")


def why_at_work(work: Collection[AtWork]) -> Cause:
    """Returns why those that do not wait keep the others waiting, in a word."""
    causes = {each.cause for each in work}
    return next((cause for cause in _TELLING if cause in causes), "slow")


def why_they_wait(
    found: Mapping[int, Whereabouts],
    silent: Collection[int],
    *,
    is_sure: bool,
) -> tuple[str, Cause | Literal[""]]:
    """Returns what is known of why processes wait, as sentences, and in a word.

    Args:
        found: Where those are that wait.
        silent: Who does not tell where it is.
        is_sure: They wait; else one is silent, or in a callback, and they may wait for that.
    """
    if not is_sure:
        return "", "slow" if silent else ""
    are_locked = [where.is_locked for where in found.values()]
    said = [locks_text(found)] if any(are_locked) else []
    if not all(are_locked):
        what = "" if said else " in different collectives"
        said.append(f"If they wait for each other{what} this never ends.")
    return " ".join(said), "lock" if any(are_locked) else ""
