"""Variables that one process has packed come back in another, or are named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from integration import carried_variables

SCRIPT = str(Path(carried_variables.__file__))


def run(role: str, path: Path) -> Any:
    """Runs one of the two processes; returns what it found."""
    command = [sys.executable, "-W", "ignore::RuntimeWarning", SCRIPT, role, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def lost_and_found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Any]:
    path = tmp_path_factory.mktemp("state") / "state"
    lost = run("pack", path)
    return lost, *run("unpack", path)


def test_all_come_back(lost_and_found: tuple[Any, Any, Any]) -> None:
    assert lost_and_found[1] == dict.fromkeys(carried_variables.CHECKS, True)


def test_what_cannot_be_packed_is_named(lost_and_found: tuple[Any, Any, Any]) -> None:
    found, expected = lost_and_found[0], carried_variables.LOST
    assert {path: kind for path, (kind, _) in found.items()} == {
        path: kind for path, (kind, _) in expected.items()
    }
    for path, (_, reason) in expected.items():
        assert found[path][1].startswith(reason)


def test_what_cannot_be_made_is_named(lost_and_found: tuple[Any, Any, Any]) -> None:
    assert lost_and_found[2] == [
        "`proxy` (value): nested too deep",
        "`logged` (value): AttributeError: 'Logged' object has no attribute 'log'",
        "`exits` (value): SystemExit: 3",
        "`fails` (value): ValueError: not here",
    ]
