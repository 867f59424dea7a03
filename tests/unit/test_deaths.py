"""What a process wrote last, without what says nothing."""

from __future__ import annotations

import time

from jaxnb.launch.deaths import LAST_LINES, Death, describe_status, last_lines
from jaxnb.launch.forkserver import LAST_WORDS_SECONDS, Child


def test_what_was_written_long_before_a_death_is_not_of_it() -> None:
    child = Child(1, "engine", 0, -1, bytearray(b"a warning"), wrote_at=time.monotonic())
    assert child.last_words() == "a warning"
    child.wrote_at -= LAST_WORDS_SECONDS + 1
    assert child.last_words() == ""


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
