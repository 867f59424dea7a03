"""Large inputs that every device holds whole, where a mesh axis would divide them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from jaxnb.compat.jax_pitfalls import Lowering
from jaxnb.labels import format_bytes
from jaxnb.model.insight import Pitfall
from jaxnb.pitfalls.process_words import nbytes_of, pitfall, type_of

REPLICATED_BYTES = 64 << 20
"""In all of one computation. To divide less saves no memory worth the all-gather at each use."""

REPLICATED_ARRAY_BYTES = 1 << 20
"""Smaller arrays do not count: scalars, keys, biases, norms. Nobody divides those."""


@dataclass(slots=True)
class _Replicated:
    """One computation's inputs that every device has whole."""

    name: str
    mesh: Any
    axis: str
    count: int = 0
    nbytes: int = 0
    largest: tuple[int, str, str] = (0, "", "")  # bytes, what it is, and its spec divided


class Replicated:
    """Those of a cell."""

    def __init__(self) -> None:
        self._replicated: dict[tuple[Any, ...], tuple[int | None, _Replicated]] = {}

    def add(self, lowering: Lowering, line: int | None) -> None:
        """Takes a computation that the cell has lowered."""
        found: dict[Any, _Replicated] = {}
        names = lowering.names or ("",) * len(lowering.arguments)
        for name, each, sharding in zip(names, lowering.arguments, lowering.shardings, strict=True):
            if (nbytes := nbytes_of(each)) < REPLICATED_ARRAY_BYTES:
                continue
            if (way := divided(each.shape, sharding)) is None:
                continue
            axis, spec = way
            key = (sharding.mesh.shape_tuple, axis)
            known = found.setdefault(key, _Replicated(lowering.name, sharding.mesh, axis))
            known.count += 1
            known.nbytes += nbytes
            what = " ".join(filter(None, [name and f"`{name}`", type_of(each)]))
            known.largest = max(known.largest, (nbytes, what, spec))
        for key, known in found.items():
            if known.nbytes >= REPLICATED_BYTES:
                self._replicated.setdefault(key, (line, known))

    def pitfalls(self, code_name: str) -> list[Pitfall]:
        """Returns what is to be said of them."""
        found = []
        for line, each in self._replicated.values():
            size = each.mesh.shape[each.axis]
            _, what, spec = each.largest
            inputs = "An input" if each.count == 1 else f"{each.count} inputs"
            verb = "is" if each.count == 1 else "are"
            which = f", {what}," if each.count == 1 else f" (the largest is {what})"
            whole, part = format_bytes(each.nbytes), format_bytes(each.nbytes / size)
            found.append(
                pitfall(
                    "replicated",
                    code_name,
                    line,
                    f"{inputs} of `{each.name}`{which} {verb} replicated: {whole} on each of "
                    f"{each.mesh.size} devices. Mesh axis '{each.axis}' ({size}) would reduce "
                    f"that to {part}.",
                    f"Data parallelism does so on purpose; this is reported once. To divide: "
                    f"`NamedSharding(mesh, {spec})`.",
                    # Of a mesh it is said once, whatever else is replicated on it.
                    cause=f"{each.mesh.shape_tuple}|{each.axis}",
                )
            )
        return found


def divided(shape: Sequence[int], sharding: Any) -> tuple[str, str] | None:
    """Returns the largest axis that would divide an array that is not divided, and the spec.

    None if it is divided, or no axis divides one of its dimensions.
    """
    if not isinstance(sharding, NamedSharding) or not sharding.is_fully_replicated:
        return None
    sizes = [(size, axis) for axis, size in sharding.mesh.shape.items() if size > 1]
    for size, axis in sorted(sizes, key=lambda each: -each[0]):
        able = [(length, -d) for d, length in enumerate(shape) if length % size == 0]
        if able:
            place = -max(able)[1]
            names: list[Any] = [None] * len(shape)
            names[place] = axis
            return str(axis), repr(PartitionSpec(*names)).replace("PartitionSpec", "P")
    return None
