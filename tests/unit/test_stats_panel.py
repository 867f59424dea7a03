"""The panel of ``%spmd_stats --live``: when it stops, and what its lines show."""

from __future__ import annotations

import queue
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from jaxnb.display.card import Card
from jaxnb.display.text import spark
from jaxnb.errors import SessionBrokenError
from jaxnb.magics import looking as magic
from jaxnb.model.group import DeviceInfo
from jaxnb.profile import card_stats
from jaxnb.profile.statistics import SAMPLES, DeviceStats, StatsHistory, cpu_percent
from support.fixtures import PATIENT_SECONDS


def row(index: int = 0, **fields: Any) -> DeviceStats:
    made = DeviceStats(
        DeviceInfo(2048 * index, index, "cpu", "cpu"), "n", 100 + index, 1 << 20, None, None,
        "live_arrays", 3, 1 << 28, None, process_cpu_seconds=1.0, at_seconds=10.0,
    )  # fmt: skip
    return replace(made, **fields)


def test_processor_time_is_told_between_two_samples() -> None:
    first, later = row(), row(process_cpu_seconds=1.5, at_seconds=11.0)
    assert cpu_percent(first, later) == 50.0
    assert cpu_percent(first, first) is None
    assert cpu_percent(first, replace(later, pid=7)) is None  # it was replaced
    assert cpu_percent(first, replace(later, at_seconds=None)) is None


def test_lines_are_block_characters_with_gaps() -> None:
    assert spark([0.0, 4.0, None, 8.0, 99.0], 8.0) == "▁▅ ██"
    assert spark([0.0], 0.0) == "▁"


def test_a_history_keeps_the_last_minute() -> None:
    history = StatsHistory()
    for i in range(SAMPLES + 5):
        history.add([row(1, bytes_in_use=i), row(0)])
    first, second = history.tracks
    assert [track.last.device.process_index for track in (first, second)] == [0, 1]
    assert list(second.in_use) == list(range(5, SAMPLES + 5))


@pytest.mark.parametrize("gpu", [False, True])
def test_the_panel_is_as_wide_as_a_terminal(gpu: bool) -> None:
    history = StatsHistory()
    for i in range(SAMPLES):
        rows = [row(p, at_seconds=float(i), process_cpu_seconds=i * 1.0) for p in range(4)]
        if gpu:
            rows = [replace(r, utilization_percent=100.0, temperature_celsius=101) for r in rows]
        history.add([*rows[:3], replace(rows[3], note="process 3: killed by SIGKILL")])
    card = card_stats.live_stats_card(history, "Words.")
    assert max(map(len, card.text.splitlines())) <= 80
    assert "process 3: killed by SIGKILL" in card.text
    assert "process 3: killed by SIGKILL" in card.html
    assert card.html.count("; the last 16 s") == 4 * (3 if gpu else 2)


def test_only_so_many_devices_have_a_row() -> None:
    history = StatsHistory()
    history.add([row(p) for p in range(70)])
    assert "6 more devices not shown." in card_stats.live_stats_card(history, "").text


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


def ending(panel: magic.LivePanel, shown: queue.Queue[Card]) -> str:
    """Waits until the panel has ended, and returns its last card."""
    panel._thread.join(PATIENT_SECONDS)
    assert not panel.is_running
    *_, last = [shown.get_nowait() for _ in range(shown.qsize())]
    assert "ended" in last.text
    return last.text


def test_a_panel_ends_with_its_group(shown: queue.Queue[Card]) -> None:
    session = FakeSession()
    panel = magic.LivePanel(session, shown.put)
    assert "every second" in shown.get(timeout=PATIENT_SECONDS).text
    assert "every second" in shown.get(timeout=PATIENT_SECONDS).text
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
        assert "every second" in shown.get(timeout=PATIENT_SECONDS).text
        assert "every second" in shown.get(timeout=PATIENT_SECONDS).text

    now[0] = 60.0 * magic.IDLE_MINUTES  # a cell has run all the time
    look_twice()
    session.state, session.cells = "ready", 1
    now[0] *= 1.5
    look_twice()  # one has run since
    now[0] *= 2
    assert "no cell ran for 5 minutes. `%spmd_stats --live`" in ending(panel, shown)
