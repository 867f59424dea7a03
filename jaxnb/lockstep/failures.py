"""Pure: computations that all had agreed on, and that have failed on some processes only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jaxnb.labels import capitalized, processes_label
from jaxnb.lockstep.messages import Processes


class Failures(NamedTuple):
    """What has failed on a process of what spans the same processes.

    Attributes:
        keys: A number for each, the same on all processes.
        last: The last of these, in words.
    """

    keys: frozenset[int] = frozenset()
    last: str = ""

    @property
    def number(self) -> int:
        """A number for all of them."""
        return sum(self.keys)

    def with_one(self, key: int, text: str) -> Failures:
        """Returns these and one, unless it is one of these.

        Args:
            key: Its number.
            text: It, in words.
        """
        return self if key in self.keys else Failures(self.keys | {key}, text)


NONE = Failures()


class Apart(NamedTuple):
    """Processes of which not the same has failed.

    Attributes:
        what: What has failed last, in words.
        failed: Where.
        others: Where that has not.
    """

    what: str
    failed: Sequence[int]
    others: Sequence[int]

    def __str__(self) -> str:
        others, wait = processes_label(self.others), "waits" if len(self.others) == 1 else "wait"
        return (
            f"{capitalized(processes_label(self.failed))} failed in {self.what}, which {others} "
            f"had begun, too: if they were to meet in it after that, {others} {wait} for ever"
        )


def apart(told: Mapping[int, Mapping[Processes, Failures]]) -> Apart | None:
    """Returns the processes of which not the same has failed; None if there are none.

    Args:
        told: What has failed on each process, by the processes that it spans.
    """
    for processes in sorted({each for its in told.values() for each in its}):
        here = {i: told[i].get(processes, NONE) for i in processes if i in told}
        if len({each.keys for each in here.values()}) > 1:
            most = max(here.values(), key=lambda each: len(each.keys))
            failed = [i for i, each in here.items() if each.keys == most.keys]
            return Apart(most.last, failed, [i for i in here if i not in failed])
    return None
