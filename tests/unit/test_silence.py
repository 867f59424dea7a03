"""What is said of a process that does not answer, before and after its time is up."""

from __future__ import annotations

import threading

import pytest

from jaxnb.launch.deaths import Death
from jaxnb.wire import asking
from jaxnb.wire.asking import Channel

DEATH = Death("engine", 2, 4711, -9, "")


@pytest.mark.parametrize(
    ("deaths", "stopped", "why"),
    [
        ((), "", ""),
        ((), "process 1 is stopped: `kill -CONT 7` lets it go on", "is stopped"),
        ((DEATH,), "", "results computed with process 2 may never arrive, as process 2 has died"),
        ((DEATH,), "process 1 is stopped: …", "is stopped"),
    ],
)
def test_who_is_silent_is_told_with_the_cause(
    monkeypatch: pytest.MonkeyPatch, deaths: tuple[Death, ...], stopped: str, why: str
) -> None:
    monkeypatch.setattr(asking, "QUIET_SECONDS", 0.0)
    told: list[str] = []
    channel = Channel(
        None,  # type: ignore[arg-type]  # nothing is asked
        lambda: deaths,
        {},
        4,
        threading.Event(),
        lambda indices, sig: None,
        lambda indices: None,
        told.append,
        dict,
        lambda indices: stopped,
    )
    channel._tell_who_is_quiet([1], 0.0)
    assert told[0].startswith("waits for process 1: no answer for 0 s. ")
    assert (why or "may take long.").lower() in told[0].lower()
    assert told[0].endswith("Interrupt ends the wait, and variables are kept.")
    channel.end()
    assert told[1:] == [""]  # it is taken away
    reason = channel._silent(1, 51.0).reason
    assert reason.startswith("gave no answer within 51 s")
    assert why in reason
