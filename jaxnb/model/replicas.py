"""Replicas of arrays, whose bytes the processes compare: JAX takes them to be equal, unchecked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from jaxnb.model.dispatches import Processes

Index = tuple[tuple[int, int], ...]
"""For each dimension the half-open ``(start, stop)``."""

Role = Literal["argument", "result", "put"]
"""Why an array was digested: it was given to a dispatch, and did not come out of one; it came out
of one whose program declares it replicated, unchecked; or it was put onto devices of some
processes: of that the host data are digested."""


@dataclass(frozen=True)
class ReplicaTrail:
    """What one process digested in a cell of parts that the same processes hold, in short.

    Attributes:
        processes: The processes that hold these parts. One process alone: its own devices hold
            replicas that differ.
        count: How many parts there were.
        digest: Equal on two processes only if they digested the same, in the same order.
    """

    processes: Processes
    count: int
    digest: int


@dataclass(frozen=True)
class ReplicaPart:
    """A part of an array that several devices hold, as one process sees it.

    Attributes:
        index: What it covers.
        processes: Who holds it.
        digests: Device id to digest, of this process's devices.
    """

    index: Index
    processes: Processes
    digests: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class DigestedArray:
    """An array whose replicas a process digested.

    Attributes:
        processes: Those that the dispatch spans.
        number: Which dispatch over these it is in the cell, from 1; of what was put, the place in
            the code.
        position: Which argument of the compiled computation the array is, or which result, from 0.
        computation: The computation's name: ``"jit(step)"``; of a result, the one not checked.
        line: The cell's line, as the notebook counts; None outside of its code.
        name: What the array is bound to: ``"params['w']"``; empty if nothing holds it.
        origin: The number of what made it.
        made: Where it came from, in words.
        type: ``"float32[4, 8]"``.
        dtype: The elements' dtype in NumPy.
        layout: Its spec, or its sharding.
        parts: The parts that several devices hold.
        role: Why it was digested.
        axes: Of a result the mesh axes over which its program declares replicas without a check;
            empty if that calls Python back.
    """

    processes: Processes
    number: int
    position: int
    computation: str
    line: int | None
    name: str
    origin: int
    made: str
    type: str
    dtype: str
    layout: str
    parts: tuple[ReplicaPart, ...]
    role: Role = "argument"
    axes: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """What the array is known by on all processes: a result may be told a cell later."""
        result = self.origin if self.role == "result" else 0
        return self.role, self.processes, self.number, self.position, result


@dataclass(frozen=True)
class UnequalInput:
    """An array whose replicas differ.

    Attributes:
        array: The array, as the first process that has it describes it.
        index: The first part of it that differs.
        groups: Who holds the same there: processes, or devices if those of one process differ.
        by_device: Whether ``groups`` are device ids.
        difference: Where and by how much they differ, in words; empty if that is not known.
        is_rounding: Whether they differ by so little that rounding explains it.
        parts: How many parts of it several devices hold.
    """

    array: DigestedArray
    index: Index
    groups: tuple[tuple[int, ...], ...]
    by_device: bool = False
    difference: str = ""
    is_rounding: bool = False
    parts: int = 1

    @property
    def name(self) -> str:
        """What to call it: its variable, or which leaf of arguments or results it was, from 0."""
        array = self.array
        return f"`{array.name}`" if array.name else f"{array.role} leaf {array.position}"
