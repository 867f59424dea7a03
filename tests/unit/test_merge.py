"""Streams of several processes become one, and nothing is lost on the way."""

from __future__ import annotations

import itertools
import random
import time
from collections import defaultdict, deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxnb.cells.merge_output import (
    FLOOD_LINES,
    IN_STEP_GRACE_SECONDS,
    IN_STEP_SECONDS,
    ROW_SECONDS,
    LineLimiter,
    MergedLine,
    StreamMerger,
    merged_again,
    stream_mergers,
)
from jaxnb.model.cells import StreamName

GRACE = 0.25


def fed(*texts: str, now: float = 0.0) -> StreamMerger:
    merger = StreamMerger("stdout", range(len(texts)), grace_seconds=GRACE)
    for process, text in enumerate(texts):
        merger.feed(process, text, now)
    return merger


def labelled(lines: list[MergedLine]) -> list[str]:
    return [line.labelled() for line in lines]


def test_lines_that_differ_come_out_each_after_the_grace_time():
    merger = fed("a\n", "b\n")
    assert merger.drain(ROW_SECONDS / 2) == []
    assert labelled(merger.drain(GRACE)) == ["[0] a", "[1] b"]


def test_a_silent_process_holds_the_others_no_longer_than_the_grace_time():
    merger = fed("a\n", "a\n", "")
    assert merger.drain(IN_STEP_SECONDS - 0.01) == []  # it may be about to begin
    assert labelled(merger.drain(IN_STEP_SECONDS)) == ["[0-1] a"]
    for process in (0, 1):
        merger.feed(process, "b\n", 1.0)
    assert merger.drain(1.0 + GRACE - 0.01) == []
    assert labelled(merger.drain(1.0 + GRACE)) == ["[0-1] b"]
    merger.feed(2, "b\n", 2.0)
    assert labelled(merger.close(2.0)) == ["[2] b"]


def test_a_flood_is_worth_a_longer_wait():
    flood = "".join(f"{i}\n" for i in range(FLOOD_LINES + 1))
    merger = fed(flood, "")
    assert merger.drain(IN_STEP_GRACE_SECONDS - 0.01) == []
    merger.feed(1, flood, IN_STEP_GRACE_SECONDS - 0.01)
    lines = merger.drain(IN_STEP_GRACE_SECONDS)
    assert len(lines) == FLOOD_LINES + 1
    assert all(line.label == "[0-1]" for line in lines)


def test_a_process_that_keeps_writing_is_waited_for_up_to_a_limit():
    merger = fed("a\n", "a\n", "")
    now = 0.0
    while now < IN_STEP_GRACE_SECONDS:
        merger.feed(2, ".", now)
        assert merger.drain(now) == []
        now += IN_STEP_SECONDS / 2
    merger.feed(2, ".", now)
    assert labelled(merger.drain(now)) == ["[0-1] a"]


def test_a_process_that_finished_is_not_waited_for():
    merger = fed("a\nb\n", "a\n")
    merger.finish(1)
    assert labelled(merger.drain(0.0)) == ["[0-1] a", "[0] b"]


def test_a_whole_row_stands_in_the_order_of_the_processes():
    """Also if who is last to finish can be told first that no other will say its line."""
    merger = fed("0\n", "1\n", "2\n")
    merger.finish(0)
    merger.finish(1)
    assert merger.drain(0.0) == []
    merger.finish(2)
    assert labelled(merger.drain(0.0)) == ["[0] 0", "[1] 1", "[2] 2"]


def test_an_extra_line_of_one_process_does_not_break_the_rest_and_does_not_wait():
    merger = fed("A\nB\nC\n", "A\nX\nB\nC\n")
    assert labelled(merger.drain(0.0)) == ["[0-1] A", "[1] X", "[0-1] B", "[0-1] C"]


def test_subsets_merge_among_themselves():
    merger = fed("start\nhost a\nend\n", "start\nhost a\nend\n", "start\nhost b\nend\n")
    assert labelled(merger.close(0.0)) == [
        "[0-2] start",
        "[0-1] host a",
        "[2] host b",
        "[0-2] end",
    ]


