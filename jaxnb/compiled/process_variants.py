"""A function's arguments, and the shardings that a variant gives them."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxnb.arrays.process_describe import NotATreeError, dtype_facts, require_tree, split_axes
from jaxnb.arrays.process_pushes import find_mesh
from jaxnb.compiled.process_compiled import is_shaped, on_arrays
from jaxnb.errors import UsageError
from jaxnb.labels import plural, type_label
from jaxnb.model.compiled import LeafLayout

AUTO = jax.sharding.AxisType.Auto


@dataclass(frozen=True)
class Given:
    """A call to compare.

    Attributes:
        function: What is called.
        leaves: The leaves of its positional arguments.
        tree: Their structure.
        places: Which leaves are arrays; the others stay what they are.
        paths: What to call each leaf.
        keys: The last part of each leaf's path in its container; empty for a whole argument.
        keywords: Its keyword arguments, which have no arrays.
        name: What to call the function.
    """

    function: Callable[..., Any]
    leaves: tuple[Any, ...]
    tree: Any
    places: tuple[int, ...]
    paths: tuple[str, ...]
    keys: tuple[str, ...]
    keywords: Mapping[str, Any]
    name: str

    @property
    def arrays(self) -> list[Any]:
        """The leaves that are arrays."""
        return [self.leaves[place] for place in self.places]

    @property
    def without_data(self) -> list[str]:
        """What to call the arrays that have a shape and no data."""
        return [
            self.paths[place]
            for place in self.places
            if isinstance(self.leaves[place], jax.ShapeDtypeStruct)
        ]

    def filled(self, arrays: Iterable[Any]) -> tuple[Any, ...]:
        """Returns the positional arguments with these in the place of its arrays, and no others."""
        leaves: list[Any] = [None] * len(self.leaves)
        for place, array in zip(self.places, arrays, strict=True):
            leaves[place] = array
        return cast(tuple[Any, ...], jax.tree.unflatten(self.tree, leaves))

    def on_arrays(self) -> Callable[..., Any]:
        """Returns a new function of these arguments; no cache of JAX knows it."""
        function = partial(self.function, **self.keywords)
        tree = jax.tree.structure((jax.tree.unflatten(self.tree, self.leaves), {}))
        return on_arrays(function, self.leaves, tree, self.name)


def given(function: Any, arguments: Any, keywords: Mapping[str, Any]) -> Given:
    """Takes a call apart.

    Raises:
        UsageError: It is no call that can be compared.
    """
    if isinstance(function, str):
        raise UsageError(
            "Pass a call as text only in the notebook: `spmd.compare('f(x, w)', specs=...)`,"
            " with `spmd` as after `%spmd_start`, or `spmd = jaxnb.start()`. In a %%spmd cell, "
            "type `jaxnb.compare(f, (x, w), specs=...)`."
        )
    if not callable(function):
        raise UsageError(
            f"{_kind(function)} cannot be called. Type `jaxnb.compare(f, (x, w), specs=...)`."
        )
    if not isinstance(arguments, tuple | list):
        raise UsageError(
            f"The arguments are one tuple, not {_kind(arguments)}: "
            "`jaxnb.compare(f, (x, w), specs=...)`; of one argument `(x,)`."
        )
    arguments = tuple(arguments)
    try:
        require_tree((arguments, keywords))
    except NotATreeError as error:
        raise UsageError(f"JAX cannot take an argument apart: {error}. Nothing was run.") from error
    with_paths, tree = jax.tree_util.tree_flatten_with_path(arguments)
    leaves = tuple(leaf for _, leaf in with_paths)
    names = _names(function, len(arguments))
    paths = tuple(names[path[0].idx] + jax.tree_util.keystr(path[1:]) for path, _ in with_paths)
    keys = tuple(jax.tree_util.keystr(path[1:][-1:]) for path, _ in with_paths)
    for path, leaf in zip(paths, leaves, strict=True):
        if isinstance(leaf, jax.Array) and leaf.is_deleted():
            raise UsageError(
                f"`{path}` was deleted, or donated to a computation. Nothing was run. Make it "
                "again."
            )
    arrays = [k for k, v in keywords.items() if any(map(is_shaped, jax.tree.leaves(v)))]
    if arrays:
        raise UsageError(
            f"`{arrays[0]}` is an array given by keyword, for which specs have no place. Nothing "
            "was run. Give arrays by position."
        )
    places = tuple(i for i, leaf in enumerate(leaves) if is_shaped(leaf))
    name = getattr(function, "__name__", None) or type(function).__name__
    return Given(function, leaves, tree, places, paths, keys, dict(keywords), name)


def _kind(value: Any) -> str:
    return f"an object of type {type(value).__name__}"


def _names(function: Any, count: int) -> list[str]:
    """Returns the names of a function's positional parameters, as far as it tells them."""
    names: list[str] = []
    with suppress(TypeError, ValueError):
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = inspect.signature(function).parameters.values()
        names = [p.name for p in parameters if p.kind in kinds][:count]
    return names + [f"argument {place + 1}" for place in range(len(names), count)]


