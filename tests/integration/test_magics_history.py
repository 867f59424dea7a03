"""``%%spmd --time``, ``%spmd_timeline`` and ``%spmd_history`` in a real notebook kernel."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.test_magics import Notebook, kernel


@pytest.fixture(scope="module")
def nb() -> Iterator[Notebook]:
    """A kernel with a group of 2 processes."""
    for notebook in kernel():
        notebook.bad("%spmd_timeline")
        notebook.good("%spmd_start -n 2 --platform cpu")
        yield notebook


def test_time_timeline_history(nb: Notebook, tmp_path: Path) -> None:
    assert "No cell has been run yet" in nb.bad("%spmd_timeline")
    assert nb.good("%spmd_history").text == "0 cells\n"
    timed = nb.good("%%spmd --repeats 3\ntotal = sum(range(1000))\ntotal")
    assert "499500" in timed.text
    assert "timed · 3 calls after the first · " in timed.text
    assert "timed · " in nb.good("%spmd --time 1 + 1").text
    nb.good("%%spmd --async --repeats 2 --out later\n1")
    assert "2" in nb.good("later.result().timing.repeats").text

    shown = nb.good("%spmd_timeline")
    assert shown.text.startswith("cell [")
    assert "process 1: Python, " in shown.html
    number = nb.good("spmd.history[0].cell").text.strip()
    assert nb.good(f"%spmd_timeline {number}").text.startswith(f"cell [{number}] · 2 processes")
    assert nb.good(f"%spmd_timeline [{number}]").text.startswith(f"cell [{number}] · 2 processes")
    assert "no timeline of cell [987]" in nb.bad("%spmd_timeline 987")
    assert "is not a cell number" in nb.bad("%spmd_timeline x")

    table = nb.good("%spmd_history")
    assert table.text.startswith("3 cells · ")
    assert ">total = sum(range(1000))</code>" in table.html
    assert nb.good("%spmd_history --last 1").text.startswith("1 cell · ")
    file = tmp_path / "cells.jsonl"
    assert nb.good(f"%spmd_history --json {file}").text == f"3 cells written to {file}\n"
    assert [json.loads(line)["outcome"] for line in file.read_text().splitlines()] == ["ok"] * 3
    assert "exists. Nothing was written" in nb.bad(f"%spmd_history --json {file}")
    nb.good(f"%spmd_history --json {file} --overwrite --last 2")
    assert len(file.read_text().splitlines()) == 2
    assert "--json" in nb.bad("%spmd_history --overwrite")


def test_history_and_timelines_are_kept_over_a_restart(nb: Notebook) -> None:
    nb.good("%spmd before = 1")
    number = nb.good("spmd.history[-1].cell").text.strip()
    nb.good("%spmd_restart")
    nb.good("%spmd after = 2")
    assert nb.good("[each.generation for each in spmd.history[-2:]]").text.strip() == "[0, 1]"
    assert "new processes" in nb.good("%spmd_history").text
    assert nb.good(f"%spmd_timeline {number}").text.startswith(f"cell [{number}]")
