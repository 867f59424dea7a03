"""Mistakes that are often made in the exercises on training; each gets a hint of its own."""

import jax
import jax.numpy as jnp
import numpy as np

# %% mean_gradient: sum


def my_mean_gradient(w, x, y, axis):
    return jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)


# %% mean_gradient: again


def my_mean_gradient(w, x, y, axis):
    own = jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
    return jax.lax.psum(own, axis)


# %% mean_gradient: own


def my_mean_gradient(w, x, y, axis):
    own = jax.lax.pcast(w, axis, to="varying")
    return jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(own)


# %% uneven_mean: means


def my_mean(losses, mask, axis):
    return jax.lax.pmean(jnp.sum(losses * mask) / jnp.maximum(jnp.sum(mask), 1), axis)


# %% uneven_mean: nan


def my_mean(losses, mask, axis):
    return jax.lax.pmean(jnp.sum(losses * mask) / jnp.sum(mask), axis)


# %% uneven_mean: padding


def my_mean(losses, mask, axis):
    return jax.lax.pmean(jnp.mean(losses * mask), axis)


# %% process_keys: equal


def my_key(seed):
    return jax.random.key(seed)


# %% process_keys: sum


def my_key(seed):
    return jax.random.key(seed + jax.process_index())


# %% process_keys: seed


def my_key(seed):
    return jax.random.key(jax.process_index())


# %% pad_batch: full


def my_pad(rows, n):
    missing = n - len(rows) % n
    mask = np.arange(len(rows) + missing) < len(rows)
    return np.pad(rows, ((0, missing), (0, 0))), mask.astype(float)


# %% pad_batch: dropped


def my_pad(rows, n):
    kept = len(rows) // n * n
    return rows[:kept], np.ones(kept)


# %% global_norm: norms


def my_norm(gradient, axis):
    return jax.lax.psum(jnp.linalg.norm(gradient), axis)


# %% global_norm: mean


def my_norm(gradient, axis):
    return jnp.sqrt(jax.lax.pmean(jnp.sum(gradient**2), axis))


# %% accumulate: each


def my_accumulate(w, x, axis):
    def add(total, batch):
        return total + jax.grad(lambda w: jnp.sum(jnp.tanh(batch @ w)))(w), None

    return jax.lax.scan(add, jnp.zeros_like(w), x)[0]


# %% accumulate: own


def my_accumulate(w, x, axis):
    own = jax.lax.pcast(w, axis, to="varying")
    return jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(own)


# %% fsdp_gradient: sum


def my_fsdp_gradient(w, x, axis):
    whole = jax.lax.all_gather(w, axis, tiled=True)
    gradient = jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(whole)
    total, me = jax.lax.psum(gradient, axis), jax.lax.axis_index(axis)
    return jax.lax.dynamic_slice_in_dim(total, 2 * me, 2)


# %% fsdp_gradient: own


def my_fsdp_gradient(w, x, axis):
    whole, me = jax.lax.all_gather(w, axis, tiled=True), jax.lax.axis_index(axis)
    gradient = jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(whole)
    return jax.lax.dynamic_slice_in_dim(gradient, 2 * me, 2)


# %% tensor_mlp: early


def my_mlp(x, w1, w2):
    hidden = jnp.tanh(jax.lax.psum(x @ w1, "model"))
    return jax.lax.psum(hidden @ w2, "model")


# %% tensor_mlp: none


def my_mlp(x, w1, w2):
    return jnp.tanh(x @ w1) @ w2


# %% pipeline: ticks


def my_pipeline(batches, scale, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    received, results = jnp.zeros_like(batches[0]), jnp.zeros_like(batches)
    for tick in range(n):
        first = batches[min(tick, len(batches) - 1)]
        done = jnp.tanh(jnp.where(me == 0, first, received) * scale[0])
        if tick >= n - 1:
            results = results.at[tick - n + 1].set(done)
        received = jax.lax.ppermute(done, axis, [(j, j + 1) for j in range(n - 1)])
    return jnp.where(me == n - 1, results, 0)


# %% pipeline: serial


def my_pipeline(batches, scale, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    results = []
    for batch in batches:
        done = batch
        for stage in range(n):
            done = jnp.where(me == stage, jnp.tanh(done * scale[0]), done)
            done = jax.lax.ppermute(done, axis, [(j, (j + 1) % n) for j in range(n)])
        results.append(jax.lax.ppermute(done, axis, [(0, n - 1)]))
    return jnp.where(me == n - 1, jnp.stack(results), 0)


# %% sharded_argmax: local


def my_argmax(logits, axis):
    largest = logits.max(axis=1)
    is_here = largest == jax.lax.pmax(largest, axis)
    return jax.lax.pmin(jnp.where(is_here, logits.argmax(axis=1), 99), axis)


# %% sharded_argmax: gather


def my_argmax(logits, axis):
    whole = jax.lax.all_gather(logits, axis, axis=1, tiled=True)
    return jax.lax.pmax(whole.argmax(axis=1), axis)


# %% sharded_loss: overflow


def my_loss(logits, labels, axis):
    me, width = jax.lax.axis_index(axis), logits.shape[1]
    total = jax.lax.psum(jnp.exp(logits).sum(axis=1), axis)
    is_label = width * me + jnp.arange(width) == labels[:, None]
    return jnp.log(total) - jax.lax.psum(jnp.where(is_label, logits, 0).sum(axis=1), axis)


# %% sharded_loss: largest


def my_loss(logits, labels, axis):
    me, width = jax.lax.axis_index(axis), logits.shape[1]
    largest = logits.max(axis=1)
    total = jax.lax.psum(jnp.exp(logits - largest[:, None]).sum(axis=1), axis)
    is_label = width * me + jnp.arange(width) == labels[:, None]
    label = jax.lax.psum(jnp.where(is_label, logits, 0).sum(axis=1), axis)
    return jnp.log(total) + jax.lax.pmax(largest, axis) - label


# %% embedding: clipped


def my_lookup(table, words, axis):
    place = jnp.clip(words - 2 * jax.lax.axis_index(axis), 0, 1)
    return jax.lax.psum(table[place], axis)


# %% batch_norm: variances


def my_statistics(x, axis):
    return jax.lax.pmean((x.mean(axis=0), x.var(axis=0)), axis)


# %% batch_norm: own


def my_statistics(x, axis):
    return x.mean(axis=0), x.var(axis=0)
