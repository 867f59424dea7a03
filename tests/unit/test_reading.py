"""How long a recovery waits for an array that is not computed yet; times are passed in."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from jaxnb.recovery import process_recovering
from jaxnb.recovery.process_recovering import DEAD_SECONDS, PENDING_SECONDS, Reader


class Clock:
    """Time in which the process computes all the while: with all of a processor."""

    def __init__(self) -> None:
        self.now = 100.0
        self.monotonic = self.process_time = lambda: self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Device:
    def __init__(self, process_index: int) -> None:
        self.platform, self.process_index = "cpu", process_index


def spread(ready: list[bool], boxes: str = "") -> Any:
    """Returns an array over processes 0 and 1, whose computation has ended on some own devices.

    Args:
        ready: On which.
        boxes: What each has, by a letter: all the same by default.
    """
    own = [Device(0) for _ in ready]

    def part(device: Device, is_there: bool) -> Any:
        found = SimpleNamespace(
            is_ready=lambda: is_there, sharding=SimpleNamespace(device_set=[device])
        )
        found.block_until_ready = lambda: found
        return found

    places = dict(zip(own, boxes or "a" * len(own), strict=True))
    sharding = SimpleNamespace(
        device_set=[*own, Device(1)],
        addressable_devices_indices_map=lambda shape: places,
        spec=None,
    )
    parts = [part(*each) for each in zip(own, ready, strict=True)]
    return SimpleNamespace(is_ready=lambda: all(ready), sharding=sharding, shape=(), _arrays=parts)


def waited(monkeypatch: pytest.MonkeyPatch, *dead: int, is_given_up: bool = False) -> float:
    """Returns for how long an array over processes 0 and 1 is waited for that does not come."""
    clock = Clock()
    monkeypatch.setattr(process_recovering, "time", clock)
    array = spread([False])
    with pytest.raises(pickle.PicklingError, match="its computation had not ended"):
        Reader(frozenset(dead), is_given_up)(array)
    return clock.now - 100.0


@pytest.mark.parametrize(
    ("dead", "seconds"), [((), PENDING_SECONDS), ((2,), PENDING_SECONDS), ((1,), DEAD_SECONDS)]
)
def test_what_a_dead_process_took_part_in_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch, dead: tuple[int, ...], seconds: float
) -> None:
    assert waited(monkeypatch, *dead) == pytest.approx(seconds, abs=0.1)


def test_what_the_user_has_given_up_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    assert waited(monkeypatch, is_given_up=True) == pytest.approx(DEAD_SECONDS, abs=0.1)


@pytest.mark.parametrize(
    ("ready", "boxes", "taken"),
    [
        ([True, False], "aa", [0, 0]),
        ([False, True, True, False], "aabb", [1, 1, 2, 2]),
        ([True, False], "ab", None),
        ([False, False], "aa", None),
    ],
)
def test_a_device_on_which_it_ended_serves_for_those_on_which_it_did_not(
    monkeypatch: pytest.MonkeyPatch, ready: list[bool], boxes: str, taken: list[int] | None
) -> None:
    monkeypatch.setattr(process_recovering, "time", Clock())
    array = spread(ready, boxes)
    if taken is None:
        with pytest.raises(pickle.PicklingError, match="its computation had not ended"):
            Reader(frozenset())(array)
    else:
        assert Reader(frozenset())(array) == [array._arrays[i] for i in taken]
