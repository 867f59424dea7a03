"""Barriers of JAX's coordination service, by JAX's private names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

Around = Callable[[str, Sequence[int] | None], AbstractContextManager[None]]
"""Takes a barrier's name, and the processes that are to come to it; None for all."""


def hook_barriers(around: Around) -> str:
    """Has each wait at a barrier made within a context manager.

    Returns:
        Why that is not possible where this JAX lacks a name; empty if it was done.
    """
    try:
        from jax._src.lib import _jax  # type: ignore[attr-defined]

        kind = _jax.DistributedRuntimeClient
        wait = kind.wait_at_barrier
    except (ImportError, AttributeError) as error:
        return str(error)

    def wait_at_barrier(
        self: Any,
        barrier_id: str,
        timeout_in_ms: int,
        process_ids: Sequence[int] | None = None,
        **more: Any,
    ) -> Any:
        with around(barrier_id, process_ids):
            return wait(self, barrier_id, timeout_in_ms, process_ids, **more)

    kind.wait_at_barrier = wait_at_barrier
    return ""
