"""Reading of ``/proc`` with the interpreter's lock held."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from jaxnb.engine import held_reads


def test_it_reads_what_python_reads(tmp_path: Path) -> None:
    path = tmp_path / "ü"
    path.write_text("some text, ü\n" * 3000, "utf-8")
    assert held_reads.text(str(path)) == path.read_text("utf-8")
    assert held_reads.text("/proc/self/status").splitlines()[0].startswith("Name:")


def test_it_lists_what_python_lists(tmp_path: Path) -> None:
    for number in range(3000):  # more than one answer of the system
        (tmp_path / f"ü {number}").touch()
    assert sorted(held_reads.names(str(tmp_path))) == sorted([".", "..", *os.listdir(tmp_path)])
    assert str(threading.get_native_id()) in held_reads.names("/proc/self/task")


@pytest.mark.parametrize("read", [held_reads.text, held_reads.names])
def test_what_is_not_there_is_an_error_and_leaves_nothing_open(read, tmp_path: Path) -> None:
    open_before = len(os.listdir("/proc/self/fd"))
    for path in (tmp_path / "missing", tmp_path / "missing" / "too", Path("/proc/self/mem")):
        with pytest.raises((FileNotFoundError, ProcessLookupError)):
            read(str(path))
    assert len(os.listdir("/proc/self/fd")) == open_before
