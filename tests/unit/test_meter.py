"""The progress of transfers, with a clock and a place of the test's own."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from jaxnb.arrays import card_transfer
from jaxnb.display.card import Card, line_card
from jaxnb.magics.sinks import Place, TerminalPlace, TransferMeter

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

    def interrupted() -> None:
        with TransferMeter(place, clock)("pulling `x`", 2 * MIB) as tick:
            clock.now += 5
            tick(MIB)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(place.shown) == 1
    assert place.cleared == 1


def test_a_front_end_that_fails_does_not_end_the_transfer() -> None:
    class Broken(ListedPlace):
        def show(self, card: Card) -> None:
            raise BrokenPipeError

    clock = Clock()
    meter = TransferMeter(Broken(), clock)
    with meter("pulling `x`", 2 * MIB) as tick:
        clock.now += 5
        tick(MIB)
    assert meter.moved_bytes == MIB


def test_it_counts_what_all_transfers_moved() -> None:
    meter = TransferMeter(ListedPlace(), Clock())
    for _ in range(2):
        with meter("pushing `x`", 3) as tick:
            tick(1)
            tick(3)
    with meter("pushing `x`", 0):
        pass
    assert meter.moved_bytes == 6


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


@pytest.mark.parametrize(
    ("seconds", "done", "left"), [(1.0, 50, "1 s"), (30, 50, "30 s"), (90, 50, "1 min 30 s")]
)
def test_time_left(seconds: float, done: int, left: str) -> None:
    assert card_transfer.transfer_card("pushing `x`", done, 100, seconds).text.endswith(
        f"{left} left"
    )


def test_the_bar_is_markup_only_where_it_should_be() -> None:
    card = card_transfer.transfer_card("pushing `<b>`", 1, 3, 2.0)
    assert "<b>`" not in card.html
    assert "pushing `&lt;b&gt;`" in card.html
    assert '<progress value="33" max="100"' in card.html


@pytest.mark.parametrize("done", [0, 100])
def test_both_ends_of_a_transfer(done: int) -> None:
    text = card_transfer.transfer_card(f"pushing {', '.join(['`a`'] * 40)}", done, 100, 0.0).text
    assert text.startswith("pushing `a`, `a`")
    assert len(text) < 80
    assert card_transfer.transfer_card("", 0, 0, 0.0).text


def test_the_time_between_transfers_is_not_counted() -> None:
    clock = Clock()
    meter = TransferMeter(ListedPlace(), clock)
    for _ in range(2):
        with meter("pulling `x`", MIB):
            clock.now += 3
        clock.now += 100
    assert meter.moving_seconds == 6
