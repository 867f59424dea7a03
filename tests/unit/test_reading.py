"""How long a recovery waits for an array that is not computed yet; times are passed in."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from jaxnb.recovery import process_reading
from jaxnb.recovery.process_reading import DEAD_SECONDS, PENDING_SECONDS, Reader


class Clock:
    """Time in which the process computes all the while: with all of a processor."""

    def __init__(self) -> None:
        self.now = 100.0
        self.monotonic = self.process_time = lambda: self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def waited(monkeypatch: pytest.MonkeyPatch, *dead: int) -> float:
    """Returns for how long an array over processes 0 and 1 is waited for that does not come."""
    clock = Clock()
    monkeypatch.setattr(process_reading, "time", clock)
    devices = [SimpleNamespace(platform="cpu", process_index=i) for i in (0, 1)]
    array: Any = SimpleNamespace(
        is_ready=lambda: False, sharding=SimpleNamespace(device_set=devices)
    )
    with pytest.raises(pickle.PicklingError, match="its computation had not ended"):
        Reader(frozenset(dead))(array)
    return clock.now - 100.0


@pytest.mark.parametrize(
    ("dead", "seconds"), [((), PENDING_SECONDS), ((2,), PENDING_SECONDS), ((1,), DEAD_SECONDS)]
)
def test_what_a_dead_process_took_part_in_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch, dead: tuple[int, ...], seconds: float
) -> None:
    assert waited(monkeypatch, *dead) == pytest.approx(seconds, abs=0.1)
