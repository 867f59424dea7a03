"""History, timelines, saving, ``%spmd_collectives`` and ``%spmd_compare`` in a real kernel."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.test_magics import Notebook, kernel

MLP = "%%spmd\ndef mlp(x, w1, w2):\n    return jnp.tanh(x @ w1) @ w2"


@pytest.fixture(scope="module")
def nb() -> Iterator[Notebook]:
    """A kernel with a group of 2 processes × 2 devices."""
    for notebook in kernel():
        notebook.bad("%spmd_timeline")
        notebook.good("%spmd_start -n 2 --devices-per-process 2 --platform cpu")
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
    assert "process 1: other, " in shown.html
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


def test_saving_and_loading(nb: Notebook, tmp_path: Path) -> None:
    nb.good("%spmd globals().pop('after', None);")
    nb.good("%spmd a, b, c = 1, 2, (i for i in range(2))")
    shown = nb.good(f"%spmd_save {tmp_path}/state a c")
    assert shown.text.startswith("Saved 1 variable (")
    assert "Not saved: `c` (generator) on processes 0-1" in shown.text
    assert "jaxnb" in shown.html
    assert "--overwrite" in nb.bad(f"%spmd_save {tmp_path}/state")
    nb.good(f"%spmd_save --overwrite {tmp_path}/state")
    nb.good("%spmd a = b = None")
    assert nb.good(f"%spmd_load {tmp_path}/state").text.startswith("Loaded 2 variables")
    assert "(1, 2)" in nb.good("%spmd a, b").text
    assert "kept 2 variables" in nb.good("%spmd_restart --keep").text
    assert "(1, 2)" in nb.good("%spmd a, b").text
    assert "not allowed with" in nb.bad("%spmd_restart --keep --replay")
    assert "--overwrite" in nb.good("%spmd_save --help").text
    assert "Name a directory" in nb.bad("%spmd_load")
    assert "has no saved variables" in nb.bad(f"%spmd_load {tmp_path}")


def test_a_line(nb: Notebook) -> None:
    nb.good("%spmd mesh = jax.make_mesh((4,), ('x',), axis_types=(jax.sharding.AxisType.Auto,))")
    nb.good(
        "%spmd x = jax.ShapeDtypeStruct((8, 8), np.float32, sharding=NamedSharding(mesh, P('x')))"
    )
    shown = nb.good("%spmd_collectives jax.jit(lambda x: jnp.sum(x, axis=0))(x)")
    assert "all-reduce  x         4  f32[8]   48 B      1" in shown.text  # 2 × 3/4 × 32 bytes
    assert ">f32[8]</td>" in shown.html
    again = nb.good("spmd.collectives('jnp.sum(x)')")
    assert again.text.startswith("jit(sum) · 4 devices · mesh x 4 · 1 collective")
    assert "<b>jit(sum)</b>" in again.html
    shown = nb.good("%spmd_collectives jnp.sum(x) --show --flops 1e12 --bandwidth x=1e9")
    for said in (
        "all-reduce (psum) over x",
        "too small to be cut",
        "from each device (row)",
        "bound by",
    ):
        assert said in shown.text
    assert "--bandwidth goes with" in nb.bad("%spmd_collectives jnp.sum(x) --bandwidth x=1e9")
    lines = "%%spmd_collectives\njnp.sum(\n    x, axis=0\n)"
    assert "all-reduce  x         4  f32[8]" in nb.good(lines).text


def test_errors_show_the_lines_of_the_notebook(nb: Notebook) -> None:
    nb.good(MLP)
    message = nb.bad("%%spmd_collectives --devices 8\n\nx = 3\nmlp(x, y, 3)", "NotCompiledError")
    assert "NameError: name 'y' is not defined" in message
    assert nb.bad("%spmd_collectives mlp").startswith("`mlp` is not a call.")
    assert "unknown option '--device'" in nb.bad("%spmd_collectives --device 3 mlp(1)")
    said = nb.bad("%%spmd_collectives\nz = 3\nmlp(x)")
    assert "then type `%spmd_collectives mlp(x)`" in said
    assert "usage: %spmd_collectives CALL [options]" in nb.good("%spmd_collectives -h").text


def test_stepping_through_a_shard_map(nb: Notebook) -> None:
    nb.good("%spmd mesh = jax.make_mesh((4,), ('x',), axis_types=(jax.sharding.AxisType.Auto,))")
    nb.good("%%spmd\n@jax.shard_map(mesh=mesh, in_specs=P('x'), out_specs=P('x'))\ndef double(x):"
            "\n    y = 2 * x\n    return y")  # fmt: skip
    shown = nb.good("%%spmd_steps --out found\n\nz = jnp.arange(4.0)\ndouble(z)")
    assert shown.text.startswith("3 steps · mesh x 4 · without `jit`")
    assert (
        "line 4: `y = 2 * x`\n  `y` · float32[1]\n    x 0  x 1  x 2  x 3\n    [0]  [2]  [4]  [6]"
        in (shown.text)
    )
    assert "float32[4]" in shown.text  # its value
    assert shown.html.count("rgba(0,114,178") > 4
    assert nb.good("len(found.steps.steps)").text.strip() == "3"
    assert "line 2" in nb.bad("%%spmd_steps\ndouble(1 / 0)", "CellError")
    assert "`double(z)` stands where options do" in nb.bad("%%spmd_steps double(z)\ndouble(z)")
    assert "The cell is empty" in nb.bad("%spmd_steps")
    assert "exclude each other" in nb.bad("%spmd_steps --time double(z)")
    assert "each line within shard_map" in " ".join(nb.good("%spmd_steps -h").text.split())


def test_comparing_shardings(nb: Notebook) -> None:
    nb.good(MLP)
    nb.good("%spmd mesh = jax.make_mesh((4,), ('x',), axis_types=(jax.sharding.AxisType.Auto,))")
    nb.good("%spmd x, w1, w2 = (np.ones((8, 8), np.float32) for _ in range(3))")
    line = "%%spmd_compare mlp(x, w1, w2) --repeats 2 --plot --out found\n"
    shown = nb.good(f"{line}rows = P('x')\nwhole = P()")
    # Both weights, 8 × 8 float32, of which each has gathered 3 quarters from others.
    assert "  rows      2 all-gather over x 384 B" in shown.text
    assert "4 devices · mesh x 4 · 2 processes · 2 calls each" in shown.text
    assert ">rows</td>" in shown.html
    assert nb.good("found.best('bytes').name").text.strip() == "'whole'"
    # By the function's own names, which a program compiled here keeps for who loads it later.
    moved = nb.good("[each.argument for each in found['rows'].report.collectives]")
    assert moved.text.strip() == "['w1', 'w2']"
    assert nb.good("found").text.startswith("mlp · 2 shardings")
    inside = nb.good(
        "%%spmd\nimport jaxnb\njaxnb.compare(mlp, (x, w1, w2), specs={'rows': P('x')}, run=False)"
    )
    assert "  rows      2 all-gather over x 384 B" in inside.text
    line = "%spmd_compare mlp(x, w1, w2) --spec a=P('y') --no-run --mesh {'y':4}"
    assert "  a         2 all-gather over y 384 B" in nb.good(line).text
    # What is written meanwhile, as by XLA's log, stands before the card.
    nb.good("%spmd loud = lambda x: (print('traced'), x + 1)[1]")
    loud = nb.good("%spmd_compare loud(x) --spec a=P('x') --no-run")
    assert "traced" in "".join(o.text for o in loud.node.outputs if o.output_type == "stream")