def mesh_of(asked: Any, specs: Any, call: Given) -> Mesh:
    """Returns the mesh of a variant.

    That is the one that its specs are on; else the one asked for, or made of the axes and sizes
    asked for; else the one that the arguments are on; else that of ``jax.set_mesh``, or the only
    one that has a name in the cell, or in the script.

    Raises:
        UsageError: There is none, or more than one.
        ValueError: It cannot be made.
    """
    if (mesh := _only_mesh(_leaves(specs))) is not None:
        return mesh
    if isinstance(asked, Mesh):
        return asked
    if isinstance(asked, Mapping):
        names, sizes = tuple(asked), tuple(asked.values())
        return jax.make_mesh(sizes, names, axis_types=(AUTO,) * len(names))
    if asked is not None:
        raise UsageError(
            f"A mesh is a jax.sharding.Mesh, or axes with their sizes ({{'data': 4}}), not "
            f"{_kind(asked)}."
        )
    placed_on = _only_mesh(getattr(leaf, "sharding", None) for leaf in call.arrays)
    if placed_on is not None:
        return placed_on
    try:
        return find_mesh(vars(sys.modules["__main__"]), None)
    except UsageError as error:
        said = str(error).replace("Nothing was moved. ", "").replace("mesh='", "mesh=")
        raise UsageError(said.rstrip("'.") + ". Nothing was run.") from None


def _only_mesh(shardings: Iterable[Any]) -> Mesh | None:
    named = {each.mesh for each in shardings if isinstance(each, NamedSharding)}
    meshes = [mesh for mesh in named if isinstance(mesh, Mesh)]
    if len(meshes) > 1:
        raise UsageError(
            "The specs of a variant, or the arguments, are on several meshes. Put the specs on one "
            "of them, or name it: `mesh=mesh`."
        )
    return meshes[0] if meshes else None


def _is_spec(value: Any) -> bool:
    return value is None or isinstance(value, jax.P | jax.sharding.Sharding)


def _leaves(specs: Any) -> list[Any]:
    return jax.tree.leaves(specs, is_leaf=_is_spec)


def shardings(call: Given, specs: Any, mesh: Mesh) -> list[NamedSharding]:
    """Returns the sharding that a variant gives each array.

    Args:
        call: The call.
        specs: One spec for all arrays, or a tuple of one for each argument; of an argument that
            is a pytree, one for all of it or a pytree of them. None leaves an array as it is.
        mesh: The mesh.

    Raises:
        UsageError: The specs are not for these arguments.
    """
    whole = jax.tree.unflatten(call.tree, call.leaves)
    specs = tuple(specs) if isinstance(specs, list) else specs
    try:
        spread = jax.tree.leaves(
            jax.tree.broadcast(specs, whole, is_leaf=_is_spec), is_leaf=_is_spec
        )
    except ValueError as error:
        first = str(error).partition("\n")[0]
        raise UsageError(f"The specs do not have the structure of the arguments: {first}") from None
    return [_sharding(call.paths[i], call.leaves[i], spread[i], mesh) for i in call.places]


