"""A pull or push that is long in coming says whom it waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil
import pytest

from jaxnb.cells.sinks import StderrNotices
from jaxnb.session import Session, work
from jaxnb.wire import asking
from jaxnb.wire.asking import Channel

SLOW = """
class Slow:
    def __reduce__(self):
        if process_index == 1:
            {wait}
        return int, (7,)
slow = Slow()
"""


@pytest.fixture
def when_told(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], list[str]]:
    """Has something done each time that the user is told something; returns what that was."""

    def install(do: Callable[[], object]) -> list[str]:
        told: list[str] = []

        class Telling(StderrNotices):
            def notice(self, text: str) -> None:
                told.append(text)
                do()

        monkeypatch.setattr(work, "StderrNotices", Telling)
        return told

    monkeypatch.setattr(asking, "QUIET_SECONDS", 0.3)
    return install


def test_who_is_waited_for_is_told_once(session: Session, gate: Any, when_told: Any) -> None:
    session.run(SLOW.format(wait=gate.wait))
    told = when_told(gate.open)
    assert session.pull("slow") == 7
    (text,) = told
    assert text.startswith("waits for process 1: no answer for 0.3 s")
    assert "Interrupt ends the wait" in text


def test_a_push_that_cannot_be_undone_offers_no_interrupt(
    session: Session, monkeypatch: pytest.MonkeyPatch, when_told: Any
) -> None:
    late = psutil.Process(session.processes[1].pid)
    told = when_told(late.resume)
    ask = Channel.ask

    def ask_one_that_is_late(self: Channel, requests: Any, *more: Any) -> Any:
        if ".bind" in str(requests[0]):
            late.suspend()
        return ask(self, requests, *more)

    monkeypatch.setattr(Channel, "ask", ask_one_that_is_late)
    session.push(x="bound")
    assert session.run("x").value == "bound"
    (text,) = told
    assert text.startswith("waits for process 1")
    assert "It can no longer be undone" in text
