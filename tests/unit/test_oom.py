"""What the kernel's counters say of a process that was killed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jaxnb.launch.deaths import Death, death_error, oom_kills

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


def test_what_is_said() -> None:
    plain, of_memory = (
        str(death_error(replace(DEATH, out_of_memory=oom), 4)) for oom in (False, True)
    )
    assert "memory" not in plain
    assert "Likely out of memory" in of_memory
    for text in (plain, of_memory):
        assert text.startswith("Process 1 of 4 (pid 31337) was killed by SIGKILL.")
        assert "%spmd_recover" in text


def test_all_who_died_are_named() -> None:
    other = replace(DEATH, index=3, pid=99, status=7)
    text = str(death_error(DEATH, 4, others=[other]))
    assert "Process 3 of 4 (pid 99) ended with exit status 7 too." in text
    assert "the live processes keep their variables" in text
    nobody = [replace(DEATH, index=i) for i in (3, 0, 2)]
    text = str(death_error(DEATH, 4, others=nobody))
    assert text.index("Process 0 ") < text.index("Process 2 ") < text.index("Process 3 ")
    assert "No process is left, and all variables are lost. Type `%spmd_restart`" in text
    assert "keep their variables" not in text
