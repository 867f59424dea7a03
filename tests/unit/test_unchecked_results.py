"""Results that may be unequal are digested when they are there, and nothing waits for them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from jaxnb.arrays.process_replicas import UncheckedResults
from jaxnb.lockstep.process_recorded import Entry, Known


class Result:
    """An array that is there when the test says so."""

    def __init__(self, name: str, *, is_there: bool = False) -> None:
        self.name, self.is_there, self.is_given_away = name, is_there, False
        self.sharding = SimpleNamespace(addressable_devices=(0,))

    def is_ready(self) -> bool:
        return self.is_there

    def is_deleted(self) -> bool:
        return self.is_given_away


class Process:
    """Digests of results as one process makes them: names and numbers of dispatches."""

    def __init__(self) -> None:
        self.digested: list[tuple[str, int]] = []
        self.results = UncheckedResults(lambda value: value, self._digest)
        self.number = 0

    def _digest(self, _: int, array: Any, axes: tuple[str, ...], dispatch: Any) -> None:
        self.digested.append((array.name, dispatch[1]))

    def dispatches(self, *results: Result, name: str = "step", axes: tuple[str, ...] = ()) -> None:
        self.number += 1
        known = Known(name, (0, 1), hash(name), axes=axes)
        self.results.made(Entry(self.number, known, 3, 0.0, 0, 0), results)


def test_results_are_digested_after_a_later_dispatch_though_nobody_holds_them_any_more() -> None:
    process = Process()
    first = [Result("w")]
    process.dispatches(*first, axes=("d",))
    process.dispatches(Result("loss"), name="loss")
    assert process.digested == []
    first.pop().is_there = True
    process.dispatches(Result("x"), name="loss")
    process.dispatches(Result("w"), axes=("d",))
    process.results.look()
    assert process.digested == [("w", 1)]  # of the first run only


def test_what_is_not_there_as_the_cell_ends_is_digested_as_the_next_one_begins() -> None:
    process = Process()
    late = Result("w")
    process.dispatches(late, axes=("d",))
    process.results.look()
    assert process.digested == []
    late.is_there = True
    process.results.begin()
    assert process.digested == [("w", 1)]
    process.results.begin()
    assert process.digested == [("w", 1)]


def test_whose_memory_is_given_away_is_followed_whenever_it_was_there() -> None:
    for was_there in (False, True):
        process = Process()
        held = Result("w1", is_there=was_there)
        process.dispatches(held, axes=("d",))
        process.dispatches(Result("loss", is_there=True), name="loss")
        for turn in range(2, 5):
            given, held = held, Result(f"w{turn}", is_there=True)
            given.is_given_away = True
            process.dispatches(held, axes=("d",))
        process.results.look()
        assert process.digested[-1:] == [("w4", 5)]  # the same one on all processes
        assert process.digested[:-1] == [("w1", 1)] * was_there


def test_of_programs_that_check_their_results_nothing_is_followed() -> None:
    process = Process()
    process.dispatches(Result("w", is_there=True))
    process.results.look()
    assert process.digested == []
