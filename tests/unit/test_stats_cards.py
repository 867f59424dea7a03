"""The card of statistics, and what a footer says of memory."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from jaxnb.cells.card_cell import memory_text
from jaxnb.display.card import Card
from jaxnb.model.cells import CellMemory
from jaxnb.model.group import DeviceInfo
from jaxnb.profile import card_stats
from jaxnb.profile.statistics import DeviceStats, LargeArray

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
    rows[3] = replace(
        rows[3], largest=(array("half", first=2), array(None, first=3), *rows[3].largest)
    )
    card = card_stats.stats_card(rows)
    assert row_of(card, "state") == "state['opt'][0] float32[512, 512] 1.00 MiB each device"
    assert row_of(card, "alone") == "alone float32[512, 512] 3.00 MiB device 0"
    assert row_of(card, "no name") == "(no name) float32[512, 512] 2.00 MiB device 1"
    assert row_of(card, "half") == "half float32[512, 512] 1.00 MiB process 1"
    assert row_of(card, "not found") == "(name not found) float32[512, 512] 1.00 MiB device 3"
    assert card.text.index("alone") < card.text.index("no name") < card.text.index("half")
    assert max(map(len, card.text.splitlines())) <= 80
    assert ">alone</code>" in card.html
    assert "no name</code>" not in card.html


def test_where_an_array_is_its_sharding_says() -> None:
    """Each process tells other ones of many that are equally large."""
    rows = [
        replace(row, largest=tuple(array(f"x{i}{k}") for k in range(5)))
        for i, row in enumerate(stats())
    ]
    assert row_of(card_stats.stats_card(rows), "x00 ").endswith("each device")
    rows[3] = replace(rows[3], largest=(array("mine", first=2, last=2), array("", 2 * MIB)))
    rows[2] = replace(rows[2], largest=(array("mine", first=3, last=3), array("", 2 * MIB)))
    assert row_of(card_stats.stats_card(rows), "mine ").endswith("process 1")
    gone = [replace(r, source="none", largest=(), note="process 1: killed") for r in rows[2:]]
    card = card_stats.stats_card([*rows[:2], *gone])
    assert row_of(card, "x00 ").endswith("process 0")


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
    assert row_of(card, " 64 B ") == "2 4 64 B – – 1 128 MiB / 256 MiB"


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
        ([(memory(64 * MIB),) * 2], "+64.0 MiB per device"),
        ([(memory(64 * MIB),)], "+64.0 MiB"),
        ([(memory(-MIB, before=MIB),)] * 2, "−1.00 MiB per device"),
        ([(memory(MIB),), ()], "up to +1.00 MiB per device"),
        ([(memory(-MIB, before=MIB),), ()], "down to −1.00 MiB per device"),
        ([(memory(MIB),), (memory(2 * MIB),)], "+1.00 MiB to +2.00 MiB per device"),
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
