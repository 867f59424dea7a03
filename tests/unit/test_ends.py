"""Which computation has failed on some processes only, so that others wait for ever."""

from __future__ import annotations

import pytest

from jaxnb.lockstep.ends import Begun, Ends, Key, half_made


def begun(number: int, processes: tuple[int, ...] = (0, 1, 2), cell: int = 4) -> Begun:
    return Begun(Key(cell * 11, processes, number), f"jit(f{number})", cell, number + 1)


ONE, TWO, THREE = map(begun, (1, 2, 3))
EARLIER = begun(9, cell=3)
OTHERS = begun(1, (0, 1))


@pytest.mark.parametrize(
    ("ends", "failed", "pending", "waits_in"),
    [
        ({0: Ends((ONE,)), 1: Ends((), (ONE,)), 2: Ends()}, [0], [1], ONE),
        ({0: Ends((ONE,)), 1: Ends((), (ONE, TWO)), 2: Ends((ONE,))}, [0, 2], [1], ONE),
        ({0: Ends((ONE,), (TWO,)), 1: Ends((), (ONE, TWO))}, [0], [1], ONE),
        # What came after it on 0 has met it on 1: one is left over there.
        ({0: Ends((ONE,)), 1: Ends((), (TWO,)), 2: Ends((), (TWO, THREE))}, [0], [1, 2], TWO),
        ({0: Ends((EARLIER,)), 1: Ends((), (ONE,))}, [0], [1], ONE),
        ({0: Ends((), (ONE,)), 1: Ends((EARLIER, ONE))}, [1], [0], ONE),
    ],
)
def test_others_wait_in_it_or_in_what_comes_later(
    ends: dict[int, Ends], failed: list[int], pending: list[int], waits_in: Begun
) -> None:
    found = half_made(ends)
    assert found is not None
    assert (found.failed, found.pending, found.waits_in) == (failed, pending, waits_in)
    assert found.what == (EARLIER if any(EARLIER in each.failed for each in ends.values()) else ONE)


@pytest.mark.parametrize(
    "ends",
    [
        {},
        {0: Ends(), 1: Ends()},
        {0: Ends((ONE,)), 1: Ends((ONE,)), 2: Ends((ONE,))},  # on all
        {0: Ends((ONE,)), 1: Ends()},  # after the processes had met in it
        {0: Ends((ONE,), (TWO,)), 1: Ends((), (TWO,))},  # and go on
        {0: Ends((TWO,)), 1: Ends((), (ONE,))},  # 1 is late
        {0: Ends((OTHERS,)), 1: Ends((OTHERS,), (ONE,)), 2: Ends((), (ONE,))},
        {0: Ends((), (ONE,)), 1: Ends((), (ONE,))},  # slow
    ],
)
def test_nothing_waits_for_ever_where_all_have_met(ends: dict[int, Ends]) -> None:
    assert half_made(ends) is None


def test_it_is_said_where_it_failed_and_what_others_wait_in() -> None:
    there = half_made({0: Ends((ONE,)), 1: Ends((), (ONE,)), 2: Ends((), (ONE,))})
    assert str(there) == (
        "Process 0 failed in `jit(f1)` at line 2 of cell [4], which processes 1-2 had begun, too, "
        "and wait in: there it never ends"
    )
    later = str(half_made({0: Ends(), 1: Ends((EARLIER,)), 2: Ends((), (ONE,))}))
    assert later.startswith("Process 1 failed in `jit(f9)` at line 10 of cell [3], and process 2")
    assert "may be wrong" in later
    assert later.endswith("Process 2 waits in `jit(f1)` at line 2 of cell [4] for ever")
