"""Training over devices: gradients, batches, sharded weights, layers and stages."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxnb.course.exercise import Exercise
from jaxnb.course.tasks.common import GRID, LINE, PUT, mapped, table
from jaxnb.course.verdict import Wrong

Array = np.ndarray[Any, Any]

X = table(16, 2) / 16
Y = np.sin(table(16, 1))[:, 0]
W = np.array([0.5, -0.25], np.float32)
MASK = (np.arange(16) < 11).astype(np.float32)

_DATA = """\
x = put(table(16, 2) / 16, "i")
y = put(np.sin(table(16, 1))[:, 0], "i")
w = np.array([0.5, -0.25], np.float32)
"""


def _gradient(rows: slice | Array = np.s_[:]) -> Array:
    """Returns the gradient of ``mean((x @ w - y) ** 2)`` over some rows."""
    x, y = X[rows], Y[rows]
    return np.asarray(2 * x.T @ (x @ W - y) / len(x))


LOSSES = (X @ W - Y) ** 2
NORMS = np.linalg.norm(X.reshape(8, -1), axis=1)

HIDDEN_X, HIDDEN_W1, HIDDEN_W2 = table(8, 8) / 64, table(8, 4) / 32 - 0.5, table(4, 8) / 32 - 0.5
_HALVES = [HIDDEN_X @ HIDDEN_W1[:, c : c + 2] for c in (0, 2)]
_EARLY = np.tanh(sum(_HALVES))

MICRO = table(4, 3) / 12
SCALES = 1 + table(8, 1)[:, 0] / 8


def _stages(batch: Array) -> Array:
    for scale in SCALES:
        batch = np.tanh(batch * scale)
    return batch


def _keys(of_one: int, of_two: int) -> dict[str, Any]:
    return {"keys of seed 0": of_one, "of seeds 0 and 1": of_two, "same again": True}


def _padded(rows: int, length: int) -> tuple[Array, Array]:
    mask = (np.arange(length) < rows) * 1.0
    return np.repeat(mask.astype(np.float32)[:, None], 2, 1), mask


def _at_last(rows: Array) -> Array:
    return np.concatenate([np.zeros((28, 3), np.float32), rows])


LOGITS = np.sin(table(4, 16) * 1.7).astype(np.float32) * 200
LABELS = np.array([3, 14, 7, 8])
_TOP = LOGITS.max(1)
CROSS = np.log(np.exp(LOGITS - _TOP[:, None]).sum(1)) + _TOP - LOGITS[np.arange(4), LABELS]

EMBEDDINGS = table(16, 4)
WORDS = np.array([15, 0, 7, 8, 2])
_CLIPPED = sum(EMBEDDINGS[2 * d + np.clip(WORDS - 2 * d, 0, 1)] for d in range(8))

BATCH = np.sin(table(16, 3) ** 1.1).astype(np.float32) + table(16, 3) / 10
_BLOCKS = BATCH.reshape(8, 2, 3)

EXERCISES = (
    Exercise(
        name="mean_gradient",
        task="Return the gradient of the mean squared error over all rows, equal on all devices.",
        start="def my_mean_gradient(w, x, y, axis):\n"
        "    # w: (2,) on all; x: (2, 2), y: (2,) on a device\n"
        "    # the loss is mean((x @ w - y) ** 2)\n    ...",
        setup=f"""{LINE}{PUT}{_DATA}f = jax.jit(jax.shard_map(
    lambda w, x, y: my_mean_gradient(w, x, y, "i"), mesh=mesh,
    in_specs=(P(), P("i"), P("i")), out_specs=P()))
