"""More rows: which program was run, with which settings, and what came out of it; and all rows."""

from __future__ import annotations

from typing import Any

from faults.unequal.inputs import INPUTS, REPLICAS, Row, queued


def _row(what: str, code: str, said: str) -> Row:
    """A row whose cell does on process 0 what it does on all others in the twin."""
    unequal = code.replace("ODD", "(process_index == 0)")
    return Row(what, "program", (unequal,), (code.replace("ODD", "False"),), f"(?s){said}")


_CONSTANT = _row(
    "constant",
    "jax.jit(lambda x: (x * (4 if ODD else 3)).sum())(a).block_until_ready();",
    r"The programs differ first in a constant \(f32\[\]\) at line \d+ of cell \[\d+\]: "
    r"3 on processes 1-3, 4 on process 0\..*-f32\[\] constant\(3\)",
)

PROGRAMS = (
    _CONSTANT,
    queued(_CONSTANT),
    _row(
        "large closed-over array",
        "k = np.sin(np.arange(n << 12)).astype(np.float32)\nk[9] += ODD\n"
        "jax.jit(lambda x: x + k)(make(1, size=n << 12));",
        "The programs differ first.*-large constant, digest",
    ),
    _row(
        "attribute of an FFI call",
        "m = make(1, whole, 16).reshape(4, 4) + jnp.eye(4)\n"
        "solve = jax.scipy.linalg.solve_triangular\n"
        "jax.jit(lambda m: solve(m, m, lower=ODD))(m);",
        r"The programs differ first at line 3 of cell.*uplo = 76",
    ),
    _row(
        "precision",
        "m = make(1, whole, 16).reshape(4, 4)\n"
        "jax.jit(lambda m: jnp.matmul(m, m, precision='highest' if ODD else None))(m);",
        r"The programs differ first at line 2 of cell \[\d+\]: `jax\.jit\(lambda m: .*highest",
    ),
    _row(
        "compiler_options",
        "jax.jit(lambda x: x * 7, compiler_options={'xla_cpu_enable_fast_math': ODD})(a);",
        "The programs differ first.*compiler_options .*xla_cpu_enable_fast_math=True",
    ),
    _row(
        "trip count",
        "looped = lambda x: jax.lax.fori_loop(0, 6 if ODD else 5, lambda i, y: y @ y, x)\n"
        "jax.jit(looped)(make(1, whole, 16).reshape(4, 4));",
        r"constant \(s32\[\]\).*5 on processes 1-3, 6",
    ),
    _row(
        "donation",
        "jax.jit(lambda x: x + 1, donate_argnums=(0,) if ODD else ())(make(1));",
        "The programs differ first.*input_output_alias=",
    ),
    _row(
        "eager function",
        "(a + 1 if ODD else a * 2);",
        r"processes 1-3: were to dispatch jit\(multiply\)",
    ),
)

# --------------------------------------------- results that are declared replicated, and are not

_X = """
x = jax.make_array_from_callback((2 * n,), sharded, lambda i: np.arange(2.0 * n)[i])
def mapped(f, mesh=mesh, xs=P("d"), out=P()):
    return jax.shard_map(f, mesh=mesh, in_specs=(P(), xs), out_specs=out, check_vma=False)
"""

_TWENTY = "\nu = make(0, whole, 3)\nfor _ in range(20): u = f(u, x)\nu.block_until_ready();"


def _forgotten(what: str, code: str, said: str, ask: str = "lax.psum(x.sum(), 'd')", **rest: Any):
    """A row whose program forgets a reduction; its twin has it."""
    forgotten = ask.replace("lax.psum(", "(").replace(", 'd')", ")").replace(", 'model')", ")")
    cells = tuple((_X + code.replace("SUM", each.replace("lax.", "jax.lax.")),)
                  for each in (forgotten, ask))  # fmt: skip
    return Row(
        what, "results", *cells, f"(?s)Unequal result in cell .*{said}", refused=False, **rest
    )


RESULTS = (
    _forgotten(
        "a forgotten psum",
        "f = jax.jit(mapped(lambda w, x: w - 0.1 * SUM))" + _TWENTY,
        r"result of jit\(\S+\), dispatch \d+ of cell \[\d+\], line 7\).* is declared replicated, "
        r"and its bytes differ: device 0 ≠ device 1 .*check_vma=False.*over `d`.*jax\.lax\.psum",
    ),
    _forgotten(
        "a forgotten psum, eager",
        "u = mapped(lambda w, x: w - 0.1 * SUM)(make(0, whole, 3), x).block_until_ready();",
        r"`u` .*line 5\).*device 0 ≠ device 1 .*over `d`",
    ),
    _forgotten(
        "partly declared",
        "auto = (jax.sharding.AxisType.Auto,) * 2\n"
        "grid = jax.make_mesh((2, n // 2), ('data', 'model'), axis_types=auto)\n"
        "f = jax.jit(mapped(lambda w, x: x + SUM, grid, P('data'), P('data')))\n"
        "m = jax.lax.axis_index\nu = f(a, x).block_until_ready();",
        r"`u` .*· P\('data'\).*over `model`",
        "lax.psum(1.0 * m('model'), 'model')",
        needs_four=True,
    ),
    _forgotten(
        "a forgotten psum in a pmap",
        "f = jax.pmap(lambda x: SUM, 'd', out_axes=None)\n"
        "p = np.full((jax.local_device_count(), 2), process_index)\nu = f(p)\nfloat(u);",
        r"result of jit\(\S+\).*over `d`",
    ),
    Row(
        "a callback that returns what each process has",
        "results",
        ("f = jax.pure_callback\ns = jax.ShapeDtypeStruct((), np.float32)\n"
         "g = jax.shard_map(lambda x: (x, f(lambda: np.float32(process_index), s)), mesh=mesh,"
         " in_specs=P('d'), out_specs=(P('d'), P()))\nu = jax.jit(g)(a)[1].block_until_ready();",),
        ("f = jax.pure_callback\ns = jax.ShapeDtypeStruct((), np.float32)\n"
         "g = jax.shard_map(lambda x: (x, f(lambda: np.float32(num_processes), s)), mesh=mesh,"
         " in_specs=P('d'), out_specs=(P('d'), P()))\nu = jax.jit(g)(a)[1].block_until_ready();",),
        r"Unequal result in cell .*`u` .*process 0 ≠ process 1 .*calls Python back",
        refused=False,
    ),
)  # fmt: skip

