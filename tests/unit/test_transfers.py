"""Cards of what moves, of arrays and values that have come, and the progress of transfers."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jaxnb.arrays import card_transfer
from jaxnb.arrays.card_transfer import type_of
from jaxnb.arrays.gathered import ArrayKey, GatheredArray
from jaxnb.arrays.lost import PerProcess, Record
from jaxnb.display.card import Card, line_card
from jaxnb.magics.sinks import Place, TerminalPlace, TransferMeter
from jaxnb.model.arrays import ArrayInfo, MeshInfo, ShardInfo

MESH = MeshInfo(("x",), (2,), ("Auto",), (0, 8))


def info(**changes: Any) -> ArrayInfo:
    shards = (ShardInfo(0, 0, ((0, 2), (0, 2)), 0), ShardInfo(8, 1, ((2, 4), (0, 2)), 0))
    made = ArrayInfo(
        (4, 2), "float32", 32, "NamedSharding(…)", "P('x', None)", MESH, "device", False, False,
        shards, host_dtype="float32",
    )  # fmt: skip
    return replace(made, **changes)


class NoReader:
    """What must not be asked: a display fetches nothing."""

    generation = 0

    def read(self, wanted: Any) -> Any:
        raise AssertionError("something was fetched")


def gathered(index: Any = (), here: bool = False, **changes: Any) -> GatheredArray:
    described = info(**changes)
    array = GatheredArray(described, ArrayKey("h", 0, "x", "x", (0, 1), 0), NoReader())
    region = array.wanted().region[index]
    array = GatheredArray(described, ArrayKey("h", 0, "x", "x", (0, 1), 0), NoReader(), region)
    if here:
        whole = np.arange(8, dtype=np.float32).reshape(4, 2)
        array.keep(whole[index].copy())
    return array


def test_an_array_that_is_here_shows_its_values() -> None:
    card = card_transfer.gathered_card(gathered(here=True))
    assert card.text.splitlines() == [
        "float32[4, 2] · P('x', None) · mesh x 2 · 32 B, 16 B per device",
        "[[0., 1.],",
        " [2., 3.],",
        " [4., 5.],",
        " [6., 7.]]",
    ]
    assert "[6., 7.]]" in card.html
    assert "until used" not in card.html


def test_an_array_that_is_there_shows_its_corners() -> None:
    corner = tuple(((i, j), f"{i}{j}!") for i in range(4) for j in range(2))
    card = card_transfer.gathered_card(gathered(corner=corner))
    assert "31!" in card.text
    assert "31!" in card.html
    assert card.text.endswith("\n— data stay on the processes until used")
    without = card_transfer.gathered_card(gathered())
    assert len(without.text.splitlines()) == 2


def test_a_slice_says_what_it_is() -> None:
    card = card_transfer.gathered_card(gathered(np.s_[1:3, 0], here=True))
    assert card.text.splitlines()[0].startswith("x[1:3, 0], shape (2,), of float32[4, 2] · P('x'")
    assert card.text.splitlines()[-1] == "[2., 4.]"
    assert "x[1:3, 0], shape (2,), of" in card.html
    # Corners are of the whole array.
    corner = (((0, 0), "0!"),)
    there = card_transfer.gathered_card(gathered(np.s_[1:3, 0], corner=corner))
    assert "0!" not in there.text + there.html


def test_what_went_with_its_processes_is_said_to_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NoReader, "generation", 1)
    card = card_transfer.gathered_card(gathered())
    assert "its data are gone with the processes" in " ".join(card.text.split())
    assert "until used" not in card.html


class Param:
    """As flax wraps an array."""

    dtype, shape, sharding = "float32", (2,), None

    def __array__(self) -> np.ndarray:
        return np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (gathered(), "float32[4, 2]"),
        (np.zeros((2, 3)), "NumPy float64[2, 3]"),
        (Param(), "Param float32[2]"),
        (3, "int 3"),
        ("a" * 100, "str '" + "a" * 38 + "…"),
        ({"a": np.zeros(1), "b": [gathered()]}, "dict of 2 arrays"),
        ({"a": np.zeros(1), "b": SimpleNamespace(value=gathered())}, "dict of 2 arrays"),
        (SimpleNamespace(a=np.zeros(1), f=lambda: 1), "SimpleNamespace of 1 array"),
        (Record("Model", {"kernel": np.zeros(1), "n": 1}), "Model as a record of 1 array"),
        (PerProcess({0: 1, 1: 2}), "int by process"),
        (PerProcess({0: 1, 1: "a"}), "int or str by process"),
    ],
)
def test_what_a_value_is(value: Any, text: str) -> None:
    assert type_of(value) == text


def test_values_that_were_moved() -> None:
    rows = [card_transfer.moved("x", gathered(), "a note")]
    card = card_transfer.moved_card(rows, "pulled", 32 << 20, 0.5)
    assert card.text == (
        "x: float32[4, 2] · P('x', None) · 32 B · pulled · 0.50 s · 64.0 MiB/s\n  a note"
    )
    rows = [card_transfer.moved(name, np.zeros(2), "the same") for name in "ab"]
    lines = card_transfer.moved_card(rows, "pushed to 2 processes", 0, 0.01).text.splitlines()
    assert lines == [
        "2 values · 32 B · pushed to 2 processes · 10 ms",
        "  a  NumPy float64[2]    16 B",
        "  b  NumPy float64[2]    16 B",
        "  a, b: the same",
    ]
    one, other = np.zeros(256, np.float32), np.ones(256, np.float32)
    found = card_transfer.moved("x", PerProcess({0: one, 1: one, 2: other, 3: other}))
    assert found.size_bytes == one.nbytes + other.nbytes


def test_names_and_values_stay_text() -> None:
    rows = [card_transfer.moved("<i>", "<b>"), card_transfer.moved("y", {}, "<u>")]
    table = card_transfer.per_process_card(
        [(0, {"text/plain": "1"}), (1, {"text/plain": "<i>"}), (2, {"text/plain": "1"})]
    )
    assert table.text == "[0,2] 1\n[1]   <i>"
    for card in (
        table,
        card_transfer.moved_card(rows, "<s>", 0, 0.1),
        card_transfer.moved_card(rows[:1], "<s>", 0, 0.1),
        card_transfer.transfer_card("pushing `<i>`", 1, 3, 2.0),
    ):
        assert not any(tag in card.html for tag in ("<i>", "<b>'", "<u>", "<s>"))


# ---------------------------------------------------------------------- progress


MIB = 1 << 20


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class ListedPlace:
    """Keeps what is shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.cleared = 0

    def show(self, card: Card) -> None:
        self.shown.append(card.text)

    def clear(self) -> None:
        self.cleared += 1

    def finish(self, card: Card) -> None:
        self.shown.append(f"finished {card.text}")


