"""Mistakes that are often made in the exercises on collectives; each gets a hint of its own."""

import jax
import jax.numpy as jnp

# %% shift: direction


def my_shift(x, axis):
    n = jax.lax.axis_size(axis)
    return jax.lax.ppermute(x, axis, [((j + 1) % n, j) for j in range(n)])


# %% shift: ends


def my_shift(x, axis):
    n = jax.lax.axis_size(axis)
    return jax.lax.ppermute(x, axis, [(j, j + 1) for j in range(n - 1)])


# %% broadcast: zeros


def my_broadcast(x, axis):
    for have in (1, 2, 4):
        x = jax.lax.ppermute(x, axis, [(j, j + have) for j in range(have)])
    return x


# %% broadcast: chain


def my_broadcast(x, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    for j in range(n - 1):
        x = jnp.where(me == j + 1, jax.lax.ppermute(x, axis, [(j, j + 1)]), x)
    return x


# %% reduce: left


def my_reduce(x, axis):
    n = jax.lax.axis_size(axis)
    for k in (1, 2, 4):
        x = x + jax.lax.ppermute(x, axis, [(j + k, j) for j in range(0, n, 2 * k)])
    return x


# %% reduce: chain


def my_reduce(x, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    for j in reversed(range(1, n)):
        x = x + jax.lax.ppermute(x, axis, [(j, j - 1)])
    return jnp.where(me == 0, x, 0)


# %% all_gather: order


def my_all_gather(x, axis):
    n = jax.lax.axis_size(axis)
    blocks = [x]
    for _ in range(1, n):
        blocks.append(jax.lax.ppermute(blocks[-1], axis, [(j, (j + 1) % n) for j in range(n)]))
    return jnp.concatenate(blocks)


# %% all_gather: backwards


def my_all_gather(x, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    out = jnp.zeros((n, *x.shape), x.dtype).at[me].set(x)
    for k in range(1, n):
        x = jax.lax.ppermute(x, axis, [(j, (j + 1) % n) for j in range(n)])
        out = out.at[(me + k) % n].set(x)
    return out.reshape(-1, *x.shape[1:])


# %% all_gather: whole


def my_all_gather(x, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    out = jnp.zeros((n, *x.shape), x.dtype).at[me].set(x)
    for _ in range(1, n):
        received = jax.lax.ppermute(out, axis, [(j, (j + 1) % n) for j in range(n)])
        out = jnp.maximum(out, received)
    return out.reshape(-1, *x.shape[1:])


# %% reduce_scatter: shifted


def my_reduce_scatter(x, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    total = x[me]
    for k in range(1, n):
        total = jax.lax.ppermute(total, axis, [(j, (j + 1) % n) for j in range(n)])
        total = total + x[(me - k) % n]
    return total[None]


# %% reduce_scatter: whole


def my_reduce_scatter(x, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    total = passed = x
    for _ in range(1, n):
        passed = jax.lax.ppermute(passed, axis, [(j, (j + 1) % n) for j in range(n)])
        total = total + passed
    return total[me][None]


# %% all_reduce: twice


def my_all_reduce(x, axis):
    n = jax.lax.axis_size(axis)
    total = passed = x
    for _ in range(n):
        passed = jax.lax.ppermute(passed, axis, [(j, (j + 1) % n) for j in range(n)])
        total = total + passed
    return total


# %% all_reduce: whole


def my_all_reduce(x, axis):
    n = jax.lax.axis_size(axis)
    total = passed = x
    for _ in range(1, n):
        passed = jax.lax.ppermute(passed, axis, [(j, (j + 1) % n) for j in range(n)])
        total = total + passed
    return total


# %% all_to_all: place


def my_all_to_all(x, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    out = jnp.zeros_like(x).at[me].set(x[me])
    for k in range(1, n):
        row = jax.lax.ppermute(x[(me + k) % n], axis, [(j, (j + k) % n) for j in range(n)])
        out = out.at[(me + k) % n].set(row)
    return out


# %% all_to_all: whole


def my_all_to_all(x, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    out, block = jnp.zeros_like(x).at[me].set(x[me]), x
    for k in range(1, n):
        block = jax.lax.ppermute(block, axis, [(j, (j + 1) % n) for j in range(n)])
        out = out.at[(me - k) % n].set(block[me])
    return out


# %% maximum: neighbours


def my_max(x, axis):
    n = jax.lax.axis_size(axis)
    for _ in range(3):
        x = jnp.maximum(x, jax.lax.ppermute(x, axis, [(j, (j + 1) % n) for j in range(n)]))
    return x


# %% maximum: ring


def my_max(x, axis):
    n = jax.lax.axis_size(axis)
    for _ in range(n - 1):
        x = jnp.maximum(x, jax.lax.ppermute(x, axis, [(j, (j + 1) % n) for j in range(n)]))
    return x


# %% prefix_sum: before


def my_prefix_sum(x, axis):
    n, own = jax.lax.axis_size(axis), x
    for k in (1, 2, 4):
        x = x + jax.lax.ppermute(x, axis, [(j, j + k) for j in range(n - k)])
    return x - own


# %% prefix_sum: closed


def my_prefix_sum(x, axis):
    n = jax.lax.axis_size(axis)
    for k in (1, 2, 4):
        x = x + jax.lax.ppermute(x, axis, [(j, (j + k) % n) for j in range(n)])
    return x


# %% prefix_sum: ring


def my_prefix_sum(x, axis):
    n, passed = jax.lax.axis_size(axis), x
    for _ in range(n - 1):
        passed = jax.lax.ppermute(passed, axis, [(j, j + 1) for j in range(n - 1)])
        x = x + passed
    return x


# %% roll: blocks


def my_roll(x, axis):
    return jnp.roll(x, 1, axis=0)


# %% roll: whole


def my_roll(x, axis):
    n = jax.lax.axis_size(axis)
    before = jax.lax.ppermute(x, axis, [(j, (j + 1) % n) for j in range(n)])
    return jnp.concatenate([before[-1:], x[:-1]])


# %% halo: swapped


def my_halo(x, axis):
    n = jax.lax.axis_size(axis)
    above = jax.lax.ppermute(x[-1:], axis, [(j, j + 1) for j in range(n - 1)])
    below = jax.lax.ppermute(x[:1], axis, [(j + 1, j) for j in range(n - 1)])
    return jnp.concatenate([below, x, above])


# %% halo: periodic


def my_halo(x, axis):
    n = jax.lax.axis_size(axis)
    above = jax.lax.ppermute(x[-1:], axis, [(j, (j + 1) % n) for j in range(n)])
    below = jax.lax.ppermute(x[:1], axis, [((j + 1) % n, j) for j in range(n)])
    return jnp.concatenate([above, x, below])


# %% halo: whole


def my_halo(x, axis):
    n = jax.lax.axis_size(axis)
    above = jax.lax.ppermute(x, axis, [(j, j + 1) for j in range(n - 1)])
    below = jax.lax.ppermute(x, axis, [(j + 1, j) for j in range(n - 1)])
    return jnp.concatenate([above[-1:], x, below[:1]])


# %% ring_matmul: column


def my_ring_matmul(x, w, axis):
    n = jax.lax.axis_size(axis)
    out = 0
    for k in range(n):
        out = out + x[:, k][:, None] * w
        w = jax.lax.ppermute(w, axis, [(j, (j + 1) % n) for j in range(n)])
    return out


# %% ring_matmul: direction


def my_ring_matmul(x, w, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    out = 0
    for k in range(n):
        out = out + x[:, (me + k) % n][:, None] * w
        w = jax.lax.ppermute(w, axis, [(j, (j + 1) % n) for j in range(n)])
    return out


# %% transpose: blocks


def my_transpose(x, axis):
    rows = jax.lax.all_to_all(x, axis, 1, 0, tiled=True)
    return rows.reshape(8, 2, 2).transpose(1, 0, 2).reshape(2, 16)


# %% transpose: inside


def my_transpose(x, axis):
    return x.reshape(2, 8, 2).transpose(2, 1, 0).reshape(2, 16)


# %% transpose: gather


def my_transpose(x, axis):
    whole, me = jax.lax.all_gather(x, axis, tiled=True), jax.lax.axis_index(axis)
    return jax.lax.dynamic_slice_in_dim(whole.T, 2 * me, 2)
