"""Pure: computations that all had agreed on, and that have failed on some processes only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jaxnb.labels import capitalized, processes_label
from jaxnb.lockstep.messages import Processes

_MASK = (1 << 61) - 1


class Failures(NamedTuple):
    """What a process has failed to make of what spans the same processes.

    Attributes:
        number: Equal on processes that have failed to make the same, in whatever order.
        how_many: How many these are.
        last: The last of these, in words.
    """

    number: int = 0
    how_many: int = 0
    last: str = ""

    def with_one(self, key: int, text: str) -> Failures:
        """Returns these and one more.

        Args:
            key: Its number, the same on all processes.
            text: It, in words.
        """
        return Failures((self.number + key) & _MASK, self.how_many + 1, text)


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
        if len({each[:2] for each in here.values()}) > 1:
            most = max(here.values(), key=lambda each: each.how_many)
            failed = [i for i, each in here.items() if each[:2] == most[:2]]
            return Apart(most.last, failed, [i for i in here if i not in failed])
    return None
