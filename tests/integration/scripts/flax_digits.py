"""Data-parallel training of a CNN with flax and optax, as in flax's own MNIST tutorial.

Digits of 5 × 3 dots stand anywhere in a noisy picture. Each process loads its own rows of a batch.
"""

import sys

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

if "--join" in sys.argv:
    jax.distributed.initialize()

BATCH, SIZE = 32, 8
FONT = ("75557", "26227", "71747", "71717", "55711", "74717", "74757", "71111", "75757", "75717")
mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
rows, everywhere = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())


def picture(rng, digit):
    dots = [[int(line) >> bit & 1 for bit in (2, 1, 0)] for line in FONT[digit]]
    top, left = rng.integers(0, SIZE - 5), rng.integers(0, SIZE - 3)
    found = rng.normal(scale=0.1, size=(SIZE, SIZE, 1))
    found[top : top + 5, left : left + 3, 0] += dots
    return found.astype(np.float32)


def batches(steps):
    """Yields global arrays, of which this process makes its own rows only."""
    count = BATCH // jax.process_count()
    for step in range(steps):
        indices = step * BATCH + jax.process_index() * count + np.arange(count)
        digits = (indices * 7 % 10).astype(np.int32)
        pictures = [
            picture(np.random.default_rng(i), d) for i, d in zip(indices, digits, strict=True)
        ]
        yield tuple(
            jax.make_array_from_process_local_data(rows, each)
            for each in (np.stack(pictures), digits)
        )


class CNN(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(1, 16, kernel_size=(5, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.hidden = nnx.Linear(16 * (SIZE // 2) ** 2, 32, rngs=rngs)
        self.out = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.avg_pool(nnx.relu(self.norm(self.conv(x))), (2, 2), strides=(2, 2))
        x = nnx.relu(self.hidden(self.dropout(x.reshape(len(x), -1))))
        return self.out(x)


def loss_of(model, x, y):
    logits = model(x)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), logits


@nnx.jit
def train_step(model, optimizer, metrics, x, y):
    (loss, logits), grads = nnx.value_and_grad(loss_of, has_aux=True)(model, x, y)
    metrics.update(loss=loss, logits=logits, labels=y)
    optimizer.update(model, grads)


@nnx.jit
def made():
    model = CNN(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.01), wrt=nnx.Param)
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
    state = nnx.state((model, optimizer, metrics))
    nnx.update((model, optimizer, metrics), jax.lax.with_sharding_constraint(state, everywhere))
    return model, optimizer, metrics


model, optimizer, metrics = made()
model.train()
for step, (x, y) in enumerate(batches(steps=40), 1):
    train_step(model, optimizer, metrics, x, y)
    if step % 10 == 0:
        found = metrics.compute()
        print(f"step {step} loss {found['loss']:.3f} accuracy {found['accuracy']:.3f}")
        metrics.reset()