def _sharding(path: str, leaf: Any, spec: Any, mesh: Mesh) -> NamedSharding:
    if spec is None:
        spec = getattr(leaf, "sharding", None)
        if not isinstance(spec, NamedSharding) or len(spec.device_set) < 2:
            spec = jax.P()
    if isinstance(spec, jax.P):
        spec = NamedSharding(mesh, spec)
    if not isinstance(spec, NamedSharding):
        raise UsageError(f"The spec of `{path}` is {_kind(spec)}, not a jax.P.")
    if spec.mesh != mesh:
        raise UsageError(f"`{path}` is on another mesh than this variant. Give it a spec.")
    if len(spec.spec) > len(leaf.shape):
        raise UsageError(
            f"The spec is for {plural(len(spec.spec), 'dimension')}, and `{path}` is "
            f"{type_label(leaf.dtype, leaf.shape)}. Give its argument a pytree of specs, with "
            "`P()` for a scalar."
        )
    return spec


def out_shardings(specs: Any, mesh: Mesh) -> Any:
    """Returns the output shardings that specs mean on a mesh; None leaves it to the compiler."""
    return jax.tree.map(
        lambda spec: NamedSharding(mesh, spec) if isinstance(spec, jax.P) else spec,
        specs,
        is_leaf=_is_spec,
    )


def layout(path: str, key: str, aval: Any, sharding: Any) -> LeafLayout:
    """Describes how an array is split."""
    shape = tuple(aval.shape)
    bits = dtype_facts(aval.dtype).itemsize_bits
    local = tuple(sharding.shard_shape(shape))
    axes = None
    if isinstance(sharding, NamedSharding):
        split = split_axes(sharding.spec, len(shape))
        axes = tuple(tuple(n for n in names if sharding.mesh.shape[n] > 1) for names in split)
    return LeafLayout(
        path=path,
        key=key,
        type=type_label(aval.dtype, shape),
        shape=shape,
        nbytes=-(-math.prod(shape) * bits // 8),
        device_bytes=-(-math.prod(local) * bits // 8),
        axes=axes,
        replicated=bool(sharding.is_fully_replicated) and len(sharding.device_set) > 1,
    )


def require_devices(call: Given, mesh: Mesh) -> None:
    """Returns if the arrays of a call can be brought to a mesh.

    Raises:
        UsageError: JAX moves global arrays among their own devices only.
    """
    wanted = set(mesh.devices.flat)
    for place in call.places:
        leaf = call.leaves[place]
        if _is_global(leaf) and leaf.sharding.device_set != wanted:
            raise UsageError(
                f"`{call.paths[place]}` is on {plural(len(leaf.sharding.device_set), 'device')}, "
                f"and this mesh has {len(wanted)}; JAX moves "
                "an array over processes among its own devices only. Give a NumPy array."
            )


def _is_global(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable


def placed(leaf: Any, sharding: NamedSharding) -> jax.Array:
    """Returns an array under a sharding; the one there is stays as it is.

    A global array is moved by a computation of all its processes. Of what each process holds
    for itself every process takes its own parts: the processes must hold the same.
    """
    if _is_global(leaf) or (isinstance(leaf, jax.Array) and jax.process_count() == 1):
        if leaf.sharding == sharding:
            return cast(jax.Array, leaf)
        if _in_order(leaf.sharding) == _in_order(sharding):
            # device_put is not recorded, so processes that part in it would not be told.
            moved = jax.jit(lambda array: array, out_shardings=sharding)(leaf)
        else:
            moved = jax.device_put(leaf, sharding)
        return cast(jax.Array, moved)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        words = placed(np.asarray(jax.random.key_data(leaf)), sharding)
        kind = jax.random.key_impl(leaf)
        wrap = jax.jit(lambda data: jax.random.wrap_key_data(data, impl=kind),
                       out_shardings=sharding)  # fmt: skip
        return cast(jax.Array, wrap(words))
    # Never device_put: of a host array it gathers all processes' copies to compare them.
    host = np.asarray(leaf)
    dtype = jax.dtypes.canonicalize_dtype(host.dtype)
    return jax.make_array_from_callback(
        host.shape, sharding, lambda index: host[index].astype(dtype, copy=False)
    )


def _in_order(sharding: Any) -> Sequence[int]:
    if isinstance(sharding, NamedSharding):
        return [device.id for device in sharding.mesh.devices.flat]
    return sorted(device.id for device in sharding.device_set)
