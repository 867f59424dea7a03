"""The state of a group and its deaths, whatever comes in between."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from jaxnb.launch.deaths import Death
from jaxnb.session.lifecycle import Lifecycle, Phase


def death(index: int, role: str = "engine") -> Death:
    return Death(role, index, 1000 + index, -9, "")


def in_phase(phase: Phase) -> Lifecycle:
    found = Lifecycle()
    if phase is Phase.STOPPED:
        found.fail_start()
    elif phase in (Phase.CLOSING, Phase.CLOSED):
        found.begin_close()
        if phase is Phase.CLOSED:
            found.finish_close()
    elif phase is not Phase.STARTING:
        found.finish_start()
        if phase is Phase.BROKEN:
            found.mark_broken()
        elif phase is Phase.COMPUTING:
            found.mark_computing()
    assert found.phase is phase
    return found


ALL = list(Phase)
STEPS: dict[str, tuple[Callable[[Lifecycle], object], list[Phase | None]]] = {
    # To what each leads, from STARTING, READY, BROKEN, COMPUTING, STOPPED, CLOSING, CLOSED; None:
    # no change.
    "death": (
        lambda each: each.note_death(death(1)),
        [None, Phase.BROKEN, None, Phase.BROKEN, None, None, None],
    ),
    "out of step": (
        Lifecycle.mark_broken,
        [None, Phase.BROKEN, None, Phase.BROKEN, None, None, None],
    ),
    "computes on": (Lifecycle.mark_computing, [None, Phase.COMPUTING, *[None] * 5]),
    "has computed": (Lifecycle.note_computed, [*[None] * 3, Phase.READY, *[None] * 3]),
    "restart": (Lifecycle.begin_start, [None, *[Phase.STARTING] * 4, None, None]),
    "start fails": (Lifecycle.fail_start, [Phase.STOPPED, *[None] * 6]),
    "started": (Lifecycle.finish_start, [Phase.READY, *[None] * 6]),
    "close": (Lifecycle.begin_close, [*[Phase.CLOSING] * 5, None, None]),
    "closed": (Lifecycle.finish_close, [*[None] * 5, Phase.CLOSED, None]),
}


@pytest.mark.parametrize("step", STEPS)
def test_what_each_step_leads_to(step: str) -> None:
    do, leads_to = STEPS[step]
    for phase, after in zip(ALL, leads_to, strict=True):
        lifecycle = in_phase(phase)
        do(lifecycle)
        assert lifecycle.phase is (after or phase), phase


def test_no_group_is_ready_over_a_fresh_death() -> None:
    starting = Lifecycle()
    starting.note_death(death(2))
    assert not starting.finish_start()
    assert starting.state == "broken"


def test_deaths_of_a_group_that_was_restarted_are_forgotten() -> None:
    lifecycle = in_phase(Phase.READY)
    lifecycle.note_death(death(1))
    assert lifecycle.begin_start()
    lifecycle.note_stopped()
    assert lifecycle.finish_start()
    assert lifecycle.deaths == ()


def test_a_group_that_is_closed_stays_so() -> None:
    lifecycle = in_phase(Phase.READY)
    assert lifecycle.is_open
    assert lifecycle.begin_close()
    assert not lifecycle.is_open
    assert not lifecycle.begin_start()
    assert lifecycle.begin_close()  # an interrupted one may be repeated
    lifecycle.finish_close()
    assert not lifecycle.begin_close()
    assert lifecycle.state == "closed"


def test_no_death_is_lost_among_threads() -> None:
    lifecycle, threads, each = in_phase(Phase.READY), 4, 300
    go = threading.Barrier(threads)

    def die(first: int) -> None:
        go.wait()
        for index in range(first, first + each):
            lifecycle.note_death(death(index))

    running = [threading.Thread(target=die, args=(i * each,)) for i in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert lifecycle.state == "broken"
    assert sorted(death.index for death in lifecycle.deaths) == list(range(threads * each))
