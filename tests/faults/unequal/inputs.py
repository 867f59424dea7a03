"""Rows: which array went in."""

from __future__ import annotations

from faults.unequal.row import Row, queued

_ANOTHER = Row(
    "another array",
    "argument",
    ("float(total(b if process_index else a))",),
    ("float(total(b if num_processes else a))",),
    r"(?s)Argument leaf 0: process 0 passed `a` \(made at line \d+ of cell \[\d+\] by "
    r"make_array_from_callback.*processes 1-3 passed `b` \(made at",
)

_FAILED = (
    "if process_index == 2:\n    raise ValueError('no')\nw = make(30)",
    "float(total(w))",
)

_EXTRA = "if process_index == 0: extra = make(9)\nc = make(1)\nd = make(2)\n"


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


ROWS = (
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
        r"Argument leaf 0: .*Argument leaf 1: ",
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
        "eager operation",
        "argument",
        ("c = (b if process_index else a) * 2",),
        ("c = (b if process_index < 9 else a) * 2",),
        r"process 0 passed `a` .*processes 1-3 passed `b`",
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
        "another array, after one more on one process",
        "argument",
        (_EXTRA + "float(total(d if process_index == 0 else c))",),
        (_EXTRA + "[float(total(c)), float(both({'w': c, 'b': d}))]; c",),
        r"process 0 passed `d` \(made at line \d+ of cell \[\d+\] by make_array_from_callback, "
        r"array 3 .*processes 1-3 passed `c` \(made at line \d+ .* array 1 of its shape",
    ),
    Row(
        "an array made once more on one process",
        "argument",
        ("for i in range(2 if process_index == 0 else 1): c = make(1)\nfloat(total(c))",),
        ("for i in range(2 if num_processes else 1): c = make(1)\nfloat(total(c))",),
        r"process 0 passed `c` .* array 2 .*processes 1-3 passed `c` .* array 1 of its shape and "
        r"dtype there\); if a process made one more there \(a retry, say\), make as many on all",
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
    Row(
        "a leaf of the value of a cell",
        "shown",
        ("{'w': b if process_index else a}",),
        ("{'w': b if num_processes else a}",),
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
        "addressable_data, moved",
        "jax.make_array_from_single_device_arrays(z.shape, z.sharding, "
        "[jax.device_put(z.addressable_data(i), d) for i, d in enumerate(jax.local_devices())])",
    ),
    _of_shards(
        "host_local_array_to_global_array",
        "mh.host_local_array_to_global_array("
        "mh.global_array_to_host_local_array(z, mesh, P('d')), mesh, P('d'))",
    ),
)  # fmt: skip
