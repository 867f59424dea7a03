"""What the exercises share: meshes of eight devices, arrays on them, and mapped functions."""

from __future__ import annotations

from typing import Any

import numpy as np

LINE = 'mesh = jax.make_mesh((8,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))\n'

GRID = """\
mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
"""

PUT = """\
def table(rows, columns, start=0):
    return np.arange(start, start + rows * columns, dtype=np.float32).reshape(rows, columns)
def put(value, *spec):
    sharding = NamedSharding(mesh, P(*spec))
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])
"""


def table(rows: int, columns: int, start: int = 0) -> np.ndarray[Any, Any]:
    """Returns a table of different whole numbers, as float32; setups have it too."""
    numbers = np.arange(start, start + rows * columns, dtype=np.float32)
    return numbers.reshape(rows, columns)


def mapped(
    define: str, out: str, *, mesh: str = LINE, axis: str = ', "i"', **arrays: tuple[str, str]
) -> str:
    """Returns setup that makes ``f``: the student's function under ``jit`` and ``shard_map``.

    Args:
        define: The name of the student's function.
        out: The spec of its result, as code.
        mesh: Code that makes the mesh.
        axis: What the function is given after the arrays, as code.
        arrays: Name to the array, as code, and its spec: ``x=("table(16, 2)", "'i'")``.
    """
    specs = ", ".join(f"P({spec})" for _, spec in arrays.values())
    names = ", ".join(arrays)
    lines = [f"{name} = put({value}, {spec})" for name, (value, spec) in arrays.items()]
    return (
        f"{mesh}{PUT}"
        + "\n".join(lines)
        + f"\nf = jax.jit(jax.shard_map(lambda {names}: {define}({names}{axis}), mesh=mesh,\n"
        f"    in_specs=({specs},), out_specs={out}))\n"
    )
