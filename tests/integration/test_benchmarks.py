"""Each benchmark runs to its end; what it measures is not looked at here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS

ROOT = Path(__file__).parents[2]


@pytest.mark.thorough
@pytest.mark.parametrize("name", BENCHMARKS)
def test_it_runs(name: str) -> None:
    command = [sys.executable, "-m", "benchmarks", name, "--quick", "--side", "jaxnb"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr  # 1: a target was missed
    assert "written to" in done.stdout + done.stderr, done.stderr