def test_stdout_and_stderr_merge_apart_in_whatever_order_they_arrive():
    mergers = stream_mergers([0, 1])
    names: tuple[StreamName, ...]
    for process, names in ((0, ("stdout", "stderr")), (1, ("stderr", "stdout"))):
        for name in names:
            mergers[name].feed(process, "a\nb\n", 0.0)
    everyone = frozenset({0, 1})
    assert [line for merger in mergers.values() for line in merger.drain(0.0)] == [
        MergedLine(name, everyone, text) for name in ("stdout", "stderr") for text in "ab"
    ]


def test_lines_that_differ_come_in_the_order_of_the_processes_in_rows():
    merger = StreamMerger("stdout", range(4))
    for process in (2, 0, 3, 1):
        merger.feed(process, f"a {process}\nb {process}\n", 0.01 * process)
    assert merger.drain(ROW_SECONDS) == []  # the last one came at 0.03
    assert labelled(merger.drain(0.03 + ROW_SECONDS)) == [
        f"[{process}] {row} {process}" for row in "ab" for process in range(4)
    ]


def test_the_rows_of_what_one_has_printed_stay_together():
    """So do a traceback and a program: lines that are indented deeper than the first of them."""
    texts = [f"[[{k} 1]\n [2 3]]\nend\n[[[{k}]]\n\n [[1]]]\n" for k in range(2)]
    rows = ["[[{0} 1]", " [2 3]]"], ["[[[{0}]]", "", " [[1]]]"]
    array, cube = ([f"[{k}] {row.format(k)}" for k in range(2) for row in each] for each in rows)
    merger = fed(*texts)
    assert labelled(merger.close(0.0)) == [*array, "[0-1] end", *cube]

    late = fed(texts[0], texts[0].replace("end", "other"))
    lines = late.drain(9.0) + late.close(9.0)
    assert sum(line.text == " [2 3]]" for line in lines) == 1  # what is equal is one all the same

    apart = StreamMerger("stdout", [0, 1])
    apart.feed(0, texts[0], 0.0)
    lines = apart.drain(9.0)
    apart.feed(1, texts[0], 9.0)
    again = merged_again([*lines, *apart.close(9.0)])
    assert labelled(again) == [f"[0-1] {line}" for line in texts[0].splitlines()]


def test_a_line_without_its_newline_is_live_then_ordinary():
    merger = fed("a", "a", "b")
    assert labelled(merger.live()) == ["[0-1] a", "[2] b"]
    assert merger.drain(9.0) == []
    assert labelled(merger.close(9.0)) == ["[0-1] a", "[2] b"]
    assert merger.live() == []


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a\r\nb\r\n", ["a", "b"]),
        ("\r 10%\r 50%\r100%\n", ["100%"]),
        ("abcdef\rxyz\n", ["xyzdef"]),
        ("long text\r\x1b[Kshort\n", ["short"]),
        ("long text\x1b[2K\rshort\n", ["short"]),
        ("1/10 \b\b\b\b\b2/10 \n", ["2/10"]),
        ("\x1b[31mlong red\x1b[0m\r\x1b[32mok\x1b[0m\n", ["\x1b[32mok\x1b[0m"]),
        ("a\x1b[?25lb\n", ["ab"]),
        ("\n\na\n", ["", "", "a"]),
        # What tqdm writes for two nested bars, the inner one removed when it ends.
        ("\rA 0%\n\rB 0%\x1b[A\n\rB 99%\x1b[A\rA 50%\n\r      \r\x1b[A\rA 100%\n", ["A 100%"]),
        # Two bars that stay, then an ordinary line below them.
        ("\rA 0%\n\rB 0%\x1b[A\rA 100%\n\rB 100%\n\nbye\n", ["A 100%", "B 100%", "", "bye"]),
    ],
)
def test_the_terminal_codes_of_progress_bars(text: str, lines: list[str]):
    merger = fed(text)
    assert [line.text for line in merger.close(0.0)] == lines
    by_character = StreamMerger("stdout", [0])
    for character in text:
        by_character.feed(0, character, 0.0)
    assert [line.text for line in by_character.close(0.0)] == lines


