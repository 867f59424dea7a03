"""The worked problems of the scaling book's chapter on JAX, problem by problem.

https://jax-ml.github.io/scaling-book/jax-stuff
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxnb.course.exercise import Exercise
from jaxnb.course.tasks.common import GRID, LINE, PUT, mapped, table
from jaxnb.course.verdict import Wrong

SQUARE = table(8, 8)

MEANS = SQUARE.reshape(4, 2, 2, 4).mean((1, 3))

TOKENS, EXPERTS = table(16, 16) / 16, table(8, 256).reshape(8, 16, 16) / 64

ROUTES = np.arange(16) * 5 % 8

SECOND = (ROUTES + 3) % 8

X, W = table(8, 16) / 16, table(16, 32) / 64

PRODUCT = X @ W

RINGS = GRID.replace("(4, 2)", "(2, 4)")

OVERLAPS = "While a sum is on its way, multiply what is to be added to the next one."


def _split_sum(define: str, out: str) -> str:
    """Returns setup with x split by columns and w by rows: each device has a summand of x @ w."""
    return mapped(
        define, out, x=("table(8, 16) / 16", 'None, "i"'), w=("table(16, 32) / 64", '"i"')
    )


def _applied(
    routes: np.ndarray[tuple[int], np.dtype[np.int64]], tokens: np.ndarray[Any, Any] = TOKENS
) -> np.ndarray[Any, Any]:
    """Each token by the weights of its expert."""
    return np.asarray(np.einsum("sd,sdf->sf", tokens, EXPERTS[routes]))


EXERCISES = (
    # Problem 1.
    Exercise(
        name="shard_mean",
        task="Return the mean of each shard of an array split by data and model, without moving "
        "anything.",
        start="def my_means(x):\n    # under jit: x is 8 × 8, mesh 4 × 2; returns (4, 2)\n    ...",
        setup=f'{GRID}{PUT}x = put(table(8, 8), "data", "model")\nf = jax.jit(my_means)\n',
        call="f(x)",
        want=MEANS,
        budget=0,
        wrong=(
            Wrong(
                "rows",
                "Neighbouring rows belong together: `reshape(4, 2, …)` splits eight rows into four "
                "times two, `reshape(2, 4, …)` into two times four.",
                value=SQUARE.reshape(2, 4, 4, 2).mean((0, 3)),
            ),
            Wrong(
                "order",
                "The shards are right, but each device has another one's: shard (i, j) is at "
                "[i, j].",
                value=MEANS[::-1],
            ),
        ),
        hints=(
            "Without `shard_map`, a reshape can name the shards.",
            "`x.reshape(4, 2, 2, 4)` has axes shard, row, shard, column.",
        ),
    ),
    Exercise(
        name="roll_in_shards",
        task="Return `roll(x, 1, axis=0) - x` within each shard.",
        start="def my_roll_in_shards(x, mesh):\n"
        "    # under jit: x is split by rows along i\n    ...",
        setup=f'{LINE}{PUT}x = put(table(32, 2) ** 2, "i")\n'
        "f = jax.jit(lambda x: my_roll_in_shards(x, mesh))\n",
        call="f(x)",
        want=(
            np.roll((table(32, 2) ** 2).reshape(8, 4, 2), 1, 1)
            - (table(32, 2) ** 2).reshape(8, 4, 2)
        ).reshape(32, 2),
        budget=0,
        wrong=(
            Wrong(
                "whole",
                "That rolls the whole array, over the edges of shards, and has to move rows. "
                "In `shard_map` a function sees one shard.",
                value=np.roll(table(32, 2) ** 2, 1, 0) - table(32, 2) ** 2,
            ),
        ),
        hints=("`jax.shard_map(f, mesh=mesh, in_specs=…, out_specs=…)`",),
    ),
    # Problem 2.
    Exercise(
        name="moe_local",
        task="Multiply each of 64 tokens by the weights of its expert on one device, without an "
        "array of 64 × 16 × 16.",
        start="def my_moe_local(tokens, routes, weights):\n"
        "    # shapes (64, 16), (64,) and (8, 16, 16), on each process alone; returns (64, 16)\n"
        "    ...",
        setup="tokens = jnp.arange(64 * 16.0).reshape(64, 16) / 64\n"
        "routes = jnp.arange(64) * 5 % 8\n"
        "weights = jnp.arange(8 * 16 * 16.0).reshape(8, 16, 16) / 64\n"
        "f = jax.jit(my_moe_local)\n",
        call="f(tokens, routes, weights)",
        want=_applied(np.arange(64) * 5 % 8, table(64, 16) / 64),
        tolerance=1e-4,
        own=True,
        memory=50_000,
        wrong=(
            Wrong(
                "gathered",
                "`weights[routes]` is a copy of the weights for each token, 64 × 16 × 16 numbers. "
                "Have each expert multiply its tokens.",
                uses="memory",
            ),
        ),
        hints=(
            "Each expert multiplies all tokens, those of others as 0: 8 arrays of 64 × 16.",
            "`jnp.where((routes == e)[:, None], tokens, 0) @ weights[e]`, summed over e.",
        ),
    ),
    Exercise(
        name="moe_top1",
        task="Multiply each token by the weights of its expert: device e has expert e, and two "
        "tokens.",
        start="def my_moe(tokens, routes, weights, axis):\n"
        "    # shapes on a device: (2, 16), (2,), (1, 16, 16); returns (2, 16)\n    ...",
        setup=mapped(
            "my_moe",
            'P("i")',
            tokens=("table(16, 16) / 16", '"i"'),
            routes=("np.arange(16, dtype=np.int32) * 5 % 8", '"i"'),
            weights=("table(8, 256).reshape(8, 16, 16) / 64", '"i"'),
        ),
        call="f(tokens, routes, weights)",
        want=_applied(ROUTES),
        tolerance=1e-4,
        budget=7 * (128 + 8 + 128),
        wrong=(
            Wrong(
                "local",
                "Each device has used its own expert: a token's expert is `routes[s]`, on another "
                "device.",
                value=_applied(np.arange(16) // 2),
            ),
            Wrong(
                "weights",
                "To gather the weights moves much more than the tokens: tokens go to the experts, "
                "and come back.",
                uses="bytes",
            ),
        ),
        hints=(
            "Gather all tokens and routes; each expert does those that are its own, others as 0.",
            "Then `jax.lax.psum_scatter(…, axis, tiled=True)` brings each token home.",
        ),
    ),
    Exercise(
        name="moe_top2",
        task="Give each token the mean of what its two experts make of it; device e has expert e.",
        start="def my_moe_top2(tokens, routes, weights, axis):\n"
        "    # shapes on a device: (2, 16), (2, 2), (1, 16, 16); returns (2, 16)\n    ...",
        setup=mapped(
            "my_moe_top2",
            'P("i")',
            tokens=("table(16, 16) / 16", '"i"'),
            routes=(
                "(np.arange(16, dtype=np.int32)[:, None] * 5 + np.array([0, 3], np.int32)) % 8",
                '"i"',
            ),
            weights=("table(8, 256).reshape(8, 16, 16) / 64", '"i"'),
        ),
        call="f(tokens, routes, weights)",
        want=(_applied(ROUTES) + _applied(SECOND)) / 2,
        tolerance=1e-4,
        budget=7 * (128 + 16 + 128),
        wrong=(
            Wrong(
                "first",
                "Each token has a second expert: `routes[s, 1]`.",
                value=_applied(ROUTES),
            ),
            Wrong(
                "sum",
                "That is the sum of the two, and the mean is asked for.",
                value=_applied(ROUTES) + _applied(SECOND),
            ),
            Wrong(
                "twice",
                "Tokens travel, once, and weights do not: an expert does all that any of their "
                "routes ask for.",
                uses="bytes",
            ),
        ),
        hints=(
            "As `moe_top1`; a token is an expert's if any of its two routes says so.",
            "`(everyones_routes == me).any(1)`",
        ),
    ),
    # Problem 3; the first is the chapter's example.
    Exercise(
        name="collective_matmul",
        task="Multiply `x`, split by columns, by `w`, split by columns, passing x around while "
        "multiplying.",
        start="def my_collective_matmul(x, w, axis):\n"
        "    # shapes on a device: (8, 2) and (16, 4)\n    ...",
        setup=mapped(
            "my_collective_matmul",
            'P(None, "i")',
            x=("table(8, 16) / 16", 'None, "i"'),
            w=("table(16, 32) / 64", 'None, "i"'),
        ),
        call="f(x, w)",
        want=PRODUCT,
        tolerance=1e-4,
        budget=7 * 64,
        forbidden=("all-gather", "all-reduce", "all-to-all"),
        wrong=(
            Wrong(
                "gather",
                "Nothing overlaps with a gather: multiply what has come while the next part is on "
                "its way, by `ppermute`.",
                uses="all-gather",
            ),
            Wrong(
                "rows",
                "The rows of w that belong to the columns that you have now are those of their "
                "owner, `(me - k) % n`.",
                value=np.concatenate(
                    [
                        sum(
                            X[:, 2 * ((d - k) % 8) :][:, :2]
                            @ W[2 * k : 2 * k + 2, 4 * d : 4 * d + 4]
                            for k in range(8)
                        )
                        for d in range(8)
                    ],
                    axis=1,
                ),
            ),
        ),
        hints=(
            "x @ w is a sum over the parts of x, each times its rows of w.",
            "`jax.lax.dynamic_slice_in_dim(w, 2 * owner, 2)`",
        ),
    ),
    Exercise(
        name="overlapped_scatter",
        task="Multiply x, split by columns, by w, split by rows, into a product split by columns, "
        "passing sums around while multiplying.",
        start="def my_overlapped_scatter(x, w, axis):\n"
        "    # shapes on a device: (8, 2) and (2, 32); returns (8, 4)\n    ...",
        setup=_split_sum("my_overlapped_scatter", 'P(None, "i")'),
        call="f(x, w)",
        want=PRODUCT,
        tolerance=1e-4,
        budget=7 * 128,
        forbidden=("reduce-scatter", "all-reduce", "all-gather", "all-to-all"),
        wrong=(
            Wrong("scatter", OVERLAPS, uses="reduce-scatter"),
            Wrong(
                "next",
                "Each device has its neighbour's columns: with n - 1 passes, the sum that ends "
                "here has begun next door. Begin with the columns of device `me - 1`.",
                value=np.roll(PRODUCT, -4, axis=1),
            ),
        ),
        hints=(
            "Four columns of the product are one sum over all devices: pass it on, add yours.",
            "After k passes, device `me` holds the sum for device `(me - 1 - k) % n`.",
        ),
    ),
    Exercise(
        name="overlapped_sum",
        task="Multiply x, split by columns, by w, split by rows; every device gets the product, "
        "with its sum overlapped.",
        start="def my_overlapped_sum(x, w, axis):\n"
        "    # shapes on a device: (8, 2) and (2, 32); returns (8, 32)\n    ...",
        setup=_split_sum("my_overlapped_sum", 'P("i")'),
        call="f(x, w)",
        want=np.tile(PRODUCT, (8, 1)),
        tolerance=1e-4,
        budget=2 * 7 * 128,
        forbidden=("reduce-scatter", "all-reduce"),
        wrong=(
            Wrong("sum", OVERLAPS, uses="all-reduce"),
            Wrong(
                "rows",
                "The parts are columns of the product: gather along `axis=1`.",
                value=np.tile(np.concatenate(np.split(PRODUCT, 8, axis=1)), (8, 1)),
            ),
        ),
        hints=("An all-reduce is a reduce-scatter, as in `overlapped_scatter`, and a gather.",),
    ),
    Exercise(
        name="overlapped_mlp",
        task="Compute `relu(x @ w1) @ w2` without waiting for a collective: x and the result are "
        "split by columns along model, w1 by columns and w2 by rows.",
        start="def my_overlapped_mlp(x, w1, w2, axis):\n"
        "    # shapes on a device: (2, 2), (8, 4), (4, 8); returns (2, 2)\n"
        "    # 4 devices along the axis\n    ...",
        setup=mapped(
            "my_overlapped_mlp",
            'P("data", "model")',
            mesh=RINGS,
            axis=', "model"',
            x=("table(4, 8, -16) / 16", '"data", "model"'),
            w1=("table(8, 16, -64) / 64", 'None, "model"'),
            w2=("table(16, 8) / 64", '"model"'),
        ),
        call="f(x, w1, w2)",
        want=np.maximum((table(4, 8, -16) / 16) @ (table(8, 16, -64) / 64), 0)
        @ (table(16, 8) / 64),
        tolerance=1e-4,
        budget=2 * 3 * 16,
        forbidden=("reduce-scatter", "all-reduce", "all-gather", "all-to-all"),
        wrong=(
            Wrong(
                "gather",
                "Pass x around for the first product, as in `collective_matmul`, and sums for the "
                "second, as in `overlapped_scatter`.",
                uses="all-gather",
            ),
            Wrong(
                "linear",
                "Between the products is `jax.nn.relu`: of whole sums, not of summands.",
                value=(table(4, 8, -16) / 16) @ (table(8, 16, -64) / 64) @ (table(16, 8) / 64),
            ),
        ),
        hints=("Your two functions of before, one after the other, with other sizes.",),
    ),
    # Problem 4.
    Exercise(
        name="both_ways",
        task="Compute the product of `overlapped_scatter`, passing one half of each sum forwards "
        "and the other backwards, so that a link carries half as much.",
        start="def my_both_ways(x, w, axis):\n"
        "    # shapes on a device: (8, 2) and (2, 32); returns (8, 4)\n    ...",
        setup=_split_sum("my_both_ways", 'P(None, "i")'),
        call="f(x, w)",
        want=PRODUCT,
        tolerance=1e-4,
        budget=7 * 128,
        link=7 * 64,
        forbidden=("reduce-scatter", "all-reduce", "all-gather", "all-to-all"),
        wrong=(
            Wrong("scatter", OVERLAPS, uses="reduce-scatter"),
            Wrong(
                "one",
                "All goes to the same neighbour, and the links back are idle: two sums, of two "
                "columns each, one by `i + 1` and one by `i - 1`.",
                uses="link",
            ),
            Wrong(
                "backwards",
                "The half that goes backwards ends at another device: after k passes, `me` holds "
                "the sum for `(me + 1 + k) % n`.",
                value=np.where(np.arange(32) % 4 < 2, PRODUCT, np.roll(PRODUCT, -8, axis=1)),
            ),
        ),
        hints=("Backwards, the sum for device d begins at device d - 1.",),
    ),
)
