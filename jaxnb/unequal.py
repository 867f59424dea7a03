"""Pure: digests of replicas, to which inputs were unequal, and what is to be said of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jaxnb.labels import plural, processes_label, ranks_label
from jaxnb.model.replicas import DigestedArray, Index, ReplicaTrail, UnequalInput

ROUNDING_ULPS = 64
"""Replicas that differ by no more units in the last place were computed, and rounded otherwise."""

MOST_NAMED = 6

Read = Callable[[int, int], bytes]
"""Brings bytes of a replica: start and stop."""


def differ(trails: Mapping[int, Sequence[ReplicaTrail]]) -> bool:
    """Whether processes' digests of replicas differ: mostly not, and nothing more is asked then.

    Args:
        trails: Process index to what it digested in a cell, in short.
    """
    seen: dict[tuple[int, ...], ReplicaTrail] = {}
    return any(
        len(trail.processes) == 1 or seen.setdefault(trail.processes, trail) != trail
        for those in trails.values()
        for trail in those
    )


def unequal_inputs(
    digested: Mapping[int, Sequence[DigestedArray]],
) -> list[UnequalInput]:
    """Returns the arrays whose replicas differ, in the order in which they were used.

    What one process has digested and another has not, as it had compared it before or left the
    cell, is not compared.

    Args:
        digested: Process index to the arrays that it has digested.
    """
    by_key: dict[Any, dict[int, DigestedArray]] = {}
    for process, arrays in sorted(digested.items()):
        for array in arrays:
            by_key.setdefault(array.key, {})[process] = array
    found = []
    for held in by_key.values():
        parts: dict[Index, list[tuple[str, int, int]]] = {}
        for process, array in held.items():
            for part in array.parts:
                digests = [(digest, process, device) for device, digest in part.digests]
                parts.setdefault(part.index, []).extend(digests)
        for index, each in parts.items():
            if len({digest for digest, _, _ in each}) > 1:
                found.append(_unequal(next(iter(held.values())), index, each))
                break
    return found


def _unequal(
    array: DigestedArray, index: Index, held: Sequence[tuple[str, int, int]]
) -> UnequalInput:
    by_digest: dict[str, list[tuple[int, int]]] = {}
    for digest, process, device in held:
        by_digest.setdefault(digest, []).append((process, device))
    processes = [sorted({process for process, _ in each}) for each in by_digest.values()]
    by_device = len(set().union(*processes)) < sum(map(len, processes))
    if by_device:
        processes = [sorted(device for _, device in each) for each in by_digest.values()]
    return UnequalInput(array, index, tuple(map(tuple, sorted(processes))), by_device)


def first_difference(
    sizes: tuple[int, int], digests: tuple[Sequence[str], Sequence[str]]
) -> tuple[int, int] | None:
    """Returns where the first piece begins and ends in which two replicas differ.

    Args:
        sizes: The size of the pieces of each, in bytes; 0 if it is gone.
        digests: The digests of the pieces of each.
    """
    if not sizes[0] or sizes[0] != sizes[1] or len(digests[0]) != len(digests[1]):
        return None
    pairs = enumerate(zip(*digests, strict=True))
    first = next((i for i, (mine, its) in pairs if mine != its), None)
    return None if first is None else (first * sizes[0], (first + 1) * sizes[0])


def with_difference(
    found: UnequalInput, start: int, pieces: tuple[bytes, bytes], is_all: bool
) -> UnequalInput:
    """Returns an unequal input with where and by how much it differs.

    Args:
        found: It.
        start: Where the pieces begin, in bytes.
        pieces: The bytes of a piece of the first group's replica, and of the second's.
        is_all: Whether that is the whole replica.
    """
    import numpy as np

    from jaxnb.arrays.dtypes import UnknownDtypeError, numpy_dtype

    try:
        dtype = np.dtype(bool) if found.array.dtype == "bool" else numpy_dtype(found.array.dtype)
    except UnknownDtypeError:
        return found
    if len(pieces[0]) != len(pieces[1]) or len(pieces[0]) % dtype.itemsize:
        return found
    mine, its = (np.frombuffer(each, dtype) for each in pieces)
    as_bits = (len(mine), dtype.itemsize)
    bits = (mine.view(np.uint8).reshape(as_bits) != its.view(np.uint8).reshape(as_bits)).any(axis=1)
    if not bits.any():
        return found
    place = int(bits.argmax())
    text = _where(found.index, start // dtype.itemsize + place)
    who = [_holders(found, group) for group in found.groups[:2]]
    text = f"{text}: {mine[place]!s} on {who[0]}, {its[place]!s} on {who[1]}"
    how, is_rounding = _how_far(mine[bits], its[bits])
    many = "" if is_all else ", in the first piece that differs"
    return replace(found, difference=f"{text}; {how}{many}", is_rounding=is_rounding)


def _where(index: Index, offset: int) -> str:
    place = []
    for start, stop in reversed(index):
        offset, inner = divmod(offset, max(1, stop - start))
        place.append(start + inner)
    return f"first at [{', '.join(map(str, reversed(place)))}]" if place else "it"


def _how_far(mine: Any, its: Any) -> tuple[str, bool]:
    """Returns how far the elements that differ are apart, and whether rounding explains it."""
    import numpy as np

    count = f"{plural(len(mine), 'element')} differ{'s' if len(mine) == 1 else ''}"
    kind = mine.dtype.kind
    if kind == "b":
        return count, False
    wide = np.complex128 if kind == "c" else np.float64
    with np.errstate(all="ignore"):
        a, b = mine.astype(wide), its.astype(wide)
        is_same = (a == b) | (np.isnan(a) & np.isnan(b))
        if is_same.all():
            return f"{count} in bits only: NaNs of other bits, or -0.0 for 0.0", False
        apart = float(np.nanmax(np.abs(a - b))) if not np.isnan(a - b).all() else float("nan")
    text = f"{count}, by up to {apart:.3g}"
    ulps = _ulps(mine, its)
    if ulps is None or ulps > ROUNDING_ULPS:
        return text, False
    return f"{text} ({plural(ulps, 'unit')} in the last place)", True


def _ulps(mine: Any, its: Any) -> int | None:
    """Returns how many floats lie between, at most; None for what is no float."""
    import numpy as np

    if mine.dtype.kind not in "fV" or mine.dtype.itemsize not in (2, 4, 8):
        return None
    signed = np.dtype(f"i{mine.dtype.itemsize}")

    def ordered(array: Any) -> Any:
        bits = array.view(signed).astype(object if signed.itemsize == 8 else np.int64)
        least = -(1 << (8 * signed.itemsize - 1))
        return np.where(bits < 0, least - bits, bits)

    if not (np.isfinite(mine.astype(np.float64)) & np.isfinite(its.astype(np.float64))).all():
        return None
    return int(np.abs(ordered(mine) - ordered(its)).max())


def _holders(found: UnequalInput, group: tuple[int, ...]) -> str:
    if found.by_device:
        return f"{'devices' if len(group) > 1 else 'device'} {ranks_label(group)}"
    return processes_label(group)


def describe(found: Sequence[UnequalInput], cell: int) -> str:
    """Returns what is to be said of unequal inputs: who has what, what follows, what to type.

    Args:
        found: They, at least one.
        cell: The cell's number.
    """
    first = found[0]
    array = first.array
    line = f" at line {array.line}" if array.line is not None else ""
    who = " ≠ ".join(_holders(first, group) for group in first.groups)
    part = ", ".join(f"{start}:{stop}" for start, stop in first.index)
    difference = f"; {first.difference}" if first.difference else ""
    text = [
        f"Unequal input in cell [{cell}]: {first.name} ({array.type} · {array.layout}, "
        f"{array.made}), which {array.computation} was given{line}, is replicated, and its bytes "
        f"differ: {who} in [{part}]{difference}.",
    ]
    if len(found) > 1:
        names = [each.name for each in found[1:MOST_NAMED]]
        more = len(found) - 1 - len(names)
        rest = f" and {plural(more, 'more array')}" if more else ""
        text.append(f"So do {', '.join(names)}{rest}.")
    text.append("JAX takes replicas to be equal and never checks.")
    if first.is_rounding:
        text.append(
            "They differ by rounding: compute such an array in one computation over all processes "
            "(`jax.jit(make, out_shardings=...)()`), not on each for itself."
        )
    else:
        text.append(
            "Make it of the same data on every process (one seed, one file; `%spmd_push` sends the "
            "notebook's), or shard it if each process is to have its own: `P('data')`."
        )
    return " ".join(text)
