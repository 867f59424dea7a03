"""The pitfalls that are seen as a computation is lowered."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from jaxnb.compat.jax_pitfalls import Lowering, constants
from jaxnb.labels import format_bytes, plural
from jaxnb.model.insight import Pitfall
from jaxnb.pitfalls.process_raised import nbytes_of, pitfall, type_of

CONSTANT_BYTES = 16 << 20
"""In all of one computation. Masks, tables of positions and the like are closed over on purpose,
and are smaller; from here on compilation and the program's memory grow by what one notices."""


class Constants:
    """Those of a cell."""

    def __init__(self) -> None:
        self._constants: dict[tuple[str, int | None], tuple[int, str]] = {}

    def add(self, lowering: Lowering, line: int | None) -> None:
        """Takes a computation that the cell has lowered."""
        found = {id(each): each for each in constants(lowering.jaxpr)}.values()
        total = sum(map(nbytes_of, found))
        if total >= CONSTANT_BYTES:
            largest = type_of(max(found, key=nbytes_of))
            self._constants.setdefault((lowering.name, line), (total, largest))

    def pitfalls(self, code_name: str) -> list[Pitfall]:
        """Returns what is to be said of them."""
        return [
            pitfall(
                "constant",
                code_name,
                line,
                f"`{name}` closes over {format_bytes(total)} of arrays (the largest is {largest}): "
                "they are compiled into the program as constants, on each device, and again at "
                "every recompilation.",
                "Pass them as arguments.",
                subject=name,
            )
            for (name, line), (total, largest) in self._constants.items()
        ]


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


COMPILATIONS = 8
"""Of one function, at one line of one cell. Training, evaluation, a last batch and lengths padded
to powers of two are fewer; a loop that compiles at each turn is soon there."""

COMPARED_EQUATIONS = 500
"""Longer computations are not printed in order to be compared."""

_LIBRARIES = (
    str(Path(jax.__file__).parent),
    *(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")),
)
"""Functions of libraries are compiled once for each layer's shape, and nobody can change that."""
_ADDRESS = re.compile(r"0x[0-9a-f]+")


@dataclass(slots=True)
class _Compiled:
    """One function's compilations at one line."""

    name: str
    count: int = 0
    last: list[Lowering] = field(default_factory=list)  # two at most


class Recompiled:
    """Those of a cell."""

    def __init__(self) -> None:
        self._compiled: dict[tuple[str, int | None], _Compiled] = {}

    def add(self, lowering: Lowering, line: int | None) -> None:
        """Takes a computation that the cell has lowered."""
        if lowering.file and not lowering.file.startswith(_LIBRARIES):
            key = (lowering.source, line)
            known = self._compiled.setdefault(key, _Compiled(lowering.name))
            known.count += 1
            known.last = [*known.last[-1:], lowering]

    def pitfalls(self, code_name: str) -> list[Pitfall]:
        """Returns what is to be said of them."""
        found = []
        for (source, line), each in self._compiled.items():
            if each.count < COMPILATIONS:
                continue
            why, advice = difference(*each.last)
            message = f"`{each.name}` was compiled {plural(each.count, 'time')} at this line. {why}"
            found.append(
                pitfall(
                    "recompiled", code_name, line, message, advice, subject=_without_cell(source)
                )
            )
        return found


def difference(before: Lowering, now: Lowering) -> tuple[str, str]:
    """Returns what differed between two compilations of a function, and what helps."""
    if len(before.arguments) != len(now.arguments):
        counts = f"{len(before.arguments)} arrays among the arguments, then {len(now.arguments)}"
        return f"The last two had {counts}.", "Give it arguments of the same structure."
    names = now.names or [f"{i + 1}" for i in range(len(now.arguments))]
    pairs = list(zip(names, before.arguments, now.arguments, strict=True))
    if differing := [(n, a, b) for n, a, b in pairs if type_of(a) != type_of(b)]:
        few = "; ".join(f"`{n}`: {type_of(a)}, then {type_of(b)}" for n, a, b in differing[:3])
        more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
        return (
            f"The last two differ in argument {few}{more}.",
            "Pad to a few sizes, or compute the rest in one call (`jax.lax.scan`).",
        )
    weak = [n for n, a, b in pairs if _is_weak(a) != _is_weak(b)]
    if weak:
        return (
            f"The last two differ in whether argument `{weak[0]}` is a Python number or an array.",
            "Pass the same kind each time, e.g. `jnp.float32(rate)`.",
        )
    for name, old, new in zip(names, before.shardings, now.shardings, strict=True):
        if old != new:
            return (
                f"The last two differ in the sharding of argument `{name}`.",
                "Put it there once, before the loop, and set `out_shardings` for what is fed back.",
            )
    return _other_difference(before, now)


def _other_difference(before: Lowering, now: Lowering) -> tuple[str, str]:
    same = _is_same(before.jaxpr, now.jaxpr)
    anew = "Call `jax.jit` once, before the loop, on a function that is defined there"
    if same:
        return (
            "Its arguments are of the same types and it computes the same: it is a new function "
            "each time.",
            f"{anew}.",
        )
    static = "a static argument, or a value that the function closes over"
    if same is False:
        return (
            f"Its arguments are of the same types and it computes something else: {static}, "
            "differed.",
            "Make it an ordinary argument.",
        )
    return (
        f"Its arguments are of the same types: {static}, differed, or it is a new function each "
        "time.",
        f"{anew}, and pass what differs as an ordinary argument.",
    )


def _is_same(before: Any, now: Any) -> bool | None:
    """Whether two computations are the same; None if they are too long to tell."""
    if max(_length(before), _length(now)) > COMPARED_EQUATIONS:
        return None
    texts = [_ADDRESS.sub("", str(each)) for each in (before, now)]
    return texts[0] == texts[1]


def _length(jaxpr: Any) -> int:
    """Returns the number of a computation's equations, inner ones too, as far as it matters."""
    count, left = 0, [jaxpr]
    while left and count <= COMPARED_EQUATIONS:
        equations = left.pop().eqns
        count += len(equations)
        for equation in islice(equations, COMPARED_EQUATIONS):
            left += [each for each in equation.params.values() if hasattr(each, "eqns")]
    return count


def _is_weak(argument: Any) -> bool:
    return bool(getattr(argument, "weak_type", False))


def _without_cell(source: str) -> str:
    """Returns where a function is defined without the cell's number, which a new run changes."""
    name, _, place = source.partition(" at ")
    return name if Path(place).name.startswith("<cell ") else source


class Lowerings:
    """Those of a cell."""

    kind: str = "constant"

    def __init__(self) -> None:
        self._parts = (Constants(), Replicated(), Recompiled())

    def add(self, lowering: Lowering, line: int | None) -> None:
        """Takes a computation that the cell has lowered."""
        for part in self._parts:
            part.add(lowering, line)

    def pitfalls(self, code_name: str) -> list[Pitfall]:
        """Returns what is to be said of them."""
        return [each for part in self._parts for each in part.pitfalls(code_name)]
