"""Rows: what comes out of an agreed program, declared replicated and not checked."""

from __future__ import annotations

from typing import Any

from faults.unequal.row import Row

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


ROWS = (
    _forgotten(
        "a forgotten psum",
        "f = jax.jit(mapped(lambda w, x: w - 0.1 * SUM))" + _TWENTY,
        r"result of jit\(\S+\), dispatch \d+ of cell \[\d+\], line 7\).* is declared replicated, "
        r"and its bytes differ: device 0 ≠ device 1 .*check_vma=False.*over `d`.*jax\.lax\.psum",
    ),
    _forgotten(
        "a forgotten psum, donated",
        "f = jax.jit(mapped(lambda w, x: w - 0.1 * SUM), donate_argnums=0)" + _TWENTY,
        r"line 7\).*device 0 ≠ device 1 .*over `d`",
    ),
    _forgotten(
        "a forgotten psum, eager",
        "u = mapped(lambda w, x: w - 0.1 * SUM)(make(0, whole, 3), x).block_until_ready();",
        r"`u` .*line 5\).*device 0 ≠ device 1 .*over `d`",
    ),
    _forgotten(
        "a forgotten psum within a larger program",
        "g = mapped(lambda w, x: w * SUM)\n"
        "f = jax.jit(lambda w, x: {'w': w - g(w, x), 'x': x + 1})\n"
        "u = f(make(1, whole, 3), x)['w']\nprint(u.sum() == 0)",
        r"`u` .*device 0 ≠ device 1",
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
