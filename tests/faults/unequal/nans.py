"""Rows: a NaN on one process, with ``--nans``."""

from __future__ import annotations

from faults.unequal.row import Row, queued

_HOST = (
    "h = np.full(2 * n, 1, np.float32); h[n + 1] = {}\n"
    "v = jax.make_array_from_callback(h.shape, sharded, lambda index: h[index])\n"
)


def _row(what: str, unequal: str, twin: str, said: str) -> Row:
    return Row(what, "nan", (unequal,), (twin,), said, refused=False, nans=True)


_MADE = _row(
    "made in a shard",
    "y = step(a)\nr = jax.jit(lambda x: jnp.sqrt(x - 2 * (jnp.arange(2 * n) == n + 1)))(a)\n"
    "float(total(r))",
    "y = step(a)\nr = jax.jit(lambda x: jnp.sqrt(x - 1 * (jnp.arange(2 * n) == n + 1)))(a)\n"
    "float(total(r))",
    r"The first NaN of cell \[\d+\] came out of jit\(<lambda>\) at line \d+ \(dispatch \d+ over "
    r"processes 0-3\): `r` float32\[16\] at \[9\] on process 2\. No argument had one",
)

ROWS = (
    _MADE,
    queued(_MADE),
    _row(
        "in host data",
        _HOST.format("np.nan") + "float(total(v))",
        _HOST.format("np.inf") + "float(total(v))",
        r"came out of jit\(\w+\) at line 3 .*from argument leaf 0 float32\[16\] at \[9\] on "
        r"process 2",
    ),
    _row(
        "of one process alone",
        "if process_index == 1: z = jnp.log(jnp.float32(-1))\nfloat(total(a))",
        "if process_index == 1: z = jnp.log(jnp.float32(0))\nfloat(total(a))",
        r"came out of jit\(log\) at line 1 \(of process 1 alone\): `z` float32\[\] on process 1\.",
    ),
)