def test_bars_of_several_processes_are_live_and_merge_when_equal():
    merger = fed("\r 10%\r 50%", "\r 50%", "\r 10%")
    assert labelled(merger.live()) == ["[0-1]  50%", "[2]  10%"]
    merger.feed(2, "\r 50%", 1.0)
    assert labelled(merger.live()) == ["[0-2]  50%"]
    for process in range(3):
        merger.feed(process, "\r100%\n", 2.0)
    assert labelled(merger.drain(2.0)) == ["[0-2] 100%"]
    assert merger.live() == []


# Few distinct lines, so that they often meet, repeat and cross.
LINES = st.lists(st.sampled_from(["", "a", "b", "c", "step 1", "step 2"]), max_size=30)


@settings(max_examples=150, deadline=None)
@given(st.lists(LINES, min_size=1, max_size=5), st.randoms(use_true_random=False), st.booleans())
def test_nothing_is_lost_doubled_or_reordered(
    streams: list[list[str]], rng: random.Random, late: bool
):
    merger = StreamMerger("stdout", range(len(streams)), grace_seconds=GRACE)
    texts = {p: "".join(f"{line}\n" for line in lines) for p, lines in enumerate(streams)}
    shown: list[MergedLine] = []
    now = 0.0
    while any(texts.values()):
        p = rng.choice([p for p, text in texts.items() if text])
        size = rng.randint(1, 20)
        merger.feed(p, texts[p][:size], now)
        texts[p] = texts[p][size:]
        if not texts[p] and rng.random() < 0.5:
            merger.finish(p)
        now += rng.random() * GRACE if late else 0.0
        shown += merger.drain(now)
    shown += merger.close(now)
    by_process: dict[int, list[str]] = defaultdict(list)
    for line in shown:
        for p in line.processes:
            by_process[p].append(line.text)
    assert [by_process[p] for p in range(len(streams))] == streams


