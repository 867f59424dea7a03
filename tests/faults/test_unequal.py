"""The table: what is unequal × where → what is said; a healthy twin beside each row.

The rows are data, in ``faults.unequal``: add yours there. All rows share one group of 4 × 2, or of
what ``JAXNB_TABLE_SHAPE`` says: the texts are those of 4 × 2, elsewhere something is said. ``make
test`` plays rows that together have every word of every message.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest

import jaxnb
from faults.table.rows import covering, words
from faults.unequal.inputs import SETUP, Row
from faults.unequal.rows import ROWS
from jaxnb.session import Session
from support.fixtures import CLEAR, Notices

PROCESSES, DEVICES = map(int, os.environ.get("JAXNB_TABLE_SHAPE", "4x2").split("x"))
IS_OF_TEXTS = (PROCESSES, DEVICES) == (4, 2)


@pytest.fixture(scope="module")
def module_group() -> Iterator[Session]:
    with jaxnb.start(PROCESSES, devices_per_process=DEVICES, platform="cpu") as session:
        session.run(SETUP)
        yield session


@pytest.fixture
def group(module_group: Session) -> Iterator[Session]:
    """The group, with variables in it; after the row it computes again, and nothing is said."""
    yield module_group
    module_group.run(CLEAR)
    assert run(module_group, (SETUP,))[0] == ""


def run(group: Session, cells: tuple[str, ...], *, nans: bool = False) -> tuple[str, Any]:
    """Runs cells; returns all that was said of them, and the last one's result."""
    notices = Notices()
    assert cells
    for code in cells:
        # Which process is another than the first does not matter, if there is none but that.
        this = re.sub(r"process_index == [23]", "process_index == 1", code)
        code_here = code if PROCESSES >= 4 else this
        result = group.run(code_here, check_nans=nans, sink=notices, raise_on_error=False)
        notices.said += [f"The value {result.suspect}"] if result.suspect else []
        notices.said += [f"{e.type_name}: {e.message}" for e in result.errors.values()]
    return "\n".join(notices.said), result


def in_the_gate() -> list[Row]:
    """Returns rows of each *where* that together have every word that is said of any."""
    return covering({
        row: {("where", row.where), row.what.endswith("(queued)"), *words(row.said)} for row in ROWS
    })  # fmt: skip


def played() -> Iterator[Any]:
    """Yields the rows that have a meaning in a group of this shape, as parameters."""
    gate = in_the_gate()
    for row in ROWS:
        if PROCESSES >= 4 or not row.needs_four:
            marks = () if row in gate else pytest.mark.thorough
            yield pytest.param(row, id=str(row), marks=marks)


@pytest.mark.parametrize("row", list(played()))
def test_what_is_unequal_is_told(group: Session, row: Row) -> None:
    said, _ = run(group, row.twin, nans=row.nans)
    assert said == ""
    said, result = run(group, row.unequal, nans=row.nans)
    if IS_OF_TEXTS:
        assert re.search(row.said, said), said
    assert said
    kinds = {error.type_name for error in result.errors.values()}
    assert kinds == ({"DivergenceError"} if row.refused else kinds - {"DivergenceError"})
