"""What a process wrote last, why it died, and gloo's lines, which are left out."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnb.launch.deaths import (
    LAST_LINES,
    MAX_PARTIAL_CHARS,
    ChatterFilter,
    Death,
    DumpFilter,
    death_error,
    last_lines,
    oom_kills,
    undated,
)
from jaxnb.launch.forkloop import LAST_WORDS_SECONDS, Child


def pieces_of(rank: int, peers: int) -> list[str]:
    """gloo's message in the pieces that it writes."""
    expected = "Expected number of connected peer ranks is : "
    begin = ["[Gloo] Rank ", str(rank), " is connected to ", str(peers), " peer ranks. "]
    return [*begin, expected, str(peers), "\n"]


LINE = "".join(pieces_of(1, 3)).rstrip("\n")


def test_lines_of_xlas_log_are_the_same_on_all_processes() -> None:
    said = "W1128 17:25:02.256589   10572 spmd_partitioner.cc:666] [SPMD] Involuntary\nmore\n"
    other = "W1128 17:25:02.482755   10573 spmd_partitioner.cc:666] [SPMD] Involuntary\nmore\n"
    assert undated(said) == undated(other)
    assert undated(said) == "W spmd_partitioner.cc:666] [SPMD] Involuntary\nmore\n"
    mine = "W1128 17:25:02.256589 10572 of mine\n"
    assert undated(mine) == mine


@st.composite
def bursts(draw: st.DrawFn) -> str:
    """What one to four threads of one process write at once."""
    rank = draw(st.integers(0, 15))
    peers = draw(st.integers(max(rank, 1), 16))
    threads = [pieces_of(rank, peers) for _ in range(draw(st.integers(1, 4)))]
    burst = []
    while any(threads):
        thread = draw(st.sampled_from([t for t in threads if t]))
        burst.append(thread.pop(0))
    return "".join(burst)


LOOKS_LIKE_GLOOS = [
    "[Gloo] Rank 1 is stuck", f"my {LINE}", f"{LINE} or so", "3", "", "1" * 24, "[Gloo] Rank ",
    "[Gloo] Rank 1", " peer ranks.", "3 peer ranks. Expected number of connected peer ranks is : 3",
]  # fmt: skip
looks_like_gloos = st.sampled_from(LOOKS_LIKE_GLOOS)
lines = st.one_of(st.text(max_size=30).map(lambda s: s.replace("\n", "\r")), looks_like_gloos)
texts = st.lists(lines, max_size=4).map(lambda each: "".join(line + "\n" for line in each))


def cut(draw: st.DrawFn, stream: str) -> list[str]:
    ends = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    return [stream[a:b] for a, b in zip([0, *ends], [*ends, len(stream)], strict=True)]


@given(st.data())
def test_what_others_write_around_gloos_lines_comes_out_unchanged(data: st.DataObject) -> None:
    parts = data.draw(st.lists(st.tuples(texts, st.one_of(st.just(""), bursts())), max_size=5))
    # A line whose end has not come yet is handed on too, though gloo goes on in it then.
    last = data.draw(st.text(max_size=20).map(lambda s: s.replace("\n", "")))
    chatter = ChatterFilter()
    stream = "".join(text + burst for text, burst in parts) + last
    shown = [chatter.feed(piece) for piece in cut(data.draw, stream)]
    assert "".join(shown) + chatter.flush() == "".join(text for text, _ in parts) + last
    assert not chatter.is_pending


# Not a number that gloo has just named, nor an empty line: those cannot be told from gloo's.
own_lines = lines.map(lambda s: f"{s}x\n")


@given(bursts(), own_lines, st.data())
def test_a_line_in_the_midst_of_gloos_is_never_lost(
    burst: str, line: str, data: st.DataObject
) -> None:
    where = data.draw(st.integers(0, len(burst)))
    chatter = ChatterFilter()
    stream = burst[:where] + line + burst[where:]
    shown = "".join(map(chatter.feed, cut(data.draw, stream))) + chatter.flush()
    assert line in shown


@pytest.mark.parametrize(
    "tail", ["1" * 24, "1" * 200_000, f"{LINE} or so", "[Gloo] Rank " * 50_000]
)
def test_what_comes_after_gloos_lines_takes_linear_time(tail: str) -> None:
    stream = f"{LINE}\n{tail}\n" * 3
    assert ChatterFilter().feed(stream) == f"{tail}\n" * 3