""",
        call="f(w, x, y)",
        want=_gradient(),
        wrong=(
            Wrong(
                "sum",
                "It is eight times too large. w is the same on all devices, so `jax.grad` in "
                "`shard_map` has summed the gradients of all already: divide by n.",
                value=8 * _gradient(),
            ),
            Wrong(
                "again",
                "It is 64 times too large: `jax.grad` in `shard_map` sums the gradient of an "
                "argument that is the same on all devices by itself, and you have summed again.",
                value=64 * _gradient(),
            ),
            Wrong(
                "own",
                "For JAX, devices may have different gradients, and `out_specs=P()` says that they "
                "are equal: `pmean` over the axis. What `all_gather` gives may differ for JAX.",
                raises="out_specs",
            ),
        ),
        hints=(
            "Differentiate the loss of all rows: it has a `jax.lax.pmean` in it.",
            "`jax.grad(lambda w: jax.lax.pmean(loss_of_own_rows(w), axis))(w)`",
        ),
    ),
    Exercise(
        name="uneven_mean",
        task="Return the mean of the losses whose mask is 1, over all devices: some have fewer.",
        start="def my_mean(losses, mask, axis):\n    # each (2,) on a device\n    ...",
        setup=mapped(
            "my_mean",
            "P()",
            losses=("((table(16, 1) / 4) ** 2)[:, 0]", '"i"'),
            mask=("(np.arange(16) < 11).astype(np.float32)", '"i"'),
        ),
        call="f(losses, mask)",
        want=np.mean(((table(16, 1) / 4) ** 2)[:11, 0]),
        budget=2 * 8 * 7 // 8,
        wrong=(
            Wrong(
                "means",
                "A mean of means weighs rows more on devices that have few. Sum the losses and the "
                "mask over all, then divide.",
                value=np.mean(
                    ((table(16, 1) / 4) ** 2 * MASK[:, None]).reshape(8, 2).sum(1)
                    / np.maximum(MASK.reshape(8, 2).sum(1), 1)
                ),
            ),
            Wrong(
                "nan",
                "A device without rows divides 0 by 0. Nor is a mean of means right: sum the "
                "losses and the mask over all, then divide.",
                value=np.float32(np.nan),
            ),
            Wrong(
                "padding",
                "The padding counts too: divide by the number of rows whose mask is 1.",
                value=((table(16, 1) / 4) ** 2)[:11, 0].sum() / 16,
            ),
        ),
        hints=("Two sums over all devices.", "`jax.lax.psum` of the losses, and of the mask."),
    ),
    Exercise(
        name="process_keys",
        task="Make a PRNG key of a seed that differs on each process, by the process's index.",
        start="def my_key(seed):\n    ...",
        setup="from jax.experimental import multihost_utils\n"
        "def data(key):\n"
        "    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)\n"
        "    return np.asarray(jax.random.key_data(key) if typed else key)\n"
        "def distinct(*seeds):\n"
        "    keys = np.stack([data(my_key(seed)) for seed in seeds])\n"
        "    gathered = np.asarray(multihost_utils.process_allgather(keys))\n"
        "    return len({bytes(key) for of_process in gathered for key in of_process})\n"
        "same = np.array_equal(data(my_key(0)), data(my_key(0)))\n",
        call="{'keys of seed 0': distinct(0), 'of seeds 0 and 1': distinct(0, 1), "
        "'same again': same}",
        own=True,
        processes=4,
        want=_keys(4, 8),
        wrong=(
            Wrong(
                "equal",
                "All processes have the same key: they would drop the same units and draw the "
                "same samples. `jax.random.fold_in(key, process_index)`.",
                value=_keys(1, 2),
            ),
            Wrong(
                "seed",
                "The seed makes no difference: fold the index into the key of the seed.",
                value=_keys(4, 4),
            ),
            Wrong(
                "sum",
                "Seed 0 on process 1 has the key of seed 1 on process 0: a sum of both says "
                "neither. `jax.random.fold_in(key, process_index)`.",
                value=_keys(4, 5),
            ),
        ),
        hints=("`jax.random.key(seed)`, and something with `process_index`.",),
    ),
    Exercise(
        name="pad_batch",
        task="Pad rows with zeros until n divides their number; return them and a mask.",
        start="def my_pad(rows, n):\n    # the mask is 1.0 for a row, 0.0 for padding\n    ...",
        setup="",
        call="{f'{k} rows': my_pad(np.ones((k, 2), np.float32), 8) for k in (10, 8)}",
        own=True,
        want={"10 rows": _padded(10, 16), "8 rows": _padded(8, 8)},
        wrong=(
            Wrong(
                "full",
                "When n divides the number of rows, nothing is to be added: `-len(rows) % n`.",
                value={"10 rows": _padded(10, 16), "8 rows": _padded(8, 16)},
            ),
            Wrong(
                "dropped",
                "The last rows are gone: they are to be kept, and others added.",
                value={"10 rows": _padded(8, 8), "8 rows": _padded(8, 8)},
            ),
        ),
        hints=("`-len(rows) % n` rows are missing.", "`np.pad(rows, ((0, missing), (0, 0)))`"),
    ),
    Exercise(
        name="global_norm",
        task="Return the Euclidean norm of a gradient of which each device has a part.",
        start="def my_norm(gradient, axis):\n    # (2, 2) on a device\n    ...",
        setup=mapped("my_norm", "P()", gradient=("table(16, 2) / 16", '"i"')),
        call="f(gradient)",
        want=np.linalg.norm(X),
        budget=2 * 4 * 7 // 8,
        wrong=(
            Wrong(
                "norms",
                "Norms do not add, their squares do: the root comes last.",
                value=NORMS.sum(),
            ),
            Wrong(
                "mean",
                "Squares are summed over all, not averaged.",
                value=np.sqrt((NORMS**2).mean()),
            ),
        ),
        hints=("The squares of all elements are summed over all devices.",),
    ),
    Exercise(
        name="accumulate",
        task="Sum the gradients of four microbatches on each device, and of all devices, with one "
        "all-reduce.",
        start="def my_accumulate(w, x, axis):\n"
        "    # x: (4, 2, 16); the loss of a microbatch is sum(tanh(x[m] @ w))\n    ...",
        setup=f"""{LINE}{PUT}x = put(np.sin(table(32, 32)).reshape(32, 2, 16), "i")
