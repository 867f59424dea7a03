"""What a process reports of an exercise's answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxnb.model.compiled import CompiledReport, NotCompiled

Index = tuple[tuple[int, int], ...]
"""Where a shard lies: for each dimension where it begins and ends."""


@dataclass(frozen=True, slots=True)
class Shard:
    """What a device holds of an array.

    Attributes:
        device: ``Device.id``; None for a value that is not a ``jax.Array``.
        index: Where it lies in the whole.
        data: The numbers, as NumPy's.
    """

    device: int | None
    index: Index
    data: Any


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value of the answer on one process.

    Attributes:
        type_name: ``"jax.Array"``, ``"numpy.ndarray"``, ``"int"``, …
        dtype: As JAX writes it; empty for what has none.
        shape: Of the whole array.
        sharding: How it is laid out, as text; empty for what is not a ``jax.Array``.
        is_own: A ``jax.Array`` of this process alone, in a group of several.
        is_laid_out: It has the sharding that the exercise asks for, or none is asked for.
        shards: What this process holds; empty for what holds no numbers.
    """

    type_name: str
    dtype: str
    shape: tuple[int, ...]
    sharding: str
    is_own: bool
    is_laid_out: bool
    shards: tuple[Shard, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a process computed.

    Attributes:
        leaves: The values by their paths in the answer, as ``jax.tree_util.keystr`` writes them.
        report: What the call compiles to, if that was asked for.
        is_missing: The student's name is not defined; nothing was run.
        mistake: The error of the exercise's own code; nothing is known of the answer.
    """

    leaves: dict[str, Leaf]
    report: CompiledReport | NotCompiled | None = None
    is_missing: bool = False
    mistake: str = ""
