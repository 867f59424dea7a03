"""``%spmd_collectives`` in a real notebook kernel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration.test_magics import Notebook, kernel

PLAN = """%%spmd_collectives --devices 256
mesh = jax.make_mesh((16, 16), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
def abstract(shape, *spec):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*spec)))
mlp(abstract((4096, 512), "data"), abstract((512, 2048), None, "model"),
    abstract((2048, 512), "model"))
"""

ROW = "all-reduce  model     16  f32[256,512]  960 KiB      1  cell ["
"""256 × 512 float32, of which 2 × 15/16 are sent."""


@pytest.fixture(scope="module")
def nb() -> Iterator[Notebook]:
    """A kernel with a group of 2 processes × 2 devices."""
    for notebook in kernel():
        notebook.good("%spmd_start -n 2 --devices-per-process 2 --platform cpu")
        notebook.good("%%spmd\ndef mlp(x, w1, w2):\n    return jnp.tanh(x @ w1) @ w2")
        yield notebook


@pytest.mark.thorough
def test_without_a_group_only_plans_can_be_made() -> None:
    for notebook in kernel():
        assert notebook.bad("%spmd_collectives f(x)").startswith("There is no group")
        define = "def mlp(x, w1, w2):\n    return jnp.tanh(x @ w1) @ w2\nmlp("
        shown = notebook.good(PLAN.replace("mlp(", define, 1))
        assert ROW in shown.text
        assert "planned for 256 devices · mesh data 16 × model 16" in shown.text
        shape = "jax.ShapeDtypeStruct((64, 64), jnp.float32)"
        line = f"%%spmd_compare jnp.dot({shape}, {shape}) --devices 64 --mesh {{'x': 64}}"
        shown = notebook.good(f"{line}\na = P('x')")
        # Of 64 × 64 float32 each has gathered all but one row.
        assert "a: 1 all-gather over x 15.8 KiB" in shown.text
        assert "planned for 64 devices" in shown.text


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
    lines = "%%spmd_collectives\njnp.sum(\n    x, axis=0\n)"
    assert "all-reduce  x         4  f32[8]" in nb.good(lines).text


def test_errors_show_the_lines_of_the_notebook(nb: Notebook) -> None:
    message = nb.bad("%%spmd_collectives --devices 8\n\nx = 3\nmlp(x, y, 3)", "NotCompiledError")
    assert "NameError: name 'y' is not defined" in message
    assert nb.bad("%spmd_collectives mlp").startswith("`mlp` is not a call.")
    assert "unknown option '--device'" in nb.bad("%spmd_collectives --device 3 mlp(1)")
    assert "stands behind `%%spmd_collectives`" in nb.bad("%%spmd_collectives mlp(x)\nmlp(x)")
    assert "usage: %spmd_collectives [--devices N] CALL" in nb.good("%spmd_collectives -h").text


def test_comparing_shardings(nb: Notebook) -> None:
    nb.good("%spmd mesh = jax.make_mesh((4,), ('x',), axis_types=(jax.sharding.AxisType.Auto,))")
    nb.good("%spmd x, w1, w2 = (np.ones((8, 8), np.float32) for _ in range(3))")
    line = "%%spmd_compare mlp(x, w1, w2) --repeats 2 --plot --out found\n"
    shown = nb.good(f"{line}rows = P('x')\nwhole = P()")
    # Both weights, 8 × 8 float32, of which each has gathered 3 quarters from others.
    assert "rows: 2 all-gather over x 384 B" in shown.text
    assert "4 devices · mesh x 4 · 2 processes · 2 calls each" in shown.text
    assert ">rows</td>" in shown.html
    assert nb.good("found.best('bytes').name").text.strip() == "'whole'"
    assert nb.good("found").text.startswith("mlp · 2 shardings")
    inside = nb.good(
        "%%spmd\nimport jaxnb\njaxnb.compare(mlp, (x, w1, w2), specs={'rows': P('x')}, run=False)"
    )
    assert "rows: 2 all-gather over x 384 B" in inside.text
    line = "%spmd_compare mlp(x, w1, w2) --spec a=P('y') --no-run --mesh {'y':4}"
    assert "a: 2 all-gather over y 384 B" in nb.good(line).text
    # What is written meanwhile, as by XLA's log, is a click away.
    nb.good("%spmd loud = lambda x: (print('traced'), x + 1)[1]")
    loud = nb.good("%spmd_compare loud(x) --spec a=P('x') --no-run")
    assert "<summary>1 line of output</summary>" in loud.html.replace("<b>", "").replace("</b>", "")
    assert [o for o in loud.node.outputs if o.output_type == "stream"] == []
