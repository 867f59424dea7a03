"""The values in a function that ``shard_map`` calls without ``jit``, by JAX's private names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import numpy as np

from jaxnb.compat.jax_arrays import buffer_of, device_arrays, host_words

_MAX_NESTING = 8


def behind(value: Any) -> Any:
    """Returns what stands behind a tracer of ``grad`` or ``vmap``: within ``vmap`` all at once.

    A tracer again, in such a function, or in what JAX compiles all the same, such as the body of a
    ``while_loop``; or what is no tracer.
    """
    for _ in range(_MAX_NESTING):
        if not isinstance(value, jax.core.Tracer):
            break
        value = getattr(value, "val" if hasattr(value, "batch_dim") else "primal", value)
    return value


def spread(tracer: Any) -> Any:
    """Returns the array that a tracer of such a function stands for, with all devices' values.

    Its first dimension goes along the mesh axes that the value varies over: each device's part has
    size 1 there. None for other tracers.
    """
    from jax._src import shard_map

    return tracer.val if isinstance(tracer, shard_map.ShardMapTracer) else None


def blocks_here(array: Any) -> dict[Any, Any]:
    """Returns this process's devices with the value that each has of such an array, for NumPy.

    Of PRNG keys these are their words. It waits until they are computed.
    """
    parts = device_arrays(array if (words := buffer_of(array)) is None else words)
    return {next(iter(part.devices())): host_words(part)[0] for part in parts}


@contextmanager
def own_blocks_printed() -> Iterator[None]:
    """Has ``print``, ``jax.debug.print`` and ``jax.debug.callback`` get this process's values.

    JAX's own want those of all devices, and raise where some are another process's.
    """
    from unittest.mock import patch

    from jax._src import debugging, shard_map

    kind, rules = shard_map.ShardMapTracer, shard_map.eager_rules
    printing = (debugging.debug_callback_p, debugging.debug_print_p)
    own = {p: partial(_on_own_blocks, rules[p]) for p in printing if p in rules}
    texts = patch.multiple(kind, __str__=_text_here, __repr__=_text_here)
    with texts, patch.dict(rules, own):
        yield


def _text_here(tracer: Any) -> str:
    mesh, blocks = tracer._trace.mesh, blocks_here(tracer.val)
    names = f"({', '.join(map(str, mesh.axis_names))},)"
    return "\n".join(
        f"On {device} at mesh coordinates {names} = {place}: {blocks[device]}"
        for place, device in np.ndenumerate(mesh.devices)
        if device in blocks
    )


def _on_own_blocks(rule: Callable[..., Any], mesh: Any, *arrays: Any, **settings: Any) -> Any:
    return rule(mesh, *(list(blocks_here(each).values()) for each in arrays), **settings)
