"""Statistics: the card, the live panel, what a footer says of memory, and NVML."""

from __future__ import annotations

import queue
import sys
from dataclasses import dataclass, field, replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from jaxnb.cells.card_cell import memory_text
from jaxnb.display.card import Card
from jaxnb.errors import SessionBrokenError
from jaxnb.magics import looking as magic
from jaxnb.model.cells import CellMemory
from jaxnb.model.group import DeviceInfo
from jaxnb.profile import card_stats
from jaxnb.profile.process_stats import INSTALL, Gpus, Reading
from jaxnb.profile.statistics import DeviceStats, LargeArray
from support.fixtures import PATIENT_SECONDS

MIB = 1 << 20


def stats(count: int = 4, **fields: Any) -> list[DeviceStats]:
    """Statistics of processes with 2 devices each."""
    made = [
        DeviceStats(
            DeviceInfo(i, i // 2, "gpu", "NVIDIA H100"), "n", 1, 5 << 30, 6 << 30, 80 << 30,
            "memory_stats", 12, 1 << 30, 300 << 20,
        )
        for i in range(count)
    ]  # fmt: skip
    return [replace(each, **fields) for each in made]


def array(
    name: str | None = "x", nbytes: int = MIB, *, first: int = 0, last: int = 3
) -> LargeArray:
    return LargeArray(name, nbytes, (512, 512), "float32", ((first, last),))


def row_of(card: Card, fragment: str) -> str:
    (line,) = [line for line in card.text.splitlines() if fragment in line]
    return " ".join(line.split())


def test_the_largest_arrays_are_told_once_with_who_holds_them() -> None:
    rows = stats(largest=(array("state['opt'][0]"),))
    rows[0] = replace(rows[0], largest=(array("alone", 3 * MIB, last=0), *rows[0].largest))
    rows[1] = replace(rows[1], largest=(array("", 2 * MIB, first=1, last=1), *rows[1].largest))
    rows[2] = replace(rows[2], largest=(array("half", first=2), *rows[2].largest))
    unnamed = array(None, first=3)
    rows[3] = replace(rows[3], largest=(array("half", first=2), unnamed, *rows[3].largest))
    card = card_stats.stats_card(rows)
    assert row_of(card, "state") == "state['opt'][0] float32[512, 512] 1.00 MiB each device"
    assert row_of(card, "alone").endswith("3.00 MiB device 0")
    assert row_of(card, "(no name)").endswith("2.00 MiB device 1")
    assert row_of(card, "half").endswith("1.00 MiB process 1")
    assert row_of(card, "(name not found)").endswith("1.00 MiB device 3")
    assert card.text.index("alone") < card.text.index("no name") < card.text.index("half")
    assert max(map(len, card.text.splitlines())) <= 80
    assert ">alone</code>" in card.html
    assert "no name</code>" not in card.html


def test_load_and_warmth_have_columns_where_they_are_known() -> None:
    card = card_stats.stats_card(stats(utilization_percent=97.2, temperature_celsius=61))
    assert row_of(card, "GPU °C").endswith("PSS / RSS GPU °C")
    assert card.text.count("97 % 61") == 4
    assert max(map(len, card.text.splitlines())) <= 80
    note = "NVML?"
    card = card_stats.stats_card(stats(gpu_note=note))
    assert card.text.count(note) == card.html.count(note) == 1
    assert "°C" not in card.text


def test_a_gpu_process_stands_beside_a_cpu_one_and_a_dead_one() -> None:
    rows = stats(5, utilization_percent=50.0, temperature_celsius=40)
    cpu = DeviceInfo(4, 2, "cpu", "cpu")
    rows[4] = DeviceStats(cpu, "n", 9, 64, None, None, "live_arrays", 1, 2**28, 2**27)
    rows[2:4] = [
        replace(r, bytes_in_use=None, peak_bytes=None, limit_bytes=None, source="none",
                process_rss_bytes=None, process_pss_bytes=None, utilization_percent=None,
                temperature_celsius=None, note="process 1: killed by SIGKILL")
        for r in rows[2:4]
    ]  # fmt: skip
    card = card_stats.stats_card(rows)
    assert "(NVIDIA H100, cpu)" in card.text
    assert "memory_stats() says" in card.text
    assert "this backend has no" in card.text
    assert card.text.count("killed by SIGKILL") == card.html.count("killed by SIGKILL") == 1
    assert row_of(card, " 64 B ") == "2 4 64 B 1 128 MiB / 256 MiB"


def result(*processes: tuple[CellMemory, ...]) -> Any:
    return SimpleNamespace(
        per_process={i: SimpleNamespace(memory=m) for i, m in enumerate(processes)}
    )


def memory(change: int, peak: int | None = None, of: Any = "device", before: int = 0) -> CellMemory:
    return CellMemory(0, before, before + change, peak, of)


@pytest.mark.parametrize(
    ("processes", "text"),
    [
        ([(), ()], ""),
        ([(memory(64 * MIB, 128 * MIB),)] * 2, "+64.0 MiB per device, peak 128 MiB"),
        ([(memory(64 * MIB),)], "+64.0 MiB"),
        ([(memory(MIB),), ()], "up to +1.00 MiB per device"),
        ([(memory(10 * 1024),), (memory(10 * 1024 + 4),)], "+10.0 KiB per device"),
        ([(memory(-MIB, before=MIB),), (memory(MIB),)], "−1.00 MiB to +1.00 MiB per device"),
        ([(memory(8),)] * 2, ""),  # the result has it
        ([(memory(0, 512 * MIB),)] * 2, "peak 512 MiB"),
        ([(memory(0, 2**30, "process"),), (memory(0, 2**29, "process"),)], "process peak 1.00 GiB"),
        ([(memory(MIB, 2**30, "process"),)], "+1.00 MiB, process peak 1.00 GiB"),
    ],
)
def test_a_footer_says_what_a_cell_changed(processes: list[Any], text: str) -> None:
    assert memory_text(result(*processes)) == text


# ------------------------------------------------------------------ the panel of %spmd_stats --live


def row(index: int = 0, **fields: Any) -> DeviceStats:
    made = DeviceStats(
        DeviceInfo(2048 * index, index, "cpu", "cpu"), "n", 100 + index, 1 << 20, None, None,
        "live_arrays", 3, 1 << 28, None, process_cpu_seconds=1.0, at_seconds=10.0,
    )  # fmt: skip
    return replace(made, **fields)


def test_the_panel_is_as_wide_as_a_terminal() -> None:
    gpu = {"utilization_percent": 100.0, "temperature_celsius": 101}
    rows = [row(p, process_cpu_seconds=90.0, **gpu) for p in range(4)]
    rows[3] = replace(rows[3], note="process 3: killed by SIGKILL")
    card = card_stats.stats_card(rows, "Words.", at="12:00:00")
    assert max(map(len, card.text.splitlines())) <= 80
    assert card.text.splitlines()[0].endswith(" in use · at 12:00:00")
    assert card.text.count("90.0 s") == 4
    for said in (card.text, card.html):
        assert "process 3: killed by SIGKILL" in said


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


@pytest.mark.parametrize("change", [{"state": "closed"}, {"generation": 1}])
def test_a_panel_ends_with_its_group(shown: queue.Queue[Card], change: dict[str, Any]) -> None:
    session = FakeSession()
    panel = magic.LivePanel(session, shown.put)
    assert "every second" in words(shown.get(timeout=PATIENT_SECONDS))
    vars(session).update(change)
    said = ending(panel, shown)
    assert "The group was stopped or restarted. `%spmd_stats --live`" in said
    assert all(session.asked)


def test_a_panel_ends_with_what_the_session_says(shown: queue.Queue[Card]) -> None:
    session = FakeSession(error=SessionBrokenError("It is being restarted."))
    assert "It is being restarted." in ending(magic.LivePanel(session, shown.put), shown)


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


# ---------------------------------------------------------------------- NVML


class NVMLError(Exception):
    pass


class FakeNvml(ModuleType):
    """NVML of a host with two GPUs, and a slice of one."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.begun = 0

    def nvmlInit(self) -> None:
        self.begun += 1

    def nvmlDeviceGetHandleByPciBusId(self, bus_id: str) -> str:
        if bus_id not in ("0000:17:00.0", "0000:65:00.0"):
            raise NVMLError("Not Found")
        return bus_id

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        if handle.startswith("MIG-"):
            raise NVMLError("Not Supported")
        return SimpleNamespace(gpu=17 if ":17:" in handle else 65)

    def nvmlDeviceGetTemperature(self, handle: str, which: int) -> int:
        if handle.startswith("MIG-"):
            raise NVMLError("Not Supported")
        return 40


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def bus_of(*buses: str) -> Any:
    return lambda ordinal: buses[ordinal]


def test_gpus_are_told_by_their_place_on_the_bus(nvml: FakeNvml) -> None:
    """CUDA's first GPU need not be NVML's first."""
    gpus = Gpus(bus_of("0000:65:00.0", "0000:17:00.0"), {"CUDA_VISIBLE_DEVICES": "1,0"})
    assert [gpus.reading(i) for i in (0, 1)] == [Reading(65.0, 40), Reading(17.0, 40)]
    assert gpus.reading(0) == Reading(65.0, 40)
    assert nvml.begun == 1


def test_a_slice_has_no_figures_of_its_own(nvml: FakeNvml) -> None:
    gpus = Gpus(bus_of("0000:17:00.0"), {"CUDA_VISIBLE_DEVICES": "MIG-1234"})
    assert gpus.reading(0) == Reading(None, None, "NVML says Not Supported.")


def test_who_is_not_known_is_not_guessed(nvml: FakeNvml) -> None:
    gpus = Gpus(lambda ordinal: None, {})
    assert "does not say which" in gpus.reading(0).note
    gpus = Gpus(bus_of("0000:99:00.0"), {})
    assert gpus.reading(0).note == "NVML says Not Found."


def test_without_nvml_the_note_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Gpus(bus_of("x"), {}).reading(0) == Reading(None, None, INSTALL)
    assert "pip install nvidia-ml-py" in INSTALL
