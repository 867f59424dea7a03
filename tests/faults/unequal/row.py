"""What a row of the table is, and the names that its cells find."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

SETUP = """
import builtins, functools, threading
from jax.experimental import multihost_utils as mh
n = jax.device_count()
mesh = jax.make_mesh((n,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
sharded, whole = NamedSharding(mesh, P("d")), NamedSharding(mesh, P())
def make(value, sharding=sharded, size=None):
    host = np.full(size or 2 * n, value, np.float32)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])
a, b, w = make(1), make(2), make(3)
params = {"w": make(4), "b": make(5)}
if not hasattr(builtins, "step_of_rows"):  # compiled once for all rows
    builtins.step_of_rows = jax.jit(lambda x: x + 1)
    builtins.both_of_rows = jax.jit(lambda p: p["w"].sum() - p["b"].sum())
total, step, both = jax.jit(jnp.sum), builtins.step_of_rows, builtins.both_of_rows
float(total(a)), float(both(params)), step(a).sum()
"""
"""What has run before each row, with the names that its cells may use."""


@dataclass(frozen=True)
class Row:
    """One thing that is unequal among processes, and what is said of it.

    Attributes:
        what: What is unequal.
        where: Where it goes in: a group of rows.
        unequal: Cells in which it is; after the last of them it must have been told.
        twin: Cells that look alike and are healthy: nothing may be said of them.
        said: A regular expression that what is said matches: the notices, and the messages of
            errors, one after the other, of all cells of the row.
        refused: Whether the last cell is stopped with a DivergenceError.
        nans: Whether its cells look for NaN.
        needs_four: Whether it means nothing with fewer processes than four.
    """

    what: str
    where: str
    unequal: tuple[str, ...]
    twin: tuple[str, ...]
    said: str
    refused: bool = True
    nans: bool = False
    needs_four: bool = False

    def __str__(self) -> str:
        return f"{self.where}-{self.what}".replace(" ", "_")


def queued(row: Row, dispatches: int = 20) -> Row:
    """Returns the row with dispatches under way when its last unequal cell begins to differ."""
    before = f"q = a\nfor _ in range({dispatches}):\n    q = step(q)\n"

    def behind(cells: tuple[str, ...]) -> tuple[str, ...]:
        return (*cells[:-1], before + textwrap.dedent(cells[-1]))

    what = f"{row.what} (queued)"
    return Row(what, row.where, behind(row.unequal), behind(row.twin), row.said,
               row.refused, row.nans, row.needs_four)  # fmt: skip
