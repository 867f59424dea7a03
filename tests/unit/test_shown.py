"""Who wrote a line is read from merged output, however it was merged."""

from __future__ import annotations

import pytest

from support.shown import who_wrote


@pytest.mark.parametrize(
    "lines",
    [["[0-3] done"], ["[0,2-3] done", "other", "[1] done"], [f"[{i}] done" for i in range(4)]],
)
def test_each_process_wrote_it_once(lines: list[str]) -> None:
    assert who_wrote(lines, "done") == [0, 1, 2, 3]


def test_what_is_written_twice_or_otherwise_is_seen() -> None:
    assert who_wrote(["[0-1] done", "[1] done"], "done") == [0, 1, 1]
    assert who_wrote(["[0-1] done?", "done"], "done") == []
    assert who_wrote(["[0-1] done in 1 s"], "done in", only_begins=True) == [0, 1]
