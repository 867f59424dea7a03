"""A progress bar of several processes leaves one line, though its rates and times differ."""

from __future__ import annotations

from jaxnb.cells.merge_bars import BarMerger
from jaxnb.cells.merge_output import IN_STEP_GRACE_SECONDS

HALF = "\r 50%|##  | 2/4 [00:01<00:01,  2it/s]"
LATER = 10 * IN_STEP_GRACE_SECONDS


def end(seconds: int) -> str:
    return f"\r100%|####| 4/4 [00:0{seconds}<00:00,  2it/s]\n"


def merger_of(*texts: str) -> BarMerger:
    merger = BarMerger(range(len(texts)))
    for process, text in enumerate(texts):
        merger.feed(process, "stderr", text, 0.0)
    return merger


def test_it_comes_when_the_last_process_has_ended_it() -> None:
    merger = merger_of(end(1), end(2), HALF)
    assert merger.drain(LATER) == []
    assert [line.labelled() for line in merger.live()] == [
        f"[2] {HALF[1:]}",
        f"[0-1] {end(2)[1:-1]}",
    ]
    merger.feed(2, "stderr", end(3), LATER)
    assert merger.drain(LATER) == []  # it waits for its twins
    found = merger.drain(2 * LATER)
    assert [line.labelled() for line in found] == [f"[0-2] {end(3)[1:-1]}"]
    assert merger.live() == []


def test_a_bar_of_one_process_does_not_wait() -> None:
    assert [line.labelled() for line in merger_of(end(1), "").drain(LATER)] == [
        f"[0] {end(1)[1:-1]}"
    ]


def test_lines_of_a_process_keep_their_order() -> None:
    merger = merger_of(end(1), HALF)
    assert merger.drain(LATER) == []
    merger.feed(0, "stderr", "next\n", LATER)
    found = merger.drain(2 * LATER)
    assert [line.labelled() for line in found] == [f"[0] {end(1)[1:-1]}", "[0] next"]


def test_the_next_bar_is_another() -> None:
    merger = merger_of(end(1) + end(1), HALF)
    assert merger.drain(LATER) == []
    merger.feed(1, "stderr", end(2) + HALF, LATER)
    assert [line.labelled() for line in merger.drain(2 * LATER)] == [f"[0-1] {end(2)[1:-1]}"]
    merger.feed(1, "stderr", end(3), 2 * LATER)
    assert [line.labelled() for line in merger.close(2 * LATER)] == [f"[0-1] {end(3)[1:-1]}"]


def test_what_else_a_bar_says_is_not_lost() -> None:
    says = [f"\r100%|####| 4/4 [00:01<00:00,  {i}it/s, loss={i}]\n" for i in (2, 3)]
    found = merger_of(*says).drain(LATER)
    assert [line.labelled() for line in found] == [f"[{i}] {says[i][1:-1]}" for i in range(2)]
    beside = [f"\r  0%|    | 0/4 [00:00<?, ?it/s]warning {i}\n" for i in range(2)]
    assert [line.text for line in merger_of(*beside).drain(LATER)] == [b[1:-1] for b in beside]
    merger = merger_of(*(each + end(1) for each in beside))
    assert [sorted(line.processes) for line in merger.drain(LATER)] == [[0], [1], [0, 1]]


def test_many_bars_are_not_held_back_for_ever() -> None:
    """Nor does a line take longer for those before it."""
    many = "".join(end(1).replace("100%", f"{i}: 100%") for i in range(20_000))
    merger = merger_of(many, HALF, "9" * 200_000 + "%|\n")
    lines = [*merger.drain(LATER), *merger.drain(2 * LATER)]
    assert len(lines) > 19_000
    assert len(merger.live()) < 20
    lines += merger.close(2 * LATER)
    bars = [line.text for line in lines if ": 100%" in line.text]
    assert [bar.split(":")[0] for bar in bars] == [str(i) for i in range(20_000)]
