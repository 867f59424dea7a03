"""Rows: which settings the processes have."""

from __future__ import annotations

from faults.unequal.row import Row, queued

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
_WITH = "{}\nwith jax.enable_x64(process_index {}): call()"

# Of one program the process that runs operation by operation makes several.
_DISABLED = """
try:
    if {}: jax.config.update("jax_disable_jit", True)
    float(f(a))
finally:
    jax.config.update("jax_disable_jit", False)
"""
_BLOCK = "{}\nwith jax.disable_jit(process_index {}): float(f(a))"
_DISAGREE = r"DivergenceError: The processes do not agree on dispatch"

ROWS = (
    _X64,
    queued(_X64),
    Row(
        "x64 within a block",
        "settings",
        (_WITH.format(_TOTAL, "== 2"),),
        (_WITH.format(_TOTAL, "< 4"),),
        r"DivergenceError: .*`jax_enable_x64` is False on processes 0-1,3, True on process 2",
    ),
    _refused("jax_default_prng_impl", "rbg", "threefry2x32", _DRAW),
    _refused("jax_threefry_partitionable", False, True, _DRAW),
    Row(
        "jax_disable_jit of one process",
        "settings",
        (f"{_TOTAL}\n{_DISABLED.format('process_index == 2')}",),
        (f"{_TOTAL}\n{_DISABLED.format('num_processes')}",),
        _DISAGREE,
    ),
    Row(
        "jax_disable_jit within a block",
        "settings",
        (_BLOCK.format(_TOTAL, "== 2"),),
        (_BLOCK.format(_TOTAL, "< 4"),),
        _DISAGREE,
    ),
    _told("jax_disable_jit", True, False),
    _told("jax_debug_nans", True, False),
    _told("jax_default_matmul_precision", "highest", None),  # not another program on the CPU
    _told("jax_random_seed_offset", 3, 0),
    _told("jax_numpy_rank_promotion", "raise", "allow"),
)
