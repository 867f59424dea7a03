"""How many programs a process remembers, for when another has dispatched another one."""

from __future__ import annotations

import pytest

from jaxnb.compat import jax_dispatch
from jaxnb.lockstep.process_recorded import MAX_CHARS, MAX_PROGRAMS, MIN_PROGRAMS, Programs
from jaxnb.model.dispatches import ProgramLine


@pytest.mark.parametrize(
    ("chars", "kept"),
    [(10, MAX_PROGRAMS), (MAX_CHARS // 8, 8), (MAX_CHARS, MIN_PROGRAMS)],
)
def test_few_are_kept_of_large_programs(
    monkeypatch: pytest.MonkeyPatch, chars: int, kept: int
) -> None:
    monkeypatch.setattr(jax_dispatch, "executable_lines", lambda number: lambda: [number])
    programs = Programs()
    for number in range(2 * MAX_PROGRAMS):
        programs.keep(number, number, "x" * chars, ["fact"])
        programs.keep(number, number, "x" * chars, ["fact"])  # compiled once more
    there = [number for number in range(2 * MAX_PROGRAMS) if programs.lines(number)]
    assert there == [*range(2 * MAX_PROGRAMS)][-kept:]
    assert programs.lines(there[-1]) == [ProgramLine("fact"), there[-1]]
