"""Mistakes that are often made in the exercises on attention, grids, transforms and `pmap`."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

# %% merge_softmax: unscaled


def my_merge(a, b):
    return jnp.maximum(a[0], b[0]), a[1] + b[1], a[2] + b[2]


# %% ring_attention: blocks


def my_ring_attention(q, k, v, axis):
    n, out = jax.lax.axis_size(axis), 0
    for _ in range(n):
        out = out + jax.nn.softmax(q @ k.T / 2, axis=1) @ v / n
        k, v = jax.lax.ppermute((k, v), axis, [(j, (j + 1) % n) for j in range(n)])
    return out


# %% ring_attention: own


def my_ring_attention(q, k, v, axis):
    return jax.nn.softmax(q @ k.T / 2, axis=1) @ v


# %% causal_attention: local


def my_causal_attention(q, k, v, axis):
    n, total, out = jax.lax.axis_size(axis), 0, 0
    sees = jnp.tril(jnp.ones((2, 2), bool))
    for _ in range(n):
        weights = jnp.where(sees, jnp.exp(q @ k.T / 2), 0)
        total, out = total + weights.sum(axis=1, keepdims=True), out + weights @ v
        k, v = jax.lax.ppermute((k, v), axis, [(j, (j + 1) % n) for j in range(n)])
    return out / total


# %% causal_attention: all


def my_causal_attention(q, k, v, axis):
    n, total, out = jax.lax.axis_size(axis), 0, 0
    for _ in range(n):
        weights = jnp.exp(q @ k.T / 2)
        total, out = total + weights.sum(axis=1, keepdims=True), out + weights @ v
        k, v = jax.lax.ppermute((k, v), axis, [(j, (j + 1) % n) for j in range(n)])
    return out / total


# %% causal_attention: nan


def my_causal_attention(q, k, v, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    around, rows, total, out = [(j, (j + 1) % n) for j in range(n)], jnp.arange(2), 0, 0
    for step in range(n):
        owner = (me - step) % n
        sees = (2 * me + rows)[:, None] >= (2 * owner + rows)[None, :]
        scores = jnp.where(sees, q @ k.T / 2, -jnp.inf)
        largest = scores.max(axis=1, keepdims=True)
        weights = jnp.exp(scores - largest)
        total = total + jnp.exp(largest) * weights.sum(axis=1, keepdims=True)
        out = out + jnp.exp(largest) * weights @ v
        k, v = jax.lax.ppermute((k, v), axis, around)
    return out / total


# %% laplacian: block


def my_laplacian(u, rows, columns):
    return sum(jnp.roll(u, k, axis) for axis in (0, 1) for k in (1, -1)) - 4 * u


# %% laplacian: zeros


def my_laplacian(u, rows, columns):
    n, m = jax.lax.axis_size(rows), jax.lax.axis_size(columns)
    above = jax.lax.ppermute(u[-1:], rows, [(j, j + 1) for j in range(n - 1)])
    below = jax.lax.ppermute(u[:1], rows, [(j + 1, j) for j in range(n - 1)])
    left = jax.lax.ppermute(u[:, -1:], columns, [(j, j + 1) for j in range(m - 1)])
    right = jax.lax.ppermute(u[:, :1], columns, [(j + 1, j) for j in range(m - 1)])
    tall = jnp.concatenate([above, u, below])
    wide = jnp.concatenate([left, u, right], axis=1)
    return tall[:-2] + tall[2:] + wide[:, :-2] + wide[:, 2:] - 4 * u


# %% laplacian: whole


def my_laplacian(u, rows, columns):
    n, m = jax.lax.axis_size(rows), jax.lax.axis_size(columns)
    above = jax.lax.ppermute(u, rows, [(j, (j + 1) % n) for j in range(n)])[-1:]
    below = jax.lax.ppermute(u, rows, [((j + 1) % n, j) for j in range(n)])[:1]
    left = jax.lax.ppermute(u, columns, [(j, (j + 1) % m) for j in range(m)])[:, -1:]
    right = jax.lax.ppermute(u, columns, [((j + 1) % m, j) for j in range(m)])[:, :1]
    tall = jnp.concatenate([above, u, below])
    wide = jnp.concatenate([left, u, right], axis=1)
    return tall[:-2] + tall[2:] + wide[:, :-2] + wide[:, 2:] - 4 * u


# %% heat: stale


def my_heat(u, axis):
    n = jax.lax.axis_size(axis)
    above = jax.lax.ppermute(u[-1:], axis, [(j, (j + 1) % n) for j in range(n)])
    below = jax.lax.ppermute(u[:1], axis, [((j + 1) % n, j) for j in range(n)])
    for _ in range(10):
        wide = jnp.concatenate([above, u, below])
        u = u + 0.1 * (wide[:-2] + wide[2:] - 2 * u)
    return u


# %% heat: block


def my_heat(u, axis):
    for _ in range(10):
        u = u + 0.1 * (jnp.roll(u, 1, axis=0) + jnp.roll(u, -1, axis=0) - 2 * u)
    return u


# %% heat: open


def my_heat(u, axis):
    n = jax.lax.axis_size(axis)
    for _ in range(10):
        above = jax.lax.ppermute(u[-1:], axis, [(j, j + 1) for j in range(n - 1)])
        below = jax.lax.ppermute(u[:1], axis, [(j + 1, j) for j in range(n - 1)])
        wide = jnp.concatenate([above, u, below])
        u = u + 0.1 * (wide[:-2] + wide[2:] - 2 * u)
    return u


# %% fft2: rows


def my_fft2(x, axis):
    return jax.lax.all_to_all(jnp.fft.fft(x, axis=1), axis, 1, 0, tiled=True)


# %% fft2: gather


def my_fft2(x, axis):
    whole, me = jax.lax.all_gather(x, axis, tiled=True), jax.lax.axis_index(axis)
    return jax.lax.dynamic_slice_in_dim(jnp.fft.fft2(whole), 2 * me, 2, axis=1)


# %% odd_even_sort: rounds


def my_sort(x, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    for k in range(4):
        lefts = range(k % 2, n - 1, 2)
        pairs = [pair for j in lefts for pair in ((j, j + 1), (j + 1, j))]
        other = jax.lax.ppermute(x, axis, pairs)
        is_left = (me % 2 == k % 2) & (me < n - 1)
        is_right = (me % 2 != k % 2) & (me > 0)
        x = jnp.where(is_left, jnp.minimum(x, other), jnp.where(is_right, jnp.maximum(x, other), x))
    return x


# %% odd_even_sort: ends


def my_sort(x, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    for k in range(n):
        lefts = range(k % 2, n - 1, 2)
        pairs = [pair for j in lefts for pair in ((j, j + 1), (j + 1, j))]
        other = jax.lax.ppermute(x, axis, pairs)
        x = jnp.where(me % 2 == k % 2, jnp.minimum(x, other), jnp.maximum(x, other))
    return x


# %% top_k: places


def my_top(x, axis):
    return jax.lax.pcast(jax.lax.pmax(jax.lax.top_k(x, 3)[0], axis), axis, to="varying")


# %% top_k: gather


def my_top(x, axis):
    return jax.lax.top_k(jax.lax.all_gather(x, axis, tiled=True), 3)[0]


# %% histogram: length


def my_counts(x, axis):
    return jax.lax.psum(jnp.bincount(x), axis)


# %% histogram: own


def my_counts(x, axis):
    return jnp.bincount(x, length=8)


# %% pmap_ratio: own


def my_ratio(x, mesh):
    return x / x.sum(axis=1, keepdims=True)


# %% pmap_ratio: all


def my_ratio(x, mesh):
    return x / x.sum()


# %% pmap_scan: flat


def my_scan(x, mesh):
    return jax.shard_map(jnp.cumsum, mesh=mesh, in_specs=P("i"), out_specs=P("i"))(x)


# %% pmap_scan: over


def my_scan(x, mesh):
    return jnp.cumsum(x).reshape(x.shape)


# %% pmap_step: sum


def my_pmap_step(w, x, y):
    return w - 0.1 * jax.grad(lambda w: jnp.sum((x @ w - y) ** 2))(w)


# %% pmap_step: copies


def my_pmap_step(w, x, y):
    stepped = w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
    return jnp.tile(stepped, (8, 1))


# %% pmap_step: axis


def my_pmap_step(w, x, y):
    gradient = jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
    return w - 0.1 * jax.lax.pmean(gradient, "i")
