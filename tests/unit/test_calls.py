"""From where in a cell something was called."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from jaxnb.lockstep import process_origins

CELL = "/folder/of/process_0/cell_7.py"


def run(code: str, file: str = CELL, **names: Any) -> dict[str, Any]:
    found: list[tuple[int | None, int, int | None]] = []

    def look() -> None:
        frame = sys._getframe(1)
        found.append((*process_origins.place_in(frame, CELL), process_origins.line_in(frame, CELL)))

    names |= {"look": look, "found": found}
    exec(compile(code, file, "exec"), names)
    return names


def test_the_innermost_line_and_the_place_are_told() -> None:
    code = "def f():\n    look()\nf()\nlook(); look()\n"
    found = run(code)["found"]
    assert [line for line, _, _ in found] == [line for _, _, line in found] == [2, 4, 4]
    assert len({place for _, place, _ in found}) == 3
    assert run(code)["found"] == found  # of other code objects, of the same text
    assert run(code, "/elsewhere/cell_8.py")["found"] == [(None, 0, None)] * 3


def test_calls_are_remembered_of_the_code_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where code was that is gone, other code may lie."""
    monkeypatch.setattr(process_origins, "MAX_CALLS", 8)
    monkeypatch.setattr(process_origins, "_CALLS", {})
    codes = ["\n" * k + "look()" for k in range(20)]
    first = [run(code)["found"] for code in codes]
    assert len(process_origins._CALLS) <= 8
    monkeypatch.setattr(process_origins, "_CALLS", {})
    assert [run(code)["found"] for code in reversed(codes)] == first[::-1]
    assert [found[0][0] for found in first] == list(range(1, 21))
