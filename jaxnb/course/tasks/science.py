"""Attention, grids, transforms and old programs over devices."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxnb.course.exercise import Exercise
from jaxnb.course.tasks.common import GRID, LINE, PUT, mapped, table
from jaxnb.course.verdict import Wrong

Array = np.ndarray[Any, Any]

Q, K, V = np.sin(table(16, 4)), np.cos(table(16, 4) * 0.7), np.sin(table(16, 4) * 0.3) * 4
SCORES = Q @ K.T / 2


def _attending(define: str) -> str:
    return mapped(
        define,
        'P("i")',
        q=("np.sin(table(16, 4))", '"i"'),
        k=("np.cos(table(16, 4) * 0.7)", '"i"'),
        v=("np.sin(table(16, 4) * 0.3) * 4", '"i"'),
    )


def _softmax(scores: Array) -> Array:
    exponentials: Array = np.exp(scores - scores.max(-1, keepdims=True))
    sums: Array = exponentials.sum(-1, keepdims=True)
    return np.asarray(exponentials / sums)


def _attention(mask: Array) -> Array:
    return np.asarray(_softmax(np.where(mask, SCORES, -np.inf)) @ V)


CAUSAL = np.tril(np.ones((16, 16), bool))
_DIAGONAL = np.kron(np.eye(8, dtype=bool), np.ones((2, 2), bool))
_IN_BLOCK = np.tile(np.tril(np.ones((2, 2), bool)), (8, 8))
_BY_BLOCK = np.mean(
    [_softmax(np.array(SCORES[:, 2 * b : 2 * b + 2])) @ V[2 * b : 2 * b + 2] for b in range(8)],
    axis=0,
)

_LOGITS = np.array([1.0, 5.0, 2.0, 7.0, 3.0, 6.0], np.float32)
_VALUES = table(6, 2)


def _partial(rows: slice) -> tuple[Array, Array, Array]:
    s: Array = np.asarray(_LOGITS[rows])
    e = np.exp(s - s.max())
    return s.max(), e.sum(), e @ _VALUES[rows]


_A, _B, _AB = _partial(np.s_[:3]), _partial(np.s_[3:]), _partial(np.s_[:])

FIELD = np.sin(table(16, 8) ** 1.3).astype(np.float32) * 3


def _laplacian(u: Array) -> Array:
    """Returns the periodic five-point Laplacian."""
    sums = np.sum([np.roll(u, k, axis) for axis in (0, 1) for k in (1, -1)], axis=0)
    return np.asarray(sums - 4 * u)


def _padded() -> Array:
    return _laplacian(np.pad(FIELD, 1))[1:-1, 1:-1]


def _by_block() -> Array:
    blocks = FIELD.reshape(4, 4, 2, 4).transpose(0, 2, 1, 3)
    each = np.array([[_laplacian(block) for block in row] for row in blocks])
    return each.transpose(0, 2, 1, 3).reshape(16, 8)


RODS = np.sin(table(16, 3) ** 1.2).astype(np.float32) + 1


def _heat(*, stale: bool = False, closed: bool = True, along: int = 1) -> Array:
    """Returns rods after ten steps, rows being neighbours."""
    blocks = RODS.reshape(8, 2, 3).astype(np.float64)
    halos = None
    for _ in range(10):
        if halos is None or not stale:
            above, below = np.roll(blocks[:, -1:], along, 0), np.roll(blocks[:, :1], -along, 0)
            if not closed:
                above[0] = below[-1] = 0
            halos = above, below
        wide = np.concatenate([halos[0], blocks, halos[1]], axis=1)
        blocks = blocks + 0.1 * (wide[:, :-2] + wide[:, 2:] - 2 * blocks)
    return blocks.reshape(16, 3)


WAVES = np.sin(table(16, 16) ** 1.1).astype(np.float32)

NUMBERS = np.array([3.0, -1.0, -7.0, 5.0, -2.0, 8.0, -9.0, -4.0], np.float32)


def _sorted(rounds: int, *, fills: bool = False) -> Array:
    """Returns numbers after rounds of odd-even sort; ``fills``: who has no partner takes 0."""
    x = NUMBERS.copy()
    for r in range(rounds):
        new = x.copy()
        for j in range(r % 2, 7, 2):
            new[j], new[j + 1] = min(x[j], x[j + 1]), max(x[j], x[j + 1])
        if fills and r % 2:
            new[0], new[7] = max(x[0], 0), min(x[7], 0)
        x = new
    return x[:, None]


SCORED = np.sin(table(1, 128)[0] ** 1.4).astype(np.float32)
_TOPS = np.sort(SCORED.reshape(8, 16), axis=1)[:, :-4:-1]
COUNTED = np.arange(32) ** 2 % 8

RATIOS = (table(8, 2) + 1) / (table(8, 2) + 1).sum(0)

FITTED_X, FITTED_Y = table(16, 2) / 16, np.sin(table(16, 1))[:, 0]
_STEPPED = np.array([0.5, -0.25]) - 0.1 * (
    2 * FITTED_X.T @ (FITTED_X @ np.array([0.5, -0.25]) - FITTED_Y) / 16
)

EXERCISES = (
    Exercise(
        name="merge_softmax",
        task="Merge the running maximum, sum and weighted sum of two parts of a softmax.",
        start="def my_merge(a, b):\n"
        "    # a, b: (max(s), sum(exp(s - max)), sum(exp(s - max) * v)) of a part\n    ...",
        setup="""\
