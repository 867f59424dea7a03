"""Displays wait for the lines before them, and what comes after waits for the displays."""

from __future__ import annotations

from jaxnb.cells.sinks import Ended, Held, HeldOutput
from jaxnb.model.cells import RichOutput, StreamChunk
from jaxnb.wire.messages import ClearOutput, Display


def display(process_index: int) -> Display:
    return Display(process_index, RichOutput({"text/plain": "x"}, {}))


def test_what_a_process_writes_after_a_display_waits_with_it() -> None:
    held = HeldOutput()
    assert not held.holds(0)
    events: list[Held] = [display(0), StreamChunk(0, "stdout", "b\n"), display(0), Ended(0)]
    for event in events:
        held.put(event)
    assert held.holds(0)
    assert not held.holds(1)
    assert list(held.ready(lambda index: True)) == []
    found: list[Held] = []

    def is_waiting(index: int) -> bool:
        return bool(found) and isinstance(found[-1], StreamChunk)  # its line has to come out

    for event in held.ready(is_waiting):
        found.append(event)  # noqa: PERF402  # what is ready depends on it
    assert found == events[:2]
    assert held.holds(0)
    assert list(held.ready(lambda index: False)) == events[2:]
    assert not held.holds(0)


def test_processes_wait_each_for_itself() -> None:
    held = HeldOutput()
    events: list[Held] = [display(1), ClearOutput(0, wait=True), display(0)]
    for event in events:
        held.put(event)
    assert list(held.ready(lambda index: index == 1)) == events[1:]
    assert list(held.ready(lambda index: False)) == events[:1]
