"""What an event costs the conductor of a large group."""

from __future__ import annotations

import sys

from jaxnb.lockstep.conductor import Conductor
from jaxnb.lockstep.messages import End, Word


def calls_of_a_cell(count: int) -> int:
    """Returns how many Python functions a cell calls whose processes come one after the other."""
    conductor, calls = Conductor(count), 0
    everyone = tuple(range(count))

    def count_calls(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count_calls)
    try:
        for process in everyone:
            conductor.begin(process, 1, everyone)
            granted = conductor.say(process, 1, "main", Word(everyone, b"step", b""))
        for process in everyone:
            conductor.leave(process, End())
    finally:
        sys.setprofile(before)
    assert len(granted) == count
    return calls


def test_an_event_costs_at_most_as_much_as_there_are_processes() -> None:
    assert calls_of_a_cell(80) < 5 * calls_of_a_cell(40)
