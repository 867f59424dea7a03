"""Hundreds of cells in a row: a reply must never be left lying in a socket."""

from __future__ import annotations

import pytest

from jaxnb.session import Session
from support.fixtures import PATIENT_SECONDS


@pytest.mark.thorough  # a rate
@pytest.mark.parametrize(
    "code",
    [pytest.param("pass", marks=pytest.mark.thorough), "print(process_index); process_index"],
)
def test_hundreds_of_cells_run_without_one_getting_stuck(session: Session, code: str) -> None:
    for _ in range(400):
        result = session.run(code, timeout=PATIENT_SECONDS)
    assert len(result.per_process) == session.num_processes


def test_debugpy_can_still_be_imported(session: Session) -> None:
    """It is kept out of ipykernel, not out of the user's reach."""
    assert (
        session.run("import debugpy.server.api as api; api.__name__").value == "debugpy.server.api"
    )