w = np.cos(table(16, 1))[:, 0]
f = jax.jit(jax.shard_map(
    lambda w, x: my_accumulate(w, x, "i"), mesh=mesh, in_specs=(P(), P("i")), out_specs=P()))
""",
        call="f(w, x)",
        want=np.einsum(
            "mbd,mb->d",
            np.sin(table(32, 32)).reshape(32, 2, 16),
            1 - np.tanh(np.sin(table(32, 32)).reshape(32, 2, 16) @ np.cos(table(16, 1))[:, 0]) ** 2,
        ),
        tolerance=1e-4,
        budget=2 * 64 * 7 // 8,
        wrong=(
            Wrong(
                "each",
                "Each turn of the loop sums over all devices, as w is the same on all. Make a copy "
                'that may differ before the loop (`jax.lax.pcast(w, axis, to="varying")`), and sum '
                "once after it.",
                uses="bytes",
            ),
            Wrong(
                "own",
                "Sum over the devices as well: `out_specs=P()` says that all have the same.",
                raises="out_specs",
            ),
        ),
        hints=(
            "`jax.lax.scan` over the microbatches adds up this device's gradients.",
            "The gradient of an argument that is the same on all devices is summed over all, in "
            "each call of `jax.grad`.",
        ),
    ),
    Exercise(
        name="fsdp_gradient",
        task="Gather w to use it, and return the gradient of the sum over all devices of "
        "`tanh(x @ w)`, of the rows of w that the device has.",
        start="def my_fsdp_gradient(w, x, axis):\n"
        "    # shapes on a device: (2, 4) and (1, 16)\n    ...",
        setup=mapped(
            "my_fsdp_gradient",
            'P("i")',
            w=("np.cos(table(16, 4))", '"i"'),
            x=("np.sin(table(8, 16))", '"i"'),
        ),
        call="f(w, x)",
        want=np.sin(table(8, 16)).T
        @ (1 - np.tanh(np.sin(table(8, 16)) @ np.cos(table(16, 4))) ** 2),
        tolerance=1e-4,
        budget=2 * 7 * 32,
        wrong=(
            Wrong(
                "sum",
                "The gradient is summed whole on all devices, and an eighth of it is kept. "
                "Differentiate through the gather: its transpose is a reduce-scatter.",
                uses="bytes",
            ),
            Wrong(
                "own",
                "This is the gradient of the device's own rows of x only: what is missing is the "
                "sum over devices that the transpose of `all_gather` does.",
                value=np.concatenate(
                    [
                        np.outer(
                            np.sin(table(8, 16))[d, 2 * d : 2 * d + 2],
                            1 - np.tanh(np.sin(table(8, 16))[d] @ np.cos(table(16, 4))) ** 2,
                        )
                        for d in range(8)
                    ]
                ),
            ),
        ),
        hints=(
            "`jax.lax.all_gather(w, axis, tiled=True)` within the function that is differentiated.",
        ),
    ),
    Exercise(
        name="tensor_mlp",
        task="Compute `tanh(x @ w1) @ w2` with w1 split by columns and w2 by rows along model.",
        start="def my_mlp(x, w1, w2):\n    # (2, 8), (8, 2), (2, 8) on a device\n    ...",
        setup=mapped(
            "my_mlp",
            'P("data")',
            mesh=GRID,
            axis="",
            x=("table(8, 8) / 64", '"data"'),
            w1=("table(8, 4) / 32 - 0.5", 'None, "model"'),
            w2=("table(4, 8) / 32 - 0.5", '"model"'),
        ),
        call="f(x, w1, w2)",
        want=np.tanh(HIDDEN_X @ HIDDEN_W1) @ HIDDEN_W2,
        budget=64,
        wrong=(
            Wrong(
                "early",
                "The hidden layers of two devices were summed: they are different columns. Sum "
                "after the second product, whose summands they have.",
                value=_EARLY @ HIDDEN_W2[:2] + _EARLY @ HIDDEN_W2[2:],
            ),
            Wrong(
                "none",
                "Each device has a summand only: `jax.lax.psum` over model.",
                raises="out_specs",
            ),
        ),
        hints=("One collective, at the end.",),
    ),
    Exercise(
        name="pipeline",
        task="Send four microbatches through eight stages: device d is stage d; the last one "
        "returns the results, the others zeros.",
        start="def my_pipeline(batches, scale, axis):\n"
        "    # batches: (4, 3) on all devices; a stage is tanh(batch * scale[0])\n    ...",
        setup=f"""{LINE}{PUT}batches = table(4, 3) / 12
