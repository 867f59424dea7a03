"""Private names of JAX about computations with effects: prints and callbacks."""

from __future__ import annotations

from typing import Any

import jax


def take_effect_tokens() -> tuple[list[Any], list[jax.Array]]:
    """Takes from JAX what it would wait for until this thread's effects have ended.

    JAX keeps, by device, what the last computation with an effect ends with, and, by kind of
    ordered effect, an array that the next computation with such an effect has to be given. Both
    belong to the backend. Without them ``jax.effects_barrier()``, which ``clear_backends()`` calls,
    waits for nothing and raises nothing; the next ordered effect begins a new order.

    Where this JAX has no such state, nothing is taken: forming a group anew may then fail with the
    error of a computation that was broken off.

    Returns:
        What can only be waited for, by ``block_until_ready()``; and the arrays.
    """
    from jax._src import dispatch

    state: Any = getattr(dispatch, "runtime_tokens", None)
    if state is None:
        return [], []
    ends = [*state.output_runtime_tokens.values()]
    arrays = [token._buf for token in state.current_tokens.values() if hasattr(token, "_buf")]
    state.clear()
    return ends, arrays
