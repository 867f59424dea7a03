"""Mistakes that are often made in the problems of the scaling book; each gets a hint of its own."""

import jax
import jax.numpy as jnp

# %% shard_mean: rows


def my_means(x):
    return x.reshape(2, 4, 4, 2).mean(axis=(0, 3))


# %% shard_mean: order


def my_means(x):
    return x.reshape(4, 2, 2, 4).mean(axis=(1, 3))[::-1]


# %% roll_in_shards: whole


def my_roll_in_shards(x, mesh):
    return jnp.roll(x, 1, axis=0) - x


# %% moe_local: gathered


def my_moe_local(tokens, routes, weights):
    return jnp.einsum("sd,sdf->sf", tokens, weights[routes])


# %% moe_top1: local


def my_moe(tokens, routes, weights, axis):
    return tokens @ weights[0]


# %% moe_top1: weights


def my_moe(tokens, routes, weights, axis):
    everyone = jax.lax.all_gather(weights, axis, tiled=True)
    return jnp.einsum("sd,sdf->sf", tokens, everyone[routes])


# %% moe_top2: first


def my_moe_top2(tokens, routes, weights, axis):
    everyone = jax.lax.all_gather(tokens, axis, tiled=True)
    mine = jax.lax.all_gather(routes[:, 0], axis, tiled=True) == jax.lax.axis_index(axis)
    out = jnp.where(mine[:, None], everyone, 0) @ weights[0]
    return jax.lax.psum_scatter(out, axis, tiled=True)


# %% moe_top2: sum


def my_moe_top2(tokens, routes, weights, axis):
    everyone = jax.lax.all_gather(tokens, axis, tiled=True)
    mine = (jax.lax.all_gather(routes, axis, tiled=True) == jax.lax.axis_index(axis)).any(1)
    out = jnp.where(mine[:, None], everyone, 0) @ weights[0]
    return jax.lax.psum_scatter(out, axis, tiled=True)


# %% moe_top2: twice


def my_moe_top2(tokens, routes, weights, axis):
    total = 0
    for k in range(2):
        everyone = jax.lax.all_gather(tokens + 0 * k, axis, tiled=True)
        mine = jax.lax.all_gather(routes[:, k], axis, tiled=True) == jax.lax.axis_index(axis)
        out = jnp.where(mine[:, None], everyone, 0) @ weights[0]
        total = total + jax.lax.psum_scatter(out, axis, tiled=True)
    return total / 2


# %% collective_matmul: gather


def my_collective_matmul(x, w, axis):
    return jax.lax.all_gather(x, axis, axis=1, tiled=True) @ w


# %% collective_matmul: rows


def my_collective_matmul(x, w, axis):
    n = jax.lax.axis_size(axis)
    out = 0
    for k in range(n):
        out = out + x @ w[2 * k : 2 * k + 2]
        x = jax.lax.ppermute(x, axis, [(j, (j + 1) % n) for j in range(n)])
    return out


# %% overlapped_scatter: scatter


def my_overlapped_scatter(x, w, axis):
    return jax.lax.psum_scatter(x @ w, axis, scatter_dimension=1, tiled=True)


# %% overlapped_scatter: next


def my_overlapped_scatter(x, w, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)

    def summand(k):
        return x @ jax.lax.dynamic_slice_in_dim(w, 4 * ((me - k) % n), 4, axis=1)

    total = summand(0)
    for k in range(1, n):
        total = jax.lax.ppermute(total, axis, [(j, (j + 1) % n) for j in range(n)])
        total = total + summand(k)
    return total


# %% overlapped_sum: sum


def my_overlapped_sum(x, w, axis):
    return jax.lax.psum(x @ w, axis)


# %% overlapped_sum: rows


def my_overlapped_sum(x, w, axis):
    part = jax.lax.psum_scatter(x @ w, axis, scatter_dimension=1, tiled=True)
    return jax.lax.all_gather(part, axis, tiled=True)


# %% overlapped_mlp: gather


def my_overlapped_mlp(x, w1, w2, axis):
    hidden = jax.nn.relu(jax.lax.all_gather(x, axis, axis=1, tiled=True) @ w1)
    return jax.lax.psum_scatter(hidden @ w2, axis, scatter_dimension=1, tiled=True)


# %% overlapped_mlp: linear


def my_overlapped_mlp(x, w1, w2, axis):
    hidden = jax.lax.all_gather(x, axis, axis=1, tiled=True) @ w1
    return jax.lax.psum_scatter(hidden @ w2, axis, scatter_dimension=1, tiled=True)


# %% both_ways: scatter


def my_both_ways(x, w, axis):
    return jax.lax.psum_scatter(x @ w, axis, scatter_dimension=1, tiled=True)


# %% both_ways: one


def my_both_ways(x, w, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)

    def summand(k):
        return x @ jax.lax.dynamic_slice_in_dim(w, 4 * ((me - 1 - k) % n), 4, axis=1)

    total = summand(0)
    for k in range(1, n):
        total = jax.lax.ppermute(total, axis, [(j, (j + 1) % n) for j in range(n)])
        total = total + summand(k)
    return total


# %% both_ways: backwards


def my_both_ways(x, w, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)

    def one_way(step, first, begin):
        def summand(k):
            return x @ jax.lax.dynamic_slice_in_dim(w, 4 * ((first - step * k) % n) + begin, 2, 1)

        total = summand(0)
        for k in range(1, n):
            total = jax.lax.ppermute(total, axis, [(j, (j + step) % n) for j in range(n)])
            total = total + summand(k)
        return total

    return jnp.concatenate([one_way(1, me - 1, 0), one_way(-1, me + 3, 2)], axis=1)
