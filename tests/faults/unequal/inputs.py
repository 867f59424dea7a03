"""The table of what is unequal × where × mode → what is said, each row with a healthy twin.

What a row is, and the rows about what goes into programs: which array, and replicas.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, replace
from typing import Any

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


# ---------------------------------------------------------------------- which array went in

_ANOTHER = Row(
    "another array",
    "argument",
    ("float(total(b if process_index else a))",),
    ("float(total(b if num_processes else a))",),
    r"(?s)Argument 1: process 0 passed `a` \(made at line \d+ of cell \[\d+\] by "
    r"make_array_from_callback.*processes 1-3 passed `b` \(made at",
)

_FAILED = (
    "if process_index == 2:\n    raise ValueError('no')\nw = make(30)",
    "float(total(w))",
)


def _of_shards(what: str, made: str) -> Row:
    """A row in which an array is put together again of the shards of another."""
    tail = f"\nc = {made}\ndel z\nfloat(total(c))"
    return Row(
        what,
        "shards",
        (f"z = b if process_index else a{tail}",),
        (f"z = b if num_processes else a{tail}",),
        r"process 0 passed `c` \(made at line 2 of cell \[\d+\] by \w+, array \d+ of its shape "
        r"and dtype there; from shards of: made at line \d+ .*processes 1-3 passed `c`",
    )


INPUTS = (
    _ANOTHER,
    queued(_ANOTHER),
    Row(
        "another result",
        "argument",
        ("y = step(a)\nz = step(b)\nfloat(total(y if process_index else z))",),
        ("y = step(a)\nz = step(b)\nfloat(total(y if num_processes else z))",),
        r"process 0 passed `z` \(result of jit\(<lambda>\), dispatch 2 of cell \[\d+\], line 2\), "
        r"processes 1-3 passed `y` \(result of jit\(<lambda>\), dispatch 1 of cell \[\d+\], line 1",
    ),
    Row(
        "dict in another order",
        "argument",
        ("order = ['w', 'b'] if process_index else ['b', 'w']\n"
         "[float(total(params[k])) for k in order];",),
        ("order = ['w', 'b']\n[float(total(params[k])) for k in order];",),
        r"process 0 passed `params\['b'\]` .*processes 1-3 passed `params\['w'\]`",
    ),
    Row(
        "leaves swapped",
        "pytree",
        ("p = params if process_index else {'w': params['b'], 'b': params['w']}\n"
         "float(both(p))",),
        ("p = {'w': params['w'], 'b': params['b']} if process_index else params\nfloat(both(p))",),
        r"Argument `p\['b'\]`: .*Argument `p\['w'\]`: ",
    ),
    Row(
        "not bound anew where the cell failed",
        "argument",
        _FAILED,
        ("if process_index == 2:\n    v = 0\nw = make(30)", "float(total(w))"),
        r"process(es)? 0-1,3 passed `w` \(made at line \d+ of cell \[\d+\].*process 2 passed `w` "
        r"\(made at",
    ),
    Row(
        "donated",
        "argument",
        ("f = jax.jit(lambda x: x + 1, donate_argnums=0)\n"
         "c, d = make(7), make(8)\nc = f(d if process_index else c)",),
        ("f = jax.jit(lambda x: x + 1, donate_argnums=0)\n"
         "c, d = make(7), make(8)\nc = f(d if num_processes else c)",),
        r"process 0 passed .*array 1 of its shape.*processes 1-3 passed .*array 2 of its shape",
    ),
    Row(
        "a ref to another array",
        "ref",
        ("r, s = jax.new_ref(a), jax.new_ref(b)\nr = s if process_index else r\n"
         "r[...] = r[...] + 1\nc = jax.freeze(r)",),
        ("r = jax.new_ref(b if num_processes else a)\nr[...] = r[...] + 1\n"
         "float(total(jax.freeze(r)))",),
        r"process 0 passed .*processes 1-3 passed ",
    ),
    Row(
        "another array of device_put",
        "argument",
        ("p, q = (jax.device_put(np.full(2 * n, i, np.float32), sharded) for i in range(2))\n"
         "float(total(q if process_index else p))",),
        ("p, q = (jax.device_put(np.full(2 * n, i, np.float32), sharded) for i in range(2))\n"
         "float(total(q if num_processes else p))",),
        r"process 0 passed `p` \(made at line 1 of cell \[\d+\] by device_put, array 1 of .*"
        r"processes 1-3 passed `q`",
    ),
    Row(
        "the value of a cell",
        "shown",
        ("b if process_index else a",),
        ("b if num_processes else a",),
        r"The value mixes shards of different arrays: on process 0 made at .*, on processes "
        r"1-3 made at",
        refused=False,
    ),
    _of_shards(
        "make_array_from_single_device_arrays",
        "jax.make_array_from_single_device_arrays(z.shape, z.sharding, "
        "[s.data for s in z.addressable_shards])",
    ),
    _of_shards(
        "host_local_array_to_global_array",
        "mh.host_local_array_to_global_array("
        "mh.global_array_to_host_local_array(z, mesh, P('d')), mesh, P('d'))",
    ),
)  # fmt: skip

# ---------------------------------------------------------------------- replicas that are not equal


def _replica(what: str, code: str, said: str, use: str = "float(total(u))", **rest: Any) -> Row:
    """A row whose array ``u`` differs where ``mine`` does; its twin has the same everywhere."""
    before = ("mine = process_index", "mine = 1")
    cells = tuple((f"{set_}\n{code}", use) for set_ in before)
    return Row(what, "replicas", *cells, f"(?s)Unequal input in cell .*{said}", **rest)


_SEED = _replica(
    "another seed",
    "host = np.random.default_rng(mine).normal(size=(40, 50)).astype(np.float32)\n"
    "u = jax.make_array_from_callback(host.shape, whole, lambda index: host[index])",
    r"`u` \(float32\[40,50\] · P\(\), made at line 3 of cell \[\d+\] by make_array_from_callback"
    r".*process 0 ≠ process 1 ≠ process 2 ≠ process 3 in \[0:40, 0:50\]\..*"
    r"Make it of the same data",
)

_GRID = (
    "rows = jax.make_mesh((2, n // 2), ('r', 'd'), axis_types=(jax.sharding.AxisType.Auto,) * 2)\n"
)

_HALF = """
half = NamedSharding(jax.sharding.Mesh(np.array(jax.devices()[: n // 2]), ('h',)), P())
if process_index < 2:
    u = jax.device_put(np.full(5000, {}, np.float32), half)
    print(int(float(total(u)) > -1))
"""

_PUT = """
half = NamedSharding(jax.sharding.Mesh(np.array(jax.devices()[: n // 2]), ('h',)), {spec})
one = np.full(5000, process_index < 0, np.float32)
h = jax.device_put(one, half)
u = jax.device_put(np.full(5000, {value}, np.float32), half)
"""

_OF_DEVICES = """
parts = [jax.device_put(np.full(2000, {}), d) for i, d in enumerate(jax.local_devices())]
u = jax.make_array_from_single_device_arrays((2000,), whole, parts)
"""

REPLICAS = (
    _SEED,
    queued(_SEED),
    _replica(
        "a leaf of parameters",
        "params = {'w': make(4, whole), 'b': make(mine, whole, 5000)}",
        r"`params\['b'\]` \(float32\[5000\]",
        "float(both(params))",
    ),
    Row(
        "one process only",
        "replicas",
        ("mine = 7 if process_index == 2 else 1\nu = make(mine, whole)", "float(total(u))"),
        ("mine = 1\nu = make(mine, whole)", "float(total(u))"),
        r"processes 0-1,3 ≠ process 2 in \[0:16\]\.",
    ),
    Row(
        "partly replicated",
        "replicas",
        (_GRID + "u = make(int(process_index == 3), NamedSharding(rows, P('d')), 4000)",
         "float(total(u))"),
        (_GRID + "u = make(int(process_index in (1, 3)), NamedSharding(rows, P('d')), 4000)",
         "float(total(u))"),
        r"process 1 ≠ process 3 in \[2000:3000\]\.",
        needs_four=True,
    ),
    Row(
        "sharded, and its own on each",
        "replicas",
        ("u = make(process_index, whole)", "float(total(u))"),
        ("u = make(process_index, sharded)", "float(total(u))"),
        r"make one sharded array of them: `jax.make_array_from_process_local_data`",
    ),
    Row(
        "devices of one process",
        "replicas",
        (_OF_DEVICES.format("float(i == 1 and process_index == 2)"), "float(total(u))"),
        (_OF_DEVICES.format("1.0"), "float(total(u))"),
        r"differ: devices 0-1,2048-2049,4096,6144-6145 ≠ device 4097 in",
    ),
    _replica("a ref", "u = make(mine, whole, 5000)", r"`u` .*process 0 ≠ process 1",
             "r = jax.new_ref(u)\njax.jit(lambda r: r[...].sum())(r)"),
    Row(
        "device_put onto half of the processes",
        "replicas",
        (_HALF.format("process_index"),),
        (_HALF.format("1"),),
        r"process 0 ≠ process 1 in \[0:5000\]",
        needs_four=True,
    ),
    *(
        Row(
            f"device_put onto half of the processes, {what}",
            "replicas",
            (_PUT.format(spec=spec, value="process_index"),),
            (_PUT.format(spec=spec, value="1 if process_index < 2 else process_index"),),
            rf"`u` \(float32\[5000\] · {said}, made at line 5 .* host data whose bytes differ: "
            r"process 0 ≠ process 1 in \[0:5000\].*JAX compares",
            refused=False,
            needs_four=True,
        )
        for what, spec, said in (
            ("not used", "P()", r"P\(\)"),
            ("in parts", "P('h')", r"P\('h',?\)"),
        )
    ),
    # Of each process's own devices: it is data of the host's.
    replace(
        _replica("scalar of a pmap",
                 "f = jax.pmap(lambda x, s: jax.lax.psum(x * s, 'i'), 'i', in_axes=(0, None))\n"
                 "x = np.ones((jax.local_device_count(), 3), np.float32)",
                 "", "f(x, jnp.float32(mine))"),
        said="DivergenceError",
    ),
    _replica("predicate",
             "u = jax.make_array_from_callback((), whole, lambda i: np.bool_(mine > 1))",
             r"`u` \(bool\[\].* differ: processes 0-1 ≠ processes 2-3\.",
             "jax.jit(lambda p, x: jax.lax.cond(p, lambda y: y + 1, lambda y: y - 1, x))(u, a)",
             needs_four=True),
    _replica("host memory that is written to before the first use",
             "raw = np.zeros(20064, np.uint8); at = -raw.ctypes.data % 64\n"
             "host = raw[at:at + 20000].view(np.float32)\n"
             "u = jax.make_array_from_callback((5000,), whole, lambda index: host)\nhost[7] = mine",
             r"`u` .*process 0 ≠ process 1 .*in \[0:5000\]\."),
    Row(
        "rounding",
        "replicas",
        ("u = make(np.nextafter(np.float32(1), 2) if process_index else 1, whole, 5000)",
         "float(total(u))"),
        ("u = make(1, whole, 5000)", "float(total(u))"),
        r"process 0 ≠ processes 1-3 in \[0:5000\].*several may round differently",
    ),
    Row(
        "a number",
        "host data",
        ("jax.jit(lambda x, y: x + y)(a, 0.1 if process_index else 0.2);",),
        ("jax.jit(lambda x, y: x + y)(a, 0.1 if num_processes else 0.2);",),
        r"Argument `y`: process 0 passed 0\.2, processes 1-3 passed 0\.1\.",
    ),
    Row(
        "a number that an operator is given",
        "host data",
        ("a + (0.1 if process_index else 0.2);",),
        ("a + (0.1 if num_processes else 0.2);",),
        r"Argument 2: process 0 passed 0\.2, processes 1-3 passed 0\.1\.",
    ),
    Row(
        "the sharding alone",
        "argument",
        ("s = jax.make_array_from_callback((n, n), sharded if process_index else NamedSharding("
         "mesh, P(None, 'd')), lambda i: np.ones((n, n), np.float32)[i])\nstep(s);",),
        ("s = jax.make_array_from_callback((n, n), sharded if num_processes else None, "
         "lambda i: np.ones((n, n), np.float32)[i])\nstep(s);",),
        r"rgument `x` is float32\[8,8\] P\('d'\) on processes 1-3, float32\[8,8\] P\(None, 'd'\) "
        r"on process 0",
    ),
    Row(
        "one element of a large NumPy array",
        "host data",
        ("host = np.zeros(1 << 20, np.float32); host[345678] = process_index",
         "float(jax.jit(lambda x, h: x.sum() + h.sum())(a, host))"),
        ("host = np.zeros(1 << 20, np.float32); host[345678] = 1",
         "float(jax.jit(lambda x, h: x.sum() + h.sum())(a, host))"),
        r"do not agree.*dispatch 1 over processes 0-3",
    ),
)  # fmt: skip