# ---------------------------------------------------------------------- settings

_TOTAL = "f = jax.jit(lambda x: (x * np.arange(1.0 * x.size)).sum()); call = lambda: float(f(a))"
_DRAW = (
    "f = jax.jit(lambda x, k: (x * jax.random.normal(k, x.shape)).sum())\n"
    "call = lambda: float(f(a, jax.random.key(0)))"
)


def _refused(name: str, other: object, usual: object, code: str) -> Row:
    """A setting that process 2 changes, and then computes with the others: another program."""
    change, mend = (f"jax.config.update({name!r}, {value!r})" for value in (other, usual))
    cell = f"{code}\ntry:\n    {{}}{change}\n    call()\nfinally:\n    {mend}"
    return Row(
        f"{name} of one process",
        "settings",
        (cell.format("if process_index == 2: "),),
        (cell.format("if num_processes: "),),
        rf"DivergenceError: .*`{name}` is {usual} on processes 0-1,3, {other} on process 2",
    )


def _told(name: str, other: object, usual: object) -> Row:
    """A setting that process 2 changes, which leaves the programs that run the same."""
    change, mend = (f"jax.config.update({name!r}, {value!r})" for value in (other, usual))
    return Row(
        f"{name} of one process",
        "told",
        (f"if process_index == 2: {change}\nfloat(total(a))", "float(total(a))", mend),
        (f"{change}\nfloat(total(a))", "float(total(a))", mend),
        rf"`{name}` is {usual} on processes 0-1,3, {other} on process 2\..*`%spmd jax\.config",
        refused=False,
    )


_X64 = _refused("jax_enable_x64", True, False, _TOTAL)

# Of one program the process that runs operation by operation makes several.
_DISABLED = """
try:
    if {}: jax.config.update("jax_disable_jit", True)
    float(f(a))
finally:
    jax.config.update("jax_disable_jit", False)
"""
_DISAGREE = r"DivergenceError: The processes do not agree on dispatch"

SETTINGS = (
    _X64,
    queued(_X64),
    _refused("jax_default_prng_impl", "rbg", "threefry2x32", _DRAW),
    _refused("jax_threefry_partitionable", False, True, _DRAW),
    Row(
        "jax_disable_jit of one process",
        "settings",
        (f"{_TOTAL}\n{_DISABLED.format('process_index == 2')}",),
        (f"{_TOTAL}\n{_DISABLED.format('num_processes')}",),
        _DISAGREE,
    ),
    _told("jax_disable_jit", True, False),
    _told("jax_debug_nans", True, False),
    _told("jax_default_matmul_precision", "highest", None),  # not another program on the CPU
)

# ----------------------------------------------- a NaN on one process, with ``--nans``

_HOST = (
    "h = np.full(2 * n, 1, np.float32); h[n + 1] = {}\n"
    "v = jax.make_array_from_callback(h.shape, sharded, lambda index: h[index])\n"
)


def _nan(what: str, unequal: str, twin: str, said: str) -> Row:
    return Row(what, "nan", (unequal,), (twin,), said, refused=False, nans=True)


_MADE = _nan(
    "made in a shard",
    "y = step(a)\nr = jax.jit(lambda x: jnp.sqrt(x - 2 * (jnp.arange(2 * n) == n + 1)))(a)\n"
    "float(total(r))",
    "y = step(a)\nr = jax.jit(lambda x: jnp.sqrt(x - 1 * (jnp.arange(2 * n) == n + 1)))(a)\n"
    "float(total(r))",
    r"The first NaN of cell \[\d+\] came out of jit\(<lambda>\) at line \d+ \(dispatch \d+ over "
    r"processes 0-3\): `r` float32\[16\] at \[9\] on process 2\. No argument had one",
)

NANS = (
    _MADE,
    queued(_MADE),
    _nan(
        "in host data",
        _HOST.format("np.nan") + "float(total(v))",
        _HOST.format("np.inf") + "float(total(v))",
        r"came out of jit\(\w+\) at line 3 .*from argument 1 float32\[16\] at \[9\] on "
        r"process 2",
    ),
    _nan(
        "of one process alone",
        "if process_index == 1: z = jnp.log(jnp.float32(-1))\nfloat(total(a))",
        "if process_index == 1: z = jnp.log(jnp.float32(0))\nfloat(total(a))",
        r"came out of jit\(log\) at line 1 \(of process 1 alone\): `z` float32\[\] on process 1\.",
    ),
)

ROWS: tuple[Row, ...] = (*INPUTS, *PROGRAMS, *REPLICAS, *RESULTS, *SETTINGS, *NANS)
"""All rows."""
