"""Meshes, specs and layouts: what ``jit`` and ``shard_map`` do with them."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxnb.course.exercise import Exercise
from jaxnb.course.tasks.common import GRID, LINE, PUT, mapped, table
from jaxnb.course.verdict import Wrong

SQUARE = table(8, 8)

ROWS = table(16, 2)

_SHARED = SQUARE.reshape(4, 2, 8)


def _mesh(sizes: tuple[int, int], *names: str) -> dict[str, Any]:
    return {"processes": np.repeat(np.arange(4), 2).reshape(sizes), "names": names}


EXERCISES = (
    Exercise(
        name="grid_mesh",
        task="Make a mesh whose axis data goes over the processes, and model over the two devices "
        "of each.",
        start="my_mesh = ...",
        setup="place = np.vectorize(lambda device: device.process_index)\n",
        call="{'processes': place(my_mesh.devices), 'names': my_mesh.axis_names}",
        own=True,
        processes=4,
        want=_mesh((4, 2), "data", "model"),
        wrong=(
            Wrong(
                "across",
                "The devices of a process are along data: the last axis of a mesh goes over "
                "neighbouring devices, so make a mesh of 4 × 2.",
                value=_mesh((2, 4), "data", "model"),
            ),
            Wrong(
                "names",
                "The sizes are right, and the names are in the other order.",
                value=_mesh((4, 2), "model", "data"),
            ),
        ),
        hints=("`jax.make_mesh(sizes, names, axis_types=…)`", "Four processes, two devices each."),
    ),
    Exercise(
        name="two_axes",
        task="Write the spec by which an 8 × 8 array is split into rows by data and columns by "
        "model.",
        start="my_two_axes = P(...)  # on a mesh of data 4 × model 2",
        setup=f"{GRID}{PUT}x = put(table(8, 8), *my_two_axes)\n",
        call="x",
        want=SQUARE,
        sharding='NamedSharding(mesh, P("data", "model"))',
        wrong=(
            Wrong(
                "layout",
                "An entry of a spec says for a dimension of the array by which axis of the mesh it "
                "is split: rows come first.",
                uses="sharding",
            ),
        ),
        hints=("`P` has an entry for each dimension of the array.", "Rows are dimension 0."),
    ),
    Exercise(
        name="both_axes",
        task="Write the spec by which the rows are split over all eight devices, in their order.",
        start="my_both_axes = P(...)  # on a mesh of data 4 × model 2",
        setup=f"{GRID}{PUT}x = put(table(8, 8), *my_both_axes)\n",
        call="x",
        want=SQUARE,
        sharding='NamedSharding(mesh, P(("data", "model")))',
        wrong=(
            Wrong(
                "layout",
                "One dimension may be split by several axes, as a tuple, the outer one first.",
                uses="sharding",
            ),
        ),
        hints=("The axes of one dimension stand in a tuple.",),
    ),
    Exercise(
        name="columns",
        task="Write the spec by which columns are split by model, and the rest is replicated.",
        start="my_columns = P(...)  # on a mesh of data 4 × model 2",
        setup=f"{GRID}{PUT}x = put(table(8, 8), *my_columns)\n",
        call="x",
        want=SQUARE,
        sharding='NamedSharding(mesh, P(None, "model"))',
        wrong=(
            Wrong(
                "layout",
                "What is not to be split has the entry None; columns are dimension 1.",
                uses="sharding",
            ),
        ),
        hints=("`None` for the rows.",),
    ),
    Exercise(
        name="process_rows",
        task="Make one array of 16 rows of the four that each process has.",
        start="def my_array(rows, mesh):\n    # a mesh of i 8; split by rows\n    ...",
        setup=f"{LINE}{PUT}rows = table(16, 2)[4 * process_index:][:4]\n",
        call="my_array(rows, mesh)",
        processes=4,
        want=ROWS,
        sharding='NamedSharding(mesh, P("i"))',
        wrong=(
            Wrong(
                "device_put",
                "`device_put` wants the whole array on each process, and all the same. "
                "`jax.make_array_from_process_local_data` takes what a process has.",
                raises="device_put|same on each process|divisible",
            ),
        ),
        hints=(
            "`jax.make_array_from_process_local_data(sharding, rows)`",
            '`NamedSharding(mesh, P("i"))`',
        ),
    ),
    Exercise(
        name="row_sums",
        task="Sum the rows of a table that is split by data and model; each device has a part.",
        start="def my_row_sums(x):\n    # x: (2, 4) on a device; returns (2,)\n    ...",
        setup=mapped(
            "my_row_sums", 'P("data")', mesh=GRID, axis="", x=("table(8, 8)", '"data", "model"')
        ),
        call="f(x)",
        want=SQUARE.sum(1),
        budget=8,
        wrong=(
            Wrong(
                "both",
                "That is a sum over all devices: the rows of other devices along data are others.",
                value=np.tile(_SHARED.sum((0, 2)), 4),
            ),
            Wrong(
                "axis",
                "Along model are the other columns of the same rows, along data other rows: sum "
                "over model. A result that differs along model does not fit `P('data')`.",
                raises="out_specs",
            ),
        ),
        hints=("First the sum of what the device has.", 'Then `jax.lax.psum(…, "model")`.'),
    ),
    Exercise(
        name="still_matmul",
        task="Write the spec of w by which `x @ w` moves nothing: x is split by rows along data, "
        "and the result by columns along model too.",
        start="my_still_matmul = P(...)  # on a mesh of data 4 × model 2",
        setup=f'{GRID}{PUT}x, w = put(table(8, 8), "data"), put(table(8, 4), *my_still_matmul)\n'
        'f = jax.jit(jnp.matmul, out_shardings=NamedSharding(mesh, P("data", "model")))\n',
        call="f(x, w)",
        want=SQUARE @ table(8, 4),
        sharding='NamedSharding(mesh, P("data", "model"))',
        budget=0,
        wrong=(
            Wrong(
                "rows",
                "Each element of the result needs a whole row of x and a whole column of w: split "
                "w by columns.",
                uses="bytes",
            ),
        ),
        hints=("Which elements of w does a device need for its part of the result?",),
    ),
    Exercise(
        name="scattered_matmul",
        task="Multiply x, split by columns, by w, split by rows, and return rows of the product.",
        start="def my_scattered_matmul(x, w, axis):\n"
        "    # shapes on a device: (16, 1) and (1, 4)\n    ...",
        setup=mapped(
            "my_scattered_matmul",
            'P("i")',
            x=("table(16, 8)", 'None, "i"'),
            w=("table(8, 4)", '"i"'),
        ),
        call="f(x, w)",
        want=table(16, 8) @ table(8, 4),
        budget=7 * 32,
        wrong=(
            Wrong(
                "sum",
                "All devices have got the whole sum, and keep an eighth of it: `psum_scatter` "
                "sends half as much.",
                uses="bytes",
            ),
        ),
        hints=(
            "Each device's product has the shape of the whole result: a summand.",
            "`jax.lax.psum_scatter(…, axis, tiled=True)`",
        ),
    ),
    Exercise(
        name="donate",
        task="Make a jitted `my_donate(x)` that returns x / 2 in the memory of x.",
        start="my_donate = ...",
        setup=f'{LINE}{PUT}x = put(table(16, 2), "i")\n',
        call="{'result': my_donate(x), 'x is deleted': x.is_deleted()}",
        want={"result": ROWS / 2, "x is deleted": True},
        wrong=(
            Wrong(
                "kept",
                "x still has its memory: `jax.jit(…, donate_argnums=0)`.",
                value={"result": ROWS / 2, "x is deleted": False},
            ),
        ),
        hints=("`jax.jit` can be told that an argument is not used afterwards.",),
    ),
)