scale = put(1 + table(8, 1)[:, 0] / 8, "i")
f = jax.jit(jax.shard_map(
    lambda b, s: my_pipeline(b, s, "i"), mesh=mesh, in_specs=(P(), P("i")), out_specs=P("i")))
""",
        call="f(batches, scale)",
        want=_at_last(_stages(MICRO)),
        tolerance=1e-4,
        budget=10 * 12,
        wrong=(
            Wrong(
                "ticks",
                "The last microbatches are missing: it takes 4 + 8 - 1 ticks.",
                value=_at_last(np.concatenate([_stages(MICRO)[:1], np.zeros((3, 3), np.float32)])),
            ),
            Wrong(
                "serial",
                "One microbatch after the other: 4 × 8 ticks. At each tick all stages work, each "
                "on another microbatch.",
                uses="bytes",
            ),
        ),
        hints=(
            "At tick t, stage d works on microbatch t - d. There are 4 + 8 - 1 ticks.",
            "Stage 0 takes `batches[t]`, the others what has come by `ppermute`.",
            "The last stage's result at tick t is that of microbatch t - 7.",
        ),
    ),
    Exercise(
        name="sharded_argmax",
        task="Return the index of the largest logit of each row; columns are split.",
        start="def my_argmax(logits, axis):\n    # logits: (4, 2) on a device\n    ...",
        setup=mapped("my_argmax", "P()", logits=("np.sin(table(4, 16) * 1.7) * 200", 'None, "i"')),
        call="f(logits)",
        want=LOGITS.argmax(1).astype(np.int32),
        budget=2 * 2 * 16 * 7 // 8,
        wrong=(
            Wrong(
                "local",
                "These are indices within a device's columns: add `2 * me`.",
                value=(LOGITS.argmax(1) % 2).astype(np.int32),
            ),
            Wrong(
                "gather",
                "All logits were gathered. The largest one of each device, and its index, is "
                "enough.",
                uses="bytes",
            ),
        ),
        hints=(
            "First `jax.lax.pmax` of the largest logits.",
            "Where a device has that one, its index, elsewhere a large number: `jax.lax.pmin`.",
        ),
    ),
    Exercise(
        name="sharded_loss",
        task="Return each row's cross entropy, `logsumexp(logits) - logits[label]`; columns are "
        "split.",
        start="def my_loss(logits, labels, axis):\n    # (4, 2) and (4,) on a device\n    ...",
        setup=f"""{LINE}{PUT}logits = put((np.sin(table(4, 16) * 1.7) * 200), None, "i")