def moved_at(*seconds: float, total: int = 100 * MIB) -> list[str]:
    """What is shown of a transfer that ticks at these times, evenly."""
    clock, place = Clock(), ListedPlace()
    meter = TransferMeter(place, clock)
    with meter("pulling `x`", total) as tick:
        for i, second in enumerate(seconds):
            clock.now = 100 + second
            tick(total * (i + 1) // (len(seconds) + 1))
    assert place.cleared == 1
    return place.shown


def test_nothing_is_shown_of_a_short_transfer() -> None:
    assert moved_at(0.1, 0.5, 0.99) == []


def test_a_long_transfer_shows_a_few_times_a_second() -> None:
    hundredths = [i / 100 for i in range(300)]
    shown = moved_at(*hundredths)
    assert len(shown) == 10  # from 1 to 3 s, one each 0.2 s
    found = re.fullmatch(
        r"pulling `x` █{7}░{13} 33\.6 MiB of 100 MiB · 33\.\d MiB/s · 2 s left", shown[0]
    )
    assert found, shown[0]
    assert all(len(text) < 80 for text in shown)


def test_the_end_is_not_shown_as_progress() -> None:
    clock, place = Clock(), ListedPlace()
    with TransferMeter(place, clock)("pulling `x`", MIB) as tick:
        clock.now += 5
        tick(MIB)
    assert place.shown == []


def test_an_error_leaves_no_bar() -> None:
    clock, place = Clock(), ListedPlace()
    meter = TransferMeter(place, clock)
    with contextlib.suppress(KeyboardInterrupt), meter("pulling `x`", 2 * MIB) as tick:
        clock.now += 5
        tick(MIB)
        raise KeyboardInterrupt
    assert len(place.shown) == 1
    assert place.cleared == 1


def test_it_counts_what_all_transfers_moved_though_a_front_end_fails() -> None:
    class Broken(ListedPlace):
        def show(self, card: Card) -> None:
            raise BrokenPipeError

    clock = Clock()
    meter = TransferMeter(Broken(), clock)
    for _ in range(2):
        with meter("pushing `x`", 3) as tick:
            clock.now += 5
            tick(1)
            tick(3)
        clock.now += 100  # the time between transfers does not count
    assert (meter.moved_bytes, meter.moving_seconds) == (6, 10)


def test_a_terminals_line_is_blanked(capsys: pytest.CaptureFixture[str]) -> None:
    place = TerminalPlace()
    place.clear()
    assert capsys.readouterr().err == ""
    place.show(line_card("a long line"))
    place.show(line_card("short"))
    place.clear()
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "\ra long line\rshort      \r     \r"


def test_a_cell_has_one_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs: dict[str, list[str]] = {}

    def publish(data: dict[str, str], transient: dict[str, str], update: bool) -> None:
        known = outputs.setdefault(transient["display_id"], [])
        assert bool(known) is update
        known.append(data["text/plain"])

    shell = SimpleNamespace(display_pub=SimpleNamespace(publish=publish))
    monkeypatch.setattr("jaxnb.magics.sinks.get_ipython", lambda: shell)
    cell = 1
    place = Place(lambda: cell)
    place.clear()
    for text in ("one", "two"):
        place.show(line_card(text))
        place.clear()
    cell = 2
    place.show(line_card("three"))
    place.clear()
    place.finish(line_card("card"))
    place.finish(line_card("another"))
    assert [*outputs.values()] == [["one", "", "two", ""], ["three", "", "card"], ["another"]]