@settings(max_examples=150, deadline=None)
@given(st.lists(LINES, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_merging_once_more_loses_and_reorders_nothing(streams: list[list[str]], rng: random.Random):
    said = [(p, deque(each)) for p, each in enumerate(streams)]
    came: list[MergedLine] = []
    while said := [each for each in said if each[1]]:
        p, left = rng.choice(said)
        name: StreamName = rng.choice(["stdout", "stderr"])
        came.append(MergedLine(name, frozenset({p}), left.popleft()))
    merged = merged_again(came)
    for p in range(len(streams)):
        for name in ("stdout", "stderr"):
            before, after = (
                [x.text for x in lines if p in x.processes and x.name == name]
                for lines in (came, merged)
            )
            assert before == after
    assert merged is came or len(merged) < len(came)


def test_streams_that_came_one_after_the_other_merge_completely():
    each = [("stdout", "loaded"), ("stderr", "careful"), ("stdout", "done")]
    came = [MergedLine(name, frozenset({p}), text) for p in range(3) for name, text in each]
    merged = merged_again(came)
    everyone = frozenset(range(3))
    assert merged == [
        MergedLine(name, everyone, text) for name, text in [each[0], each[2], each[1]]
    ]
    assert merged_again(merged) is merged


TERMINAL = st.lists(
    st.sampled_from(
        ["a", "bc", "\r", "\n", "\r\n", "\b", "\x1b[A", "\x1b[K", "\x1b[2K", "\x1b[31m"]
    ),
    max_size=25,
).map("".join)


@settings(max_examples=300, deadline=None)
@given(TERMINAL, st.lists(st.integers(0, 60), max_size=8))
def test_chunk_boundaries_do_not_matter(text: str, cuts: list[int]):
    whole, cut = StreamMerger("stdout", [0]), StreamMerger("stdout", [0])
    whole.feed(0, text, 0.0)
    edges = [0, *sorted(c for c in cuts if c < len(text)), len(text)]
    for start, stop in itertools.pairwise(edges):
        cut.feed(0, text[start:stop], 0.0)
    assert cut.live() == whole.live()
    assert cut.close(0.0) == whole.close(0.0)


@settings(max_examples=50, deadline=None)
@given(LINES, st.integers(2, 6))
def test_equal_streams_merge_completely(lines: list[str], processes: int):
    merger = fed(*["".join(f"{line}\n" for line in lines)] * processes)
    shown = merger.drain(0.0)
    assert [line.text for line in shown] == lines
    assert all(line.processes == frozenset(range(processes)) for line in shown)


@pytest.mark.parametrize("prefix", ["", "p{p} "], ids=["equal", "different"])
@pytest.mark.timing
def test_a_flood_of_lines_takes_little_time(prefix: str):
    texts = [
        "".join(f"{prefix.format(p=p)}step {i} loss {i / 7:.4f}\n" for i in range(20_000))
        for p in range(8)
    ]
    merger = StreamMerger("stdout", range(8))
    shown = 0
    begin = time.process_time()
    for start in range(0, max(map(len, texts)), 100_000):
        for p, text in enumerate(texts):
            merger.feed(p, text[start : start + 100_000], 0.0)
            shown += len(merger.drain(0.0))
    shown += len(merger.close(0.0))
    assert shown == (160_000 if prefix else 20_000)
    # A hundred times what was measured: only a change of complexity fails.
    assert time.process_time() - begin < (25.0 if prefix else 5.0)


@pytest.mark.timing
def test_a_long_line_that_grows_by_small_chunks_is_not_quadratic():
    merger = StreamMerger("stdout", [0])
    begin = time.process_time()
    for _ in range(50_000):
        merger.feed(0, "x" * 40, 0.0)
    assert [len(line.text) for line in merger.close(0.0)] == [2_000_000]
    assert time.process_time() - begin < 20.0


def line(text: str, name: str = "stdout") -> MergedLine:
    return MergedLine(name, frozenset({0}), text)


FOLLOW = "… more lines follow; the last {} are shown at the end"


def test_limiter_passes_few_lines_through_untouched():
    limiter = LineLimiter(head=3, tail=2)
    lines = [line(str(i)) for i in range(5)]
    assert limiter.feed(lines[:3]) == lines[:3]
    assert labelled(limiter.feed(lines[3:])) == [FOLLOW.format(2)]
    assert limiter.finish() == lines[3:]


def test_limiter_shows_what_it_keeps_as_often_as_asked():
    limiter = LineLimiter(head=0, tail=2)
    assert [limiter.feed([line(str(i))]) for i in range(5)] == [[]] * 5
    kept = ["… 3 lines not shown, `result.stdout` holds them", "[0] 3", "[0] 4"]
    assert labelled(limiter.kept()) == labelled(limiter.kept()) == kept
    assert labelled(limiter.finish()) == kept
    assert limiter.kept() == []


def test_limiter_says_what_it_does_not_show():
    limiter = LineLimiter(head=2, tail=1)
    shown = limiter.feed(line(str(i)) for i in range(41_206))
    assert labelled(shown) == ["[0] 0", "[0] 1", FOLLOW.format(1)]
    assert limiter.dropped == 41_203
    assert labelled(limiter.finish()) == [
        "… 41 203 lines not shown, `result.stdout` holds them",
        "[0] 41205",
    ]


def test_limiter_names_both_streams_and_takes_no_tail():
    limiter = LineLimiter(head=0, tail=0)
    assert limiter.feed([line("a"), line("b", "stderr")]) == []
    notice = "… 2 lines not shown, `result.stdout` and `result.stderr` hold them"
    assert labelled(limiter.finish()) == [notice]


def test_limiter_cuts_long_lines_and_counts_the_rest():
    limiter = LineLimiter(max_chars=10)
    assert labelled(limiter.feed([line("x" * 12_345)])) == [
        "[0] xxxxxxxxxx… 12 335 characters not shown"
    ]
    assert "\x1b[0m…" in limiter.feed([line("\x1b[31m" + "x" * 50)])[0].text
