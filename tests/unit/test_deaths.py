"""What a process wrote last, without what says nothing."""

from __future__ import annotations

import pytest

from jaxnb.deaths import LAST_LINES, Death, describe_status, last_lines, quiet

LINE = "[Gloo] Rank 1 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3"


@pytest.mark.parametrize(
    "chatter",
    [
        f"{LINE}\n",
        f"{LINE}\n{LINE}\n",
        # Two threads at once, piece by piece.
        f"[Gloo] Rank {LINE}\n{LINE.removeprefix('[Gloo] Rank ')}\n",
        LINE.replace("Rank ", "Rank [Gloo] Rank ").replace(" to ", " to  is connected to ")
        + "\n\n",
        LINE.replace(" peer ranks. ", f" peer ranks. \n{LINE}\n") + "\n",
    ],
)
def test_gloo_is_left_out_and_nothing_else(chatter: str) -> None:
    assert quiet(chatter) == ""
    assert quiet(f"before\n{chatter}after\n") == "before\nafter\n"


def test_a_users_line_about_gloo_stays() -> None:
    for text in ("[Gloo] Rank 1 is stuck\n", "12\n", f"my {LINE}\n"):
        assert quiet(text) == text


def test_the_words_before_a_dump_are_kept_and_the_dump_is_not() -> None:
    dump = (
        "Fatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n" + "  File x\n" * 99
    )
    dump += (
        "\nCurrent thread 0x2 (most recent call first):\n  File cell\n\nExtension modules: a, b\n"
    )
    tail = "".join(f"line {i}\n" for i in range(99)) + "the last words\n" + dump
    text = last_lines(Death("engine", 1, 2, -6, tail))
    assert "the last words" in text
    assert "Fatal Python error: Aborted" in text
    assert "File cell" in text
    assert "Extension modules" not in text
    assert len(text.splitlines()) < LAST_LINES + 12


def test_how_it_ended_in_words() -> None:
    assert describe_status(-9) == "was killed by SIGKILL"
    assert describe_status(3) == "ended with exit status 3"
    assert describe_status(None) == "ended"
    assert describe_status(-250) == "was killed by signal 250"
