"""Whether what is pulled or pushed fits into memory: refused before anything moves."""

from __future__ import annotations

from jaxnb.errors import NotEnoughMemoryError
from jaxnb.labels import format_bytes
from jaxnb.launch.host import available_bytes

SMALL_BYTES = 1 << 20
"""So much fits anywhere: to find out what is free takes 0.6 ms."""


def require_memory_for_pull(nbytes: int, name: str) -> None:
    """Raises NotEnoughMemoryError if a pull would not fit into the notebook's memory."""
    if nbytes <= SMALL_BYTES:
        return
    available = available_bytes()
    if nbytes > available:
        raise NotEnoughMemoryError(
            f"{name} needs {format_bytes(nbytes)} in the notebook, where "
            f"{format_bytes(available)} of memory is free. Nothing was moved. Pull a slice, "
            "e.g. `x[:1000]`, or reduce it on the processes first."
        )


def require_memory_for_push(
    needed: int, label: str, where: str = "the processes", available: int | None = None
) -> None:
    """Raises NotEnoughMemoryError if a push would not fit into the processes' memory.

    Args:
        needed: The bytes that it needs.
        label: What is said of it where it fails.
        where: What needs them.
        available: Those that there are; by default those of this host.
    """
    available = available_bytes() if available is None else available
    if needed > available:
        raise NotEnoughMemoryError(
            f"{label.removesuffix(' was pushed')} needs {format_bytes(needed)} on {where}, "
            f"where {format_bytes(available)} of memory is free. Nothing was "
            "moved. Shard it over more devices: name a mesh axis in its spec."
        )