def test_the_beginning_of_a_line_can_be_had_before_its_end() -> None:
    chatter = ChatterFilter()
    assert chatter.feed("[Gloo] Rank 1 wai") == ""
    assert chatter.is_pending
    assert chatter.flush() == "[Gloo] Rank 1 wai"
    assert chatter.feed("ts") == "ts"
    assert chatter.feed(f"\n{LINE}\n") == "\n"
    assert chatter.feed("=" * (MAX_PARTIAL_CHARS + 1)) == "=" * (MAX_PARTIAL_CHARS + 1)
    assert chatter.feed(f"\n{LINE}\nafter\n") == "\nafter\n"


def test_a_dump_is_held_until_it_is_known_who_died() -> None:
    dump = "Fatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n"
    held = DumpFilter()
    assert held.feed("not a Fatal Python error: x\n" + dump) == "not a Fatal Python error: x\n"
    assert held.feed("  File x\n") == ""
    assert held.flush() == f"{dump}  File x\n"
    assert held.feed("on\n") == "on\n"


# ---------------------------------------------------------------------- last words


def test_what_was_written_long_before_a_death_is_not_of_it() -> None:
    child = Child(1, "engine", 0, -1, bytearray(b"a warning"), wrote_at=time.monotonic())
    assert child.last_words() == "a warning"
    child.wrote_at -= LAST_WORDS_SECONDS + 1
    assert child.last_words() == ""


def test_the_words_before_a_dump_are_kept_and_the_dump_is_not() -> None:
    dump = "Fatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n"
    dump += "  File x\n" * 99 + "\nCurrent thread 0x2 (most recent call first):\n  File cell\n"
    tail = "".join(f"line {i}\n" for i in range(99)) + f"the last words\n{dump}"
    text = last_lines(Death("engine", 1, 2, -6, f"{tail}\nExtension modules: a, b\n"))
    for kept in ("the last words", "Fatal Python error: Aborted", "File cell"):
        assert kept in text
    assert "Extension modules" not in text
    assert len(text.splitlines()) < LAST_LINES + 12


# ------------------------------------------------------------------- what the kernel's counters say


DEATH = Death("engine", 1, 31337, -9, "")


@pytest.mark.parametrize("text", ["oom 3\noom_kill {}\n", "oom_kill_disable 0\noom_kill {}\n"])
def test_the_kernels_counters_are_added_up(tmp_path: Path, text: str) -> None:
    one, other = tmp_path / "memory.events", tmp_path / "vmstat"
    one.write_text(text.format(5))
    other.write_text("oom_kill 2\n")
    assert oom_kills([one, tmp_path / "gone", other]) == 7


def test_what_may_not_be_read_counts_as_none(tmp_path: Path) -> None:
    assert oom_kills([tmp_path / "gone"]) == 0
    assert oom_kills() >= 0


@pytest.mark.parametrize(
    ("out_of_memory", "status", "said"),
    [
        (False, -9, "was killed by SIGKILL"),
        (True, -9, "Likely out of memory"),
        (False, 3, "ended with exit status 3"),
        (False, -250, "was killed by signal 250"),
    ],
)
def test_what_is_said(out_of_memory: bool, status: int, said: str) -> None:
    death = replace(DEATH, out_of_memory=out_of_memory, status=status)
    text = str(death_error(death, 4))
    assert text.startswith("Process 1 of 4 (pid 31337) ")
    assert said in text
    assert ("memory" in text) == out_of_memory
    assert "%spmd_recover" in text


def test_all_who_died_are_named() -> None:
    other = replace(DEATH, index=3, pid=99, status=7)
    text = str(death_error(DEATH, 4, others=[other]))
    assert "Process 3 of 4 (pid 99) ended with exit status 7 too." in text
    assert "the others get the variables that they have now" in text
    nobody = [replace(DEATH, index=i) for i in (3, 0, 2)]
    text = str(death_error(DEATH, 4, others=nobody))
    assert text.index("Process 0 ") < text.index("Process 2 ") < text.index("Process 3 ")
    assert "No process is left, and all variables are lost. Type `%spmd_restart`" in text
    assert "get the variables" not in text
