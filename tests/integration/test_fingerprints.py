"""Which programs processes must not tell apart: compiled for real."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support import compiled as programs

pytestmark = pytest.mark.timing


COMPILE_SECONDS = 200


def compiled(*arguments: str) -> dict[str, Any]:
    """Compiles programs in a process of its own; returns what it says of them."""
    done = subprocess.run(
        [sys.executable, str(Path(programs.__file__)), *arguments],
        capture_output=True,
        text=True,
        timeout=COMPILE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.timeout(COMPILE_SECONDS)
def test_equal_programs_are_not_told_apart() -> None:
    """That different ones are, the rows of ``faults.unequal`` show."""
    assert set(compiled("equal").values()) == {1}


@pytest.mark.timeout(2 * COMPILE_SECONDS)
def test_what_a_process_has_traced_before_changes_nothing() -> None:
    fresh, experienced = compiled("same"), compiled("same", "experienced")
    assert len(fresh) >= 10
    assert [name for name in fresh if fresh[name] != experienced[name]] == []
