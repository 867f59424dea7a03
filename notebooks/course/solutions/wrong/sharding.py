"""Mistakes that are often made in the exercises on sharding; each gets a hint of its own."""

import jax
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


# %% still_matmul: rows

my_still_matmul = P("model")

# %% scattered_matmul: sum


def my_scattered_matmul(x, w, axis):
    whole, me = jax.lax.psum(x @ w, axis), jax.lax.axis_index(axis)
    return jax.lax.dynamic_slice_in_dim(whole, 2 * me, 2)


# %% donate: kept

my_donate = jax.jit(lambda x: x / 2)
