"""The table: what is unequal × where × mode → what is said; a healthy twin beside each row.

The rows are data, in ``faults.unequal``: add yours there. All rows share one group of 4 × 2, or of
another shape in ``make unequal-report``: the texts are those of 4 × 2, elsewhere something is said.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import jaxnb
from faults.unequal import ROWS, Row
from faults.unequal.row import SETUP
from jaxnb.labels import suspect_text
from jaxnb.session import Session
from jaxnb.sinks import NoSink
from jaxnb_fixtures import CLEAR, assert_usable

PROCESSES, DEVICES = map(int, os.environ.get("JAXNB_TABLE_SHAPE", "4x2").split("x"))
IS_OF_TEXTS = (PROCESSES, DEVICES) == (4, 2)


class Notices(NoSink):
    """Keeps what is said about cells."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def notice(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture(scope="module")
def module_group() -> Iterator[Session]:
    with jaxnb.start(PROCESSES, devices_per_process=DEVICES, platform="cpu") as session:
        yield session


@pytest.fixture
def group(module_group: Session) -> Session:
    module_group.run(CLEAR)
    module_group.run(SETUP)
    return module_group


def run(
    group: Session, cells: tuple[str, ...], mode: Any, *, nans: bool = False
) -> tuple[str, Any]:
    """Runs cells; returns all that was said of them, and the last one's result."""
    notices = Notices()
    assert cells
    for code in cells:
        # Which process is another than the first does not matter, if there is none but that.
        this = re.sub(r"process_index == [23]", "process_index == 1", code)
        code_here = code if PROCESSES >= 4 else this
        result = group.run(
            code_here, check=mode, check_nans=nans, sink=notices, raise_on_error=False
        )
        notices.said += [f"The value {suspect_text(result.suspect)}"] if result.suspect else []
        notices.said += [f"{e.type_name}: {e.message}" for e in result.errors.values()]
    return "\n".join(notices.said), result


PLAYED = [
    pytest.param(row, mode, id=f"{row}-{mode}")
    for number, row in enumerate(ROWS)
    for half, mode in enumerate(("record", "strict"))
    if (os.environ.get("JAXNB_ALL_ROWS") or number % 2 == half)
    and (PROCESSES >= 4 or not row.needs_four)
]
"""All rows in both modes take two minutes; a change waits for each row in one mode. ``make
unequal-report`` plays all, and so does the nightly form of CI."""


@pytest.mark.parametrize(("row", "mode"), PLAYED)
def test_what_is_unequal_is_told(
    group: Session, row: Row, mode: str, record_property: Callable[[str, object], None]
) -> None:
    said, _ = run(group, row.twin, mode, nans=row.nans)
    assert said == ""
    if mode not in row.modes:
        return
    said, result = run(group, row.unequal, mode, nans=row.nans)
    wanted = row.strict if mode == "strict" and row.strict is not None else row.record
    if IS_OF_TEXTS:
        found = re.search(wanted, said)
        assert found, said
        record_property("said", found[0])
    assert said
    kinds = {error.type_name for error in result.errors.values()}
    if mode == "strict":
        assert kinds == ({"DivergenceError"} if row.refused else kinds - {"DivergenceError"})
    assert_usable(group)
    assert run(group, (SETUP,), mode)[0] == ""
