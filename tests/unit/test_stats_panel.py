"""The panel of ``%spmd_stats --live``: when it stops, and what its lines show."""

from __future__ import annotations

import queue
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from jaxnb.display.card import Card
from jaxnb.errors import SessionBrokenError
from jaxnb.magics import looking as magic
from jaxnb.model.group import DeviceInfo
from jaxnb.profile import card_stats
from jaxnb.profile.statistics import DeviceStats
from support.fixtures import PATIENT_SECONDS


def row(index: int = 0, **fields: Any) -> DeviceStats:
    made = DeviceStats(
        DeviceInfo(2048 * index, index, "cpu", "cpu"), "n", 100 + index, 1 << 20, None, None,
        "live_arrays", 3, 1 << 28, None, process_cpu_seconds=1.0, at_seconds=10.0,
    )  # fmt: skip
    return replace(made, **fields)


@pytest.mark.parametrize("gpu", [False, True])
def test_the_panel_is_as_wide_as_a_terminal(gpu: bool) -> None:
    rows = [row(p, process_cpu_seconds=90.0) for p in range(4)]
    if gpu:
        rows = [replace(r, utilization_percent=100.0, temperature_celsius=101) for r in rows]
    rows[3] = replace(rows[3], note="process 3: killed by SIGKILL")
    card = card_stats.stats_card(rows, "Words.", at="12:00:00")
    assert max(map(len, card.text.splitlines())) <= 80
    assert card.text.splitlines()[0].endswith(" in use · at 12:00:00")
    assert card.text.count("90.0 s") == 4
    assert "process 3: killed by SIGKILL" in card.text
    assert "process 3: killed by SIGKILL" in card.html


@dataclass
class FakeSession:
    """A group whose state a test sets; ``asked`` has an entry for each look."""

    state: str = "ready"
    generation: int = 0
    cells: int = 0
    error: Exception | None = None
    asked: list[bool] = field(default_factory=list)

    @property
    def group(self) -> Any:
        return SimpleNamespace(cells_run=self.cells)

    def stats(self, *, brief: bool) -> list[DeviceStats]:
        self.asked.append(brief)
        if self.error is not None and len(self.asked) > 1:
            raise self.error
        return [row()]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> queue.Queue[Card]:
    monkeypatch.setattr(magic, "PERIOD_SECONDS", 0.001)
    return queue.Queue()


def words(card: Card) -> str:
    """Returns a card's text in one line: its notes are broken into several."""
    return " ".join(card.text.split())


def ending(panel: magic.LivePanel, shown: queue.Queue[Card]) -> str:
    """Waits until the panel has ended, and returns its last card."""
    panel._thread.join(PATIENT_SECONDS)
    assert not panel.is_running
    *_, last = [shown.get_nowait() for _ in range(shown.qsize())]
    assert "ended" in last.text
    return words(last)


def test_a_panel_ends_with_its_group(shown: queue.Queue[Card]) -> None:
    session = FakeSession()
    panel = magic.LivePanel(session, shown.put)
    assert "every second" in words(shown.get(timeout=PATIENT_SECONDS))
    assert "every second" in words(shown.get(timeout=PATIENT_SECONDS))
    session.state = "closed"
    assert "The group was stopped or restarted." in ending(panel, shown)
    assert all(session.asked)


def test_a_panel_ends_with_a_restart(shown: queue.Queue[Card]) -> None:
    session = FakeSession()
    panel = magic.LivePanel(session, shown.put)
    session.generation = 1
    assert "restarted. `%spmd_stats --live`" in ending(panel, shown)


def test_a_panel_ends_with_what_the_session_says(shown: queue.Queue[Card]) -> None:
    session = FakeSession(error=SessionBrokenError("It is being restarted."))
    assert "It is being restarted." in ending(magic.LivePanel(session, shown.put), shown)


def test_another_panel_takes_its_place(shown: queue.Queue[Card]) -> None:
    panel = magic.LivePanel(FakeSession(), shown.put)
    panel.stop("Goes on below.")
    assert "Goes on below." in ending(panel, shown)


def test_a_panel_ends_when_no_cell_runs(shown: queue.Queue[Card]) -> None:
    now = [0.0]
    session = FakeSession(state="busy")
    panel = magic.LivePanel(session, shown.put, clock=lambda: now[0])

    def look_twice() -> None:
        shown.queue.clear()
        assert "every second" in words(shown.get(timeout=PATIENT_SECONDS))
        assert "every second" in words(shown.get(timeout=PATIENT_SECONDS))

    now[0] = 60.0 * magic.IDLE_MINUTES  # a cell has run all the time
    look_twice()
    session.state, session.cells = "ready", 1
    now[0] *= 1.5
    look_twice()  # one has run since
    now[0] *= 2
    assert "no cell ran for 5 minutes. `%spmd_stats --live`" in ending(panel, shown)
