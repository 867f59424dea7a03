"""What a cell changed in the memory of devices, in a few words."""

from __future__ import annotations

from jaxnb.cells.result import CellResult
from jaxnb.labels import format_bytes

LEAST_BYTES = 1 << 10
"""Less is not worth a word under each cell; the result has it."""


def memory_text(result: CellResult) -> str:
    """Returns e.g. ``"+64.0 MiB per device, peak 128 MiB"``; empty if little changed."""
    memory = [each for process in result.per_process.values() for each in process.memory]
    parts = []
    changes = [each.change_bytes for each in memory]
    if any(abs(change) >= LEAST_BYTES for change in changes):
        # On the devices of a process that tells nothing, nothing has changed.
        silent = any(not process.memory for process in result.per_process.values())
        parts.append(_range([*changes, 0] if silent else changes))
    for owner, word in (("device", "peak"), ("process", "process peak")):
        peaks = [m.peak_bytes for m in memory if m.peak_of == owner and m.peak_bytes is not None]
        if peaks and (parts or owner == "process" or max(peaks) >= LEAST_BYTES):
            parts.append(f"{word} {format_bytes(max(peaks))}")
    return ", ".join(parts)


def _range(changes: list[int]) -> str:
    least, most = min(changes), max(changes)
    if len(changes) == 1:
        return _signed(most)
    if _signed(least) == _signed(most):  # to the three digits that are shown
        return f"{_signed(most)} per device"
    if least == 0:
        return f"up to {_signed(most)} per device"
    if most == 0:
        return f"down to {_signed(least)} per device"
    return f"{_signed(least)} to {_signed(most)} per device"


def _signed(nbytes: int) -> str:
    return f"{'+' if nbytes > 0 else '−' if nbytes < 0 else ''}{format_bytes(abs(nbytes))}"
