"""Solutions to the exercises on sharding. Each part is a `%%spmd` cell of its own."""

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

# %% grid_mesh

my_mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

# %% two_axes

my_two_axes = P("data", "model")

# %% both_axes

my_both_axes = P(("data", "model"))

# %% columns

my_columns = P(None, "model")

# %% process_rows


def my_array(rows, mesh):
    return jax.make_array_from_process_local_data(NamedSharding(mesh, P("i")), rows)


# %% row_sums


def my_row_sums(x):
    return jax.lax.psum(x.sum(axis=1), "model")


# %% still_matmul

my_still_matmul = P(None, "model")

# %% scattered_matmul


def my_scattered_matmul(x, w, axis):
    return jax.lax.psum_scatter(x @ w, axis, tiled=True)


# %% donate

my_donate = jax.jit(lambda x: x / 2, donate_argnums=0)
