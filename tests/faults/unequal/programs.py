"""Rows: which program was run."""

from __future__ import annotations

from faults.unequal.row import Row, queued


def _row(what: str, code: str, said: str) -> Row:
    """A row whose cell does on process 0 what it does on all others in the twin."""
    unequal = code.replace("ODD", "(process_index == 0)")
    return Row(what, "program", (unequal,), (code.replace("ODD", "False"),), f"(?s){said}")


_CONSTANT = _row(
    "constant",
    "jax.jit(lambda x: (x * (4 if ODD else 3)).sum())(a).block_until_ready();",
    r"They differ in a constant \(f32\[\]\) at line \d+ of cell \[\d+\]: 3 on processes 1-3, 4 on "
    r"process 0\..*-f32\[\] constant\(3\)",
)

ROWS = (
    _CONSTANT,
    queued(_CONSTANT),
    _row(
        "large closed-over array",
        "k = np.sin(np.arange(n << 12)).astype(np.float32)\nk[9] += ODD\n"
        "jax.jit(lambda x: x + k)(make(1, size=n << 12));",
        "They differ in a large constant that they close over.*-large constant, digest",
    ),
    _row(
        "attribute of an FFI call",
        "m = make(1, whole, 16).reshape(4, 4) + jnp.eye(4)\n"
        "solve = jax.scipy.linalg.solve_triangular\n"
        "jax.jit(lambda m: solve(m, m, lower=ODD))(m);",
        r"They differ first at line 3 of cell.*uplo = 76",
    ),
    _row(
        "unit_diagonal",
        "m = make(1, whole, 16).reshape(4, 4) + jnp.eye(4)\n"
        "solve = jax.scipy.linalg.solve_triangular\n"
        "jax.jit(lambda m: solve(m, m, unit_diagonal=ODD))(m);",
        "They differ first at line 3 of cell.*diag = 85",
    ),
    _row(
        "precision",
        "m = make(1, whole, 16).reshape(4, 4)\n"
        "jax.jit(lambda m: jnp.matmul(m, m, precision='highest' if ODD else None))(m);",
        "operands or attributes of `dot`.*highest",
    ),
    _row(
        "compiler_options",
        "jax.jit(lambda x: x * 7, compiler_options={'xla_cpu_enable_fast_math': ODD})(a);",
        "They differ in the compiler_options.*xla_cpu_enable_fast_math=True",
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
        "They differ in which arguments are donated",
    ),
    _row(
        "eager function",
        "(a + 1 if ODD else a * 2);",
        r"processes 1-3: were to dispatch jit\(multiply\)",
    ),
)
