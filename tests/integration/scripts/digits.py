"""Data-parallel training on generated digits, with a loader for each process."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

if "--join" in sys.argv:
    jax.distributed.initialize()
mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
rows, everywhere = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
BATCH = 32


def batches():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(10, 64)).astype(np.float32)
    first = jax.process_index() * BATCH // jax.process_count()
    mine = slice(first, first + BATCH // jax.process_count())
    for _ in range(20):
        y = rng.integers(0, 10, BATCH).astype(np.int32)
        x = centres[y] + rng.normal(size=(BATCH, 64)).astype(np.float32)
        yield tuple(jax.make_array_from_process_local_data(rows, each[mine]) for each in (x, y))


def loss_of(weights, x, y):
    logits = jax.nn.relu(x @ weights["a"]) @ weights["b"]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1))


@jax.jit
def step(weights, x, y):
    loss, grads = jax.value_and_grad(loss_of)(weights, x, y)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), loss


def made(rng, *shape):
    value = (rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)
    return jax.make_array_from_callback(shape, everywhere, lambda index: value[index])


rng = np.random.default_rng(1)
weights = {"a": made(rng, 64, 32), "b": made(rng, 32, 10)}
for i, (x, y) in enumerate(batches(), 1):
    weights, loss = step(weights, x, y)
    if i % 5 == 0:
        print(f"step {i} loss {float(loss):.4f}")
