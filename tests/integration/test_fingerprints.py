"""Which programs processes can tell apart, and which they must not: compiled for real."""

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
def test_programs_that_differ_are_told_apart_and_equal_ones_are_not() -> None:
    found = compiled("pairs")
    equal = {name: value for name, value in found.items() if name.startswith("equal: ")}
    pairs = {name: value for name, value in found.items() if name not in equal}
    assert len(pairs) >= 13
    assert [name for name, (is_same, _) in pairs.items() if is_same] == []
    assert [name for name, (_, is_same_again) in pairs.items() if not is_same_again] == []
    assert [name for name, texts in equal.items() if texts != 1] == []


@pytest.mark.timeout(2 * COMPILE_SECONDS)
def test_what_a_process_has_traced_before_changes_nothing() -> None:
    fresh, experienced = compiled("same"), compiled("same", "experienced")
    assert len(fresh) >= 13
    assert [name for name in fresh if fresh[name] != experienced[name]] == []