labels = np.array([3, 14, 7, 8])
f = jax.jit(jax.shard_map(
    lambda x, y: my_loss(x, y, "i"), mesh=mesh, in_specs=(P(None, "i"), P()), out_specs=P()))
""",
        call="f(logits, labels)",
        want=CROSS,
        tolerance=1e-3,
        forbidden=("all-gather",),
        wrong=(
            Wrong(
                "overflow",
                "`exp` of a large logit is infinite: subtract the largest one of all devices "
                "first (`jax.lax.pmax`), and add it at the end.",
                value=np.where(_TOP > 88.7, np.inf, CROSS),
            ),
            Wrong(
                "largest",
                "Each device subtracts its own largest logit: their sums cannot be added then. "
                "Take the largest of all.",
                value=np.log(
                    np.exp(
                        LOGITS.reshape(4, 8, 2) - LOGITS.reshape(4, 8, 2).max(2, keepdims=True)
                    ).sum((1, 2))
                )
                + _TOP
                - LOGITS[np.arange(4), LABELS],
            ),
        ),
        hints=(
            "A `pmax`, and two `psum`s: of the exponentials, and of the label's logit.",
            "The label's logit is on one device; the others add 0.",
        ),
    ),
    Exercise(
        name="embedding",
        task="Look words up in a table whose rows are split: each device has two of sixteen.",
        start="def my_lookup(table, words, axis):\n    # (2, 4) and (5,) on a device\n    ...",
        setup=f"""{LINE}{PUT}embeddings = put(table(16, 4), "i")
words = np.array([15, 0, 7, 8, 2])
f = jax.jit(jax.shard_map(
    lambda t, w: my_lookup(t, w, "i"), mesh=mesh, in_specs=(P("i"), P()), out_specs=P()))
""",
        call="f(embeddings, words)",
        want=EMBEDDINGS[WORDS],
        forbidden=("all-gather",),
        wrong=(
            Wrong(
                "clipped",
                "A word that a device does not have must add 0: JAX takes the nearest row where an "
                "index is outside.",
                value=_CLIPPED,
            ),
        ),
        hints=(
            "`words - 2 * me` is the place in the device's rows, if it is 0 or 1.",
            "`jax.lax.psum(jnp.where(is_mine[:, None], …, 0), axis)`",
        ),
    ),
    Exercise(
        name="batch_norm",
        task="Return mean and variance of each column over the rows of all devices.",
        start="def my_statistics(x, axis):\n    # returns (mean, variance)\n    ...",
        setup=mapped(
            "my_statistics",
            "P()",
            x=("np.sin(table(16, 3) ** 1.1) + table(16, 3) / 10", '"i"'),
        ),
        call="f(x)",
        want=(BATCH.mean(0), BATCH.var(0)),
        tolerance=1e-4,
        wrong=(
            Wrong(
                "variances",
                "The mean of the devices' variances leaves out how far their means are apart: "
                "squares are taken from the mean of all.",
                value=(BATCH.mean(0), _BLOCKS.var(1).mean(0)),
            ),
            Wrong(
                "own",
                "For JAX, devices may have different results, and `out_specs=P()` says that they "
                "are equal: `pmean` over the axis. What `all_gather` gives may differ for JAX.",
                raises="out_specs",
            ),
        ),
        hints=("First the mean of all rows; then the mean of the squares of the differences.",),
    ),
)
