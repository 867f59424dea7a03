"""Hundreds of cells in a row: a reply must never be left lying in a socket."""

from __future__ import annotations

import pytest

from jaxnb.session import Session


@pytest.mark.parametrize("code", ["pass", "print(process_index); process_index"])
def test_hundreds_of_cells_run_without_one_getting_stuck(session: Session, code: str) -> None:
    for _ in range(400):
        result = session.run(code, timeout=30)
    assert len(result.per_process) == session.num_processes
