"""A pull or push that is long in coming says whom it waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jaxnb.cells.sinks import StderrNotices
from jaxnb.session import Session, work
from jaxnb.wire import asking

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
