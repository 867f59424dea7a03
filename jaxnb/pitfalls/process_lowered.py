"""The pitfalls that are seen as a computation is lowered."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

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


COMPILATIONS = 8
"""Of one function, at one line of one cell. Training, evaluation, a last batch and lengths padded
to powers of two are fewer; a loop that compiles at each turn is soon there."""

_LIBRARIES = (
    str(Path(jax.__file__).parent),
    *(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")),
)
"""Functions of libraries are compiled once for each layer's shape, and nobody can change that."""


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
    return (
        "Its arguments are of the same types: a static argument, or a value that the function "
        "closes over, differed, or it is a new function each time.",
        "Call `jax.jit` once, before the loop, on a function that is defined there, and pass what "
        "differs as an ordinary argument.",
    )


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
        self._parts = (Constants(), Recompiled())

    def add(self, lowering: Lowering, line: int | None) -> None:
        """Takes a computation that the cell has lowered."""
        for part in self._parts:
            part.add(lowering, line)

    def pitfalls(self, code_name: str) -> list[Pitfall]:
        """Returns what is to be said of them."""
        return [each for part in self._parts for each in part.pitfalls(code_name)]
