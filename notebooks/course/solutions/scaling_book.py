"""Solutions to the problems of the scaling book. Each part is a `%%spmd` cell of its own."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

# %% shard_mean


def my_means(x):
    return x.reshape(4, 2, 2, 4).mean(axis=(1, 3))


# %% roll_in_shards


def my_roll_in_shards(x, mesh):
    def of_shard(block):
        return jnp.roll(block, 1, axis=0) - block

    return jax.shard_map(of_shard, mesh=mesh, in_specs=P("i"), out_specs=P("i"))(x)


# %% moe_local


def my_moe_local(tokens, routes, weights):
    def one(out, expert):
        e, w = expert
        return out + jnp.where((routes == e)[:, None], tokens, 0) @ w, None

    out, _ = jax.lax.scan(one, 0 * tokens, (jnp.arange(8), weights))
    return out


# %% moe_top1


def my_moe(tokens, routes, weights, axis):
    me = jax.lax.axis_index(axis)
    everyone = jax.lax.all_gather(tokens, axis, tiled=True)
    mine = jax.lax.all_gather(routes, axis, tiled=True) == me
    out = jnp.where(mine[:, None], everyone, 0) @ weights[0]
    return jax.lax.psum_scatter(out, axis, tiled=True)


# %% moe_top2


def my_moe_top2(tokens, routes, weights, axis):
    me = jax.lax.axis_index(axis)
    everyone = jax.lax.all_gather(tokens, axis, tiled=True)
    mine = (jax.lax.all_gather(routes, axis, tiled=True) == me).any(1)
    out = jnp.where(mine[:, None], everyone, 0) @ weights[0]
    return jax.lax.psum_scatter(out, axis, tiled=True) / 2


# %% collective_matmul


def my_collective_matmul(x, w, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    out = x @ jax.lax.dynamic_slice_in_dim(w, 2 * me, 2)
    for k in range(1, n):
        x = jax.lax.ppermute(x, axis, [(j, (j + 1) % n) for j in range(n)])
        out = out + x @ jax.lax.dynamic_slice_in_dim(w, 2 * ((me - k) % n), 2)
    return out


# %% overlapped_scatter


def my_overlapped_scatter(x, w, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    size = w.shape[1] // n

    def summand(k):
        return x @ jax.lax.dynamic_slice_in_dim(w, size * ((me - 1 - k) % n), size, axis=1)

    total = summand(0)
    for k in range(1, n):
        total = jax.lax.ppermute(total, axis, [(j, (j + 1) % n) for j in range(n)])
        total = total + summand(k)
    return total


# %% overlapped_sum


def my_overlapped_sum(x, w, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    size = w.shape[1] // n

    def summand(k):
        return x @ jax.lax.dynamic_slice_in_dim(w, size * ((me - 1 - k) % n), size, axis=1)

    total = summand(0)
    for k in range(1, n):
        total = jax.lax.ppermute(total, axis, [(j, (j + 1) % n) for j in range(n)])
        total = total + summand(k)
    return jax.lax.all_gather(total, axis, axis=1, tiled=True)


# %% overlapped_mlp


def my_overlapped_mlp(x, w1, w2, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    around = [(j, (j + 1) % n) for j in range(n)]
    size = x.shape[1]

    hidden = x @ jax.lax.dynamic_slice_in_dim(w1, size * me, size)
    for k in range(1, n):
        x = jax.lax.ppermute(x, axis, around)
        hidden = hidden + x @ jax.lax.dynamic_slice_in_dim(w1, size * ((me - k) % n), size)
    hidden = jax.nn.relu(hidden)

    def summand(k):
        columns = jax.lax.dynamic_slice_in_dim(w2, size * ((me - 1 - k) % n), size, axis=1)
        return hidden @ columns

    total = summand(0)
    for k in range(1, n):
        total = jax.lax.ppermute(total, axis, around) + summand(k)
    return total


# %% both_ways


def my_both_ways(x, w, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)

    def one_way(step, begin):
        def summand(k):
            of = (me - step * (1 + k)) % n
            return x @ jax.lax.dynamic_slice_in_dim(w, 4 * of + begin, 2, axis=1)

        total = summand(0)
        for k in range(1, n):
            total = jax.lax.ppermute(total, axis, [(j, (j + step) % n) for j in range(n)])
            total = total + summand(k)
        return total

    return jnp.concatenate([one_way(1, 0), one_way(-1, 2)], axis=1)