s, v = np.array([1.0, 5.0, 2.0, 7.0, 3.0, 6.0], np.float32), np.arange(12, dtype=np.float32)
v = v.reshape(6, 2)
def part(rows):
    e = np.exp(s[rows] - s[rows].max())
    return s[rows].max(), e.sum(), e @ v[rows]
""",
        call="tuple(map(np.asarray, my_merge(part(np.s_[:3]), part(np.s_[3:]))))",
        own=True,
        want=tuple(np.asarray(each, np.float32) for each in _AB),
        wrong=(
            Wrong(
                "unscaled",
                "The sums of a part are relative to its own maximum: scale each by "
                "`exp(max of the part - max of both)`.",
                value=tuple(
                    np.asarray(each, np.float32) for each in (_AB[0], _A[1] + _B[1], _A[2] + _B[2])
                ),
            ),
        ),
        hints=("The new maximum first.", "`np.exp(a[0] - largest) * a[1]`, and so on."),
    ),
    Exercise(
        name="ring_attention",
        task="Compute softmax(q @ k.T / 2) @ v of sharded q, k and v, passing k and v around.",
        start="def my_ring_attention(q, k, v, axis):\n    # each (2, 4) on a device\n    ...",
        setup=_attending("my_ring_attention"),
        call="f(q, k, v)",
        want=_attention(np.ones((16, 16), bool)),
        budget=8 * 64,  # a loop may pass them on a last time
        forbidden=("all-gather", "all-to-all"),
        wrong=(
            Wrong(
                "blocks",
                "That is the mean of softmaxes over blocks. Keep sums of exponentials, and divide "
                "once at the end.",
                value=_BY_BLOCK,
            ),
            Wrong(
                "own",
                "Queries look at the keys of their own device only: pass k and v around.",
                value=_attention(_DIAGONAL),
            ),
        ),
        hints=(
            "For each block that comes: scores, exponentials, and two running sums.",
            "`course.merge_softmax` says how sums with different maxima add.",
        ),
    ),
    Exercise(
        name="causal_attention",
        task="Compute the attention of `ring_attention`, with each row seeing itself and earlier "
        "rows only.",
        start="def my_causal_attention(q, k, v, axis):\n"
        "    # row r of device d is row 2 * d + r\n    ...",
        setup=_attending("my_causal_attention"),
        call="f(q, k, v)",
        want=_attention(CAUSAL),
        budget=8 * 64,  # a loop may pass them on a last time
        forbidden=("all-gather", "all-to-all"),
        wrong=(
            Wrong(
                "local",
                "The mask compares rows within blocks: compare rows of the whole sequence, "
                "`2 * me + row` with `2 * owner + row`.",
                value=_attention(_IN_BLOCK),
            ),
            Wrong(
                "all",
                "Rows see later rows: -inf where the key's row is after the query's.",
                value=_attention(np.ones((16, 16), bool)),
            ),
            Wrong(
                "nan",
                "A row that sees nothing of a block has the maximum -inf there, and -inf - (-inf) "
                "is NaN: begin with the own block, in which each row sees itself, or with a large "
                "negative number in place of -inf.",
                value=np.where(np.arange(16)[:, None] < 14, np.nan, _attention(CAUSAL)),
            ),
        ),
        hints=("After k steps the keys are those of device `(me - k) % n`.",),
    ),
    Exercise(
        name="laplacian",
        task="Apply the five-point Laplacian, periodic, to a field split by rows and columns.",
        start="def my_laplacian(u, rows, columns):\n"
        "    # rows, columns: names of axes; the sum of four neighbours - 4 u\n    ...",
        setup=mapped(
            "my_laplacian",
            'P("data", "model")',
            mesh=GRID,
            axis=', "data", "model"',
            u=("np.sin(table(16, 8) ** 1.3) * 3", '"data", "model"'),
        ),
        call="f(u)",
        want=_laplacian(FIELD),
        tolerance=1e-4,
        budget=4 * 16,
        wrong=(
            Wrong(
                "block",
                "Blocks are closed on themselves: the rows and columns next to an edge are on "
                "other devices.",
                value=_by_block(),
            ),
            Wrong(
                "zeros",
                "The field is periodic: the last device's neighbour is the first.",
                value=_padded(),
            ),
            Wrong("whole", "Send rows and columns at the edges, not blocks.", uses="bytes"),
        ),
        hints=(
            "Four permutes: up and down along rows, left and right along columns.",
            "The row above comes from `u[-1:]` of the device before along rows.",
        ),
    ),
    Exercise(
        name="heat",
        task="Make ten steps u += 0.1 (above + below - 2 u), rows being neighbours, periodic.",
        start="def my_heat(u, axis):\n    # u: (2, 3) on a device\n    ...",
        setup=mapped("my_heat", 'P("i")', u=("np.sin(table(16, 3) ** 1.2) + 1", '"i"')),
        call="f(u)",
        want=_heat(),
        tolerance=1e-4,
        budget=10 * 2 * 12,
        forbidden=("all-gather",),
        wrong=(
            Wrong(
                "stale",
                "The neighbours' rows are those of the beginning: they change in each step.",
                value=_heat(stale=True),
            ),
            Wrong(
                "block",
                "Each block is closed on itself: the rows next to its edges are on other devices.",
                value=_heat(along=0),
            ),
            Wrong(
                "open",
                "Heat is lost at the ends: the last row is the neighbour of the first.",
                value=_heat(closed=False),
            ),
        ),
        hints=("Exchange within the loop.", "`jax.lax.fori_loop(0, 10, step, u)`"),
    ),
    Exercise(
        name="fft2",
        task="Transform rows and columns of a matrix that is split by rows; return it split by "
        "columns.",
        start="def my_fft2(x, axis):\n    # (2, 16) on a device, (16, 2) when it returns\n    ...",
        setup=mapped("my_fft2", 'P(None, "i")', x=("np.sin(table(16, 16) ** 1.1)", '"i"')),
        call="f(x)",
        want=np.fft.fft2(WAVES),
        tolerance=1e-3,
        budget=7 * 16 * 2 * 8 // 8,
        forbidden=("all-gather",),
        wrong=(
            Wrong(
                "rows",
                "The rows are transformed, the columns are not: they are whole after the exchange.",
                value=np.fft.fft(WAVES, axis=1),
            ),
            Wrong(
                "gather",
                "Each device needs two columns, not the matrix: `all_to_all`.",
                uses="all-gather",
            ),
        ),
        hints=(
            "`jnp.fft.fft(x, axis=1)`, an exchange, `jnp.fft.fft(x, axis=0)`.",
            "`jax.lax.all_to_all(x, axis, 1, 0, tiled=True)`",
        ),
    ),
    Exercise(
        name="odd_even_sort",
        task="Sort numbers, one on each device, by exchanges between neighbours.",
        start="def my_sort(x, axis):\n    # x: (1, 1) on a device\n    ...",
        setup=mapped(
            "my_sort",
            'P("i")',
            x=("np.array([[3], [-1], [-7], [5], [-2], [8], [-9], [-4]], np.float32)", '"i"'),
        ),
        call="f(x)",
        want=np.sort(NUMBERS)[:, None],
        budget=8 * 4,
        forbidden=("all-gather", "all-reduce", "all-to-all"),
        wrong=(
            Wrong(
                "rounds",
                "Four rounds do not bring a number from one end to the other: n rounds.",
                value=_sorted(4),
            ),
            Wrong(
                "ends",
                "In odd rounds the first and the last device have no partner, and `ppermute` gives "
                "them 0: they keep what they have.",
                value=_sorted(8, fills=True),
            ),
        ),
        hints=(
            "In even rounds 0-1, 2-3, … exchange, in odd ones 1-2, 3-4, …",
            "The left one keeps the smaller number, the right one the larger.",
        ),
    ),
    Exercise(
        name="top_k",
        task="Return the three largest of sharded numbers, in falling order, on every device.",
        start="def my_top(x, axis):\n    # (16,) on a device; returns (3,)\n    ...",
        setup=mapped("my_top", 'P("i")', x=("np.sin(table(1, 128)[0] ** 1.4)", '"i"')),
        call="f(x)",
        want=np.tile(np.sort(SCORED)[:-4:-1], 8),
        budget=24 * 4 * 7 // 8,
        wrong=(
            Wrong(
                "places",
                "These are the largest of the first ones, of the second ones, of the third ones: "
                "two of the three may be on one device.",
                value=np.tile(_TOPS.max(0), 8),
            ),
            Wrong(
                "gather",
                "Only three of a device's sixteen can be among the three largest of all.",
                uses="bytes",
            ),
        ),
        hints=("`jax.lax.top_k(x, 3)[0]` on each device first.",),
    ),
    Exercise(
        name="histogram",
        task="Count how often each of 0 to 7 occurs in a sharded array.",
        start="def my_counts(x, axis):\n    # x: (4,) on a device; returns (8,)\n    ...",
        setup=mapped("my_counts", "P()", x=("np.arange(32, dtype=np.int32) ** 2 % 8", '"i"')),
        call="f(x)",
        want=np.bincount(COUNTED, minlength=8).astype(np.int32),
        budget=2 * 32 * 7 // 8,
        wrong=(
            Wrong(
                "length",
                "Shapes may not depend on values: `jnp.bincount(x, length=8)`.",
                raises="Concretization|length",
            ),
            Wrong(
                "own",
                "If each device has counted its own numbers, sum over all. What `all_gather` gives "
                "may differ between devices for JAX, and what `psum` gives does not.",
                raises="out_specs",
            ),
        ),
        hints=("`jnp.bincount`, and a sum over devices.",),
    ),
    Exercise(
        name="pmap_ratio",
        task='Rewrite `jax.pmap(lambda x: x / jax.lax.psum(x, "i"), axis_name="i")(x)`, x having '
        "a row for each device.",
        start="def my_ratio(x, mesh):\n    # under jit; x: (8, 2), split by rows\n    ...",
        setup=f'{LINE}{PUT}x = put(table(8, 2) + 1, "i")\n'
        "f = jax.jit(lambda x: my_ratio(x, mesh))\n",
        call="f(x)",
        want=RATIOS,
        budget=2 * 8 * 7 // 8,
        wrong=(
            Wrong(
                "own",
                "Each row was divided by its own sum: `psum` goes over devices, so it sums rows.",
                value=(table(8, 2) + 1) / (table(8, 2) + 1).sum(1, keepdims=True),
            ),
            Wrong(
                "all",
                "`psum` adds what has the same place on each device, columns by themselves.",
                value=(table(8, 2) + 1) / (table(8, 2) + 1).sum(),
            ),
        ),
        hints=("`jax.shard_map` with the same function, or `x.sum(axis=0)` under `jit`.",),
    ),
    Exercise(
        name="pmap_scan",
        task="Rewrite `jax.pmap(jnp.cumsum)(x)`, x having a row for each device.",
        start="def my_scan(x, mesh):\n    # under jit; x: (8, 4), split by rows\n    ...",
        setup=f'{LINE}{PUT}x = put(table(8, 4), "i")\nf = jax.jit(lambda x: my_scan(x, mesh))\n',
        call="f(x)",
        want=np.cumsum(table(8, 4), axis=1),
        budget=0,
        wrong=(
            Wrong(
                "flat",
                "`pmap` takes the first axis away; in `shard_map` a row has the shape (1, 4), and "
                "`cumsum` without an axis flattens it.",
                value=np.cumsum(table(8, 4), axis=1).reshape(32),
            ),
            Wrong(
                "over",
                "That goes on from row to row: each device sums its own row.",
                value=np.cumsum(table(8, 4)).reshape(8, 4),
            ),
        ),
        hints=("What shape has a block in `shard_map`?", "`jnp.cumsum(block, axis=1)`"),
    ),
    Exercise(
        name="pmap_step",
        task="Rewrite a training step of `pmap`: copies of w on all devices, `pmean` of the "
        "gradient, w - 0.1 gradient. Return one w.",
        start="def my_pmap_step(w, x, y):\n"
        "    # under jit; w: (2,), replicated; x, y: split by rows; no mesh needed\n"
        "    # the loss is mean((x @ w - y) ** 2)\n    ...",
        setup=f"""{LINE}{PUT}x = put(table(16, 2) / 16, "i")
y = put(np.sin(table(16, 1))[:, 0], "i")
w = put(np.array([0.5, -0.25], np.float32))
f = jax.jit(my_pmap_step)
""",
        call="f(w, x, y)",
        want=_STEPPED,
        budget=2 * 8 * 7 // 8,
        wrong=(
            Wrong(
                "sum",
                "The loss is a mean over all rows: with a sum the step is 16 times as large.",
                value=np.array([0.5, -0.25]) + 16 * (_STEPPED - np.array([0.5, -0.25])),
            ),
            Wrong(
                "copies",
                "There is one w, on all devices, not an array with a row for each.",
                value=np.tile(_STEPPED, (8, 1)),
            ),
            Wrong(
                "axis",
                "There is no axis i under `jit` alone, and no `pmean` is needed: the array is the "
                "whole one, and its mean goes over all devices.",
                raises="unbound axis",
            ),
        ),
        hints=("Write the step for one device.", "`jax.grad`, and nothing else of JAX."),
    ),
)
