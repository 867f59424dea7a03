"""Rows: replicas that are not equal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from faults.unequal.row import Row, queued


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

_ROWS = (
    "rows = jax.make_mesh((2, n // 2), ('r', 'd'), axis_types=(jax.sharding.AxisType.Auto,) * 2)\n"
)

_HALF = """
half = NamedSharding(jax.sharding.Mesh(np.array(jax.devices()[:4]), ('h',)), P())
if process_index < 2:
    u = jax.device_put(np.full(5000, {}, np.float32), half)
    print(int(float(total(u)) > -1))
"""

_PUT = """
half = NamedSharding(jax.sharding.Mesh(np.array(jax.devices()[:4]), ('h',)), {spec})
one = np.full(5000, process_index < 0, np.float32)
h = jax.device_put(one, half)
u = jax.device_put(np.full(5000, {value}, np.float32), half)
"""

_OF_DEVICES = """
parts = [jax.device_put(np.full(2000, {}), d) for i, d in enumerate(jax.local_devices())]
u = jax.make_array_from_single_device_arrays((2000,), whole, parts)
"""

ROWS = (
    _SEED,
    queued(_SEED),
    replace(_SEED, what="another seed, donated",
            unequal=(_SEED.unequal[0], "v = jax.jit(lambda x: x + 1, donate_argnums=0)(u)"),
            twin=(_SEED.twin[0], "v = jax.jit(lambda x: x + 1, donate_argnums=0)(u)"),
            said=r"`u` \(float32\[40,50\] .*process 0 ≠ process 1"),
    replace(_SEED, what="another seed, first used two cells later",
            unequal=(_SEED.unequal[0], "float(total(a))", _SEED.unequal[1]),
            twin=(_SEED.twin[0], "float(total(a))", _SEED.twin[1])),
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
        (_ROWS + "u = make(int(process_index == 3), NamedSharding(rows, P('d')), 4000)",
         "float(total(u))"),
        (_ROWS + "u = make(int(process_index in (1, 3)), NamedSharding(rows, P('d')), 4000)",
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
    _replica("host_local_array_to_global_array",
             "u = mh.host_local_array_to_global_array(np.full(5000, mine, np.float32), mesh, P())",
             r"by host_local_array_to_global_array"),
    _replica("make_array_from_process_local_data",
             "u = jax.make_array_from_process_local_data(whole, np.full(5000, mine, np.float32))",
             r"by make_array_from_process_local_data"),
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
        "zeros of another sign",
        "replicas",
        ("u = make(-0.0 if process_index else 0.0, whole, 5000)", "float(total(u))"),
        ("u = make(-0.0, whole, 5000)", "float(total(u))"),
        r"differ: process 0 ≠ processes 1-3 in \[0:5000\]\.",
    ),
    Row(
        "not a number, everywhere the same",
        "replicas",
        ("u = make(np.nan if process_index else 0.0, whole, 5000)", "float(total(u))"),
        ("u = make(np.nan, whole, 5000)", "float(total(u))"),
        r"differ: process 0 ≠ processes 1-3 in \[0:5000\]\.",
    ),
    Row(
        "rounding",
        "replicas",
        ("u = make(np.nextafter(np.float32(1), 2) if process_index else 1, whole, 5000)",
         "float(total(u))"),
        ("u = make(1, whole, 5000)", "float(total(u))"),
        r"process 0 ≠ processes 1-3 in \[0:5000\].*several may round differently",
    ),
    _replica("bfloat16", "import ml_dtypes\nhost = np.full(5000, mine).astype(ml_dtypes.bfloat16)\n"
             "u = jax.make_array_from_callback(host.shape, whole, lambda index: host[index])",
             r"bfloat16\[5000\].*process 0 ≠ process 1"),
    _replica("found while checking was off", "u = make(mine, whole, 5000)",
             r"process 0 ≠ process 1", "u = total(u)\nv = total(u + 1)"),
    Row(
        "one element of a large NumPy array",
        "host data",
        ("host = np.zeros(1 << 20, np.float32); host[345678] = process_index",
         "float(jax.jit(lambda x, h: x.sum() + h.sum())(a, host))"),
        ("host = np.zeros(1 << 20, np.float32); host[345678] = 1",
         "float(jax.jit(lambda x, h: x.sum() + h.sum())(a, host))"),
        r"do not agree.*dispatch 1 over processes 0-3",
    ),
    Row(
        "one element of a large array of each process",
        "host data",
        ("local = jnp.zeros(1 << 20).at[345678].set(process_index)",
         "float(jax.jit(lambda x, h: x.sum() + h.sum())(a, local))"),
        ("local = jnp.zeros(1 << 20).at[345678].set(1)",
         "float(jax.jit(lambda x, h: x.sum() + h.sum())(a, local))"),
        r"do not agree.*dispatch 1 over processes 0-3",
    ),
)  # fmt: skip
