"""Solutions to the exercises on collectives. Each part is a `%%spmd` cell of its own."""

import jax
import jax.numpy as jnp

# %% shift


def my_shift(x, axis):
    n = jax.lax.axis_size(axis)
    return jax.lax.ppermute(x, axis, [(j, (j + 1) % n) for j in range(n)])


# %% broadcast


def my_broadcast(x, axis):
    me = jax.lax.axis_index(axis)
    for have in (1, 2, 4):
        received = jax.lax.ppermute(x, axis, [(j, j + have) for j in range(have)])
        x = jnp.where((me >= have) & (me < 2 * have), received, x)
    return x


# %% reduce


def my_reduce(x, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    for k in (1, 2, 4):
        x = x + jax.lax.ppermute(x, axis, [(j + k, j) for j in range(0, n, 2 * k)])
    return jnp.where(me == 0, x, 0)


# %% all_gather


def my_all_gather(x, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    out = jnp.zeros((n, *x.shape), x.dtype).at[me].set(x)
    for k in range(1, n):
        x = jax.lax.ppermute(x, axis, [(j, (j + 1) % n) for j in range(n)])
        out = out.at[(me - k) % n].set(x)
    return out.reshape(-1, *x.shape[1:])


# %% reduce_scatter


def my_reduce_scatter(x, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    total = x[(me - 1) % n]
    for k in range(1, n):
        total = jax.lax.ppermute(total, axis, [(j, (j + 1) % n) for j in range(n)])
        total = total + x[(me - 1 - k) % n]
    return total[None]


# %% all_reduce


def my_all_reduce(x, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    around = [(j, (j + 1) % n) for j in range(n)]
    row = x[(me - 1) % n]
    for k in range(1, n):
        row = jax.lax.ppermute(row, axis, around) + x[(me - 1 - k) % n]
    out = jnp.zeros_like(x).at[me].set(row)
    for k in range(1, n):
        row = jax.lax.ppermute(row, axis, around)
        out = out.at[(me - k) % n].set(row)
    return out


# %% all_to_all


def my_all_to_all(x, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    out = jnp.zeros_like(x).at[me].set(x[me])
    for k in range(1, n):
        row = jax.lax.ppermute(x[(me + k) % n], axis, [(j, (j + k) % n) for j in range(n)])
        out = out.at[(me - k) % n].set(row)
    return out


# %% maximum


def my_max(x, axis):
    n = jax.lax.axis_size(axis)
    for k in (1, 2, 4):
        x = jnp.maximum(x, jax.lax.ppermute(x, axis, [(j, j ^ k) for j in range(n)]))
    return x


# %% prefix_sum


def my_prefix_sum(x, axis):
    n = jax.lax.axis_size(axis)
    for k in (1, 2, 4):
        x = x + jax.lax.ppermute(x, axis, [(j, j + k) for j in range(n - k)])
    return x


# %% roll


def my_roll(x, axis):
    n = jax.lax.axis_size(axis)
    row = jax.lax.ppermute(x[-1:], axis, [(j, (j + 1) % n) for j in range(n)])
    return jnp.concatenate([row, x[:-1]])


# %% halo


def my_halo(x, axis):
    n = jax.lax.axis_size(axis)
    above = jax.lax.ppermute(x[-1:], axis, [(j, j + 1) for j in range(n - 1)])
    below = jax.lax.ppermute(x[:1], axis, [(j + 1, j) for j in range(n - 1)])
    return jnp.concatenate([above, x, below])


# %% ring_matmul


def my_ring_matmul(x, w, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    out = x[:, me][:, None] * w
    for k in range(1, n):
        w = jax.lax.ppermute(w, axis, [(j, (j + 1) % n) for j in range(n)])
        out = out + x[:, (me - k) % n][:, None] * w
    return out


# %% transpose


def my_transpose(x, axis):
    return jax.lax.all_to_all(x.T, axis, 0, 1, tiled=True)
