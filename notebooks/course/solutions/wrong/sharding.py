"""Mistakes that are often made in the exercises on sharding; each gets a hint of its own."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

# %% grid_mesh: across

my_mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

# %% grid_mesh: names

my_mesh = jax.make_mesh((4, 2), ("model", "data"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

# %% two_axes: layout

my_two_axes = P("model", "data")

# %% both_axes: layout

my_both_axes = P(("model", "data"))

# %% columns: layout

my_columns = P("model")

# %% process_rows: device_put


def my_array(rows, mesh):
    return jax.device_put(rows, NamedSharding(mesh, P("i")))


# %% row_sums: both


def my_row_sums(x):
    return jax.lax.psum(x.sum(axis=1), ("data", "model"))


# %% row_sums: axis


def my_row_sums(x):
    return jax.lax.psum(x.sum(axis=1), "data")


# %% shard_mean: rows


def my_means(x):
    return x.reshape(2, 4, 4, 2).mean(axis=(0, 3))


# %% shard_mean: order


def my_means(x):
    return x.reshape(4, 2, 2, 4).mean(axis=(1, 3))[::-1]


# %% roll_in_shards: whole


def my_roll_in_shards(x, mesh):
    return jnp.roll(x, 1, axis=0) - x


# %% moe_top1: local


def my_moe(tokens, routes, weights, axis):
    return tokens @ weights[0]


# %% moe_top1: weights


def my_moe(tokens, routes, weights, axis):
    everyone = jax.lax.all_gather(weights, axis, tiled=True)
    return jnp.einsum("sd,sdf->sf", tokens, everyone[routes])


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


# %% still_matmul: rows

my_still_matmul = P("model")

# %% scattered_matmul: sum


def my_scattered_matmul(x, w, axis):
    whole, me = jax.lax.psum(x @ w, axis), jax.lax.axis_index(axis)
    return jax.lax.dynamic_slice_in_dim(whole, 2 * me, 2)


# %% donate: kept

my_donate = jax.jit(lambda x: x / 2)
