"""Which rows of a table of tests the gate plays: others each time, but always all kinds.

``make test`` plays a sample, ``make test-all`` all rows. The seed is printed in pytest's header:
with the same ``JAXNB_TEST_SEED`` the same rows are played again.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

SEED = "JAXNB_TEST_SEED"
"""Set before the workers of pytest-xdist start: all of them must collect the same tests."""

Row = TypeVar("Row", bound=Hashable)


def seed() -> int:
    """Returns the seed of this run; 0 where none is set, as in a run without the hooks."""
    return int(os.environ.get(SEED) or 0)


def sampled(rows: Sequence[Row], keys: Callable[[Row], Iterable[Hashable]], seed: int) -> set[Row]:
    """Returns rows, chosen at random, that together have every key that any row has.

    Each time a row with most of the keys that are still missing is taken. A row without keys is
    never chosen.

    Args:
        rows: The rows of the table.
        keys: What a row shows: each has to be shown by a row that is chosen.
        seed: Of the choice, which is the same for the same seed.
    """
    shuffled = list(rows)
    random.Random(seed).shuffle(shuffled)
    keys_of = {row: set(keys(row)) for row in shuffled}
    missing = set().union(*keys_of.values())
    chosen: set[Row] = set()
    while missing:
        best = max(shuffled, key=lambda row: len(keys_of[row] & missing))  # of equals, the first
        chosen.add(best)
        missing -= keys_of[best]
    return chosen
