"""What a cell did, as its user holds it: :class:`CellResult` and :class:`ProcessResult`."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any

from jaxnb.errors import JaxnbError
from jaxnb.model import ArrayInfo, ProcessError, RichOutput, ValueInfo


class Agreement(Enum):
    """How the last expression's values of the processes relate."""

    NO_VALUE = "no process has a value"
    SAME = "every process has the same value, compared byte for byte"
    SHARDED = "one array, spread over processes"
    DIFFERENT = "values differ by process"
    REPLICAS_DIFFER = "JAX takes the array as replicated, but its replicas differ"
    UNVERIFIED = "one replicated array, whose bytes were not compared (too large)"
    UNCOMPARED = "the values have no canonical bytes to compare"


class PerProcess(dict[int, Any]):
    """Values that differ by process: process index to value."""

    def __repr__(self) -> str:
        return f"PerProcess({super().__repr__()})"


@dataclass(frozen=True)
class ProcessResult:
    """What one process did in a cell.

    Attributes:
        process_index: The process.
        value_info: The last expression's value as described by the process, or None.
        stdout: All that it wrote to standard output.
        stderr: All that it wrote to standard error.
        displays: Its rich outputs in order.
        error: What it raised, or None.
        seconds: Wall time of the cell on it.
        compile_seconds: Part of it that JAX spent lowering and compiling.
        compiles: How many computations were compiled.
        fetch: Brings a value that was too large to travel with the reply.
    """

    process_index: int
    value_info: ValueInfo | None
    stdout: str
    stderr: str
    displays: tuple[RichOutput, ...]
    error: ProcessError | None
    seconds: float
    compile_seconds: float
    compiles: int = 0
    fetch: Callable[[], ValueInfo] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def value(self) -> Any:
        """The last expression's value; None if there was none.

        A ``jax.Array`` that this process holds whole comes as a NumPy array, any other as
        its :class:`~jaxnb.model.ArrayInfo`. A large value is fetched on the first access.

        Raises:
            JaxnbError: The value cannot be pickled, cannot be read here (a class that the cell
                defined), or no longer exists on the process.
        """
        info = self.value_info
        if info is None:
            return None
        if info.payload is None and self.fetch is not None and not info.payload_note:
            info = self.fetch()
        if info.payload is None:
            if info.array is not None:
                return info.array
            raise JaxnbError(
                f"The value on process {self.process_index} ({info.type_name}) cannot be "
                f"brought to the notebook: {info.payload_note}. It is still there, as `_`."
            )
        try:
            # The bytes come over a channel signed with the cluster's key, from a process that
            # this session started.
            return pickle.loads(info.payload)
        except Exception as error:  # a class of the cell, or a package that is missing here
            raise JaxnbError(
                f"The value on process {self.process_index} ({info.type_name}) cannot be read "
                f"in the notebook: {type(error).__name__}: {error}. What it is made of must be "
                "importable here too. It is still there, as `_`."
            ) from error


@dataclass(frozen=True, repr=False)
class CellResult:
    """What a cell did on every process it ran on.

    Attributes:
        cell: The cell's number.
        code: Its source.
        per_process: Process index to :class:`ProcessResult`, for the processes it ran on.
        num_processes: Size of the group.
        seconds: Wall time as seen from the notebook, transport included.
        stdout: What all processes wrote to standard output, merged and labelled.
        stderr: The same for standard error.
        divergence: None: the processes' recordings are not compared yet.
    """

    cell: int
    code: str
    per_process: Mapping[int, ProcessResult]
    num_processes: int
    seconds: float
    stdout: str = ""
    stderr: str = ""
    divergence: None = None

    def __repr__(self) -> str:
        outcome = f"errors on {sorted(self.errors)}" if self.errors else self.agreement.value
        return (
            f"<CellResult of cell [{self.cell}] on {len(self.per_process)} of "
            f"{self.num_processes} processes, {self.seconds:.3g} s: {outcome}>"
        )

    @property
    def errors(self) -> dict[int, ProcessError]:
        """Process index to what it raised, for those that raised."""
        return {i: r.error for i, r in self.per_process.items() if r.error is not None}

    @cached_property
    def agreement(self) -> Agreement:
        """How the values of the processes relate; from digests, nothing is fetched."""
        infos = [r.value_info for r in self.per_process.values()]
        if all(info is None for info in infos):
            return Agreement.NO_VALUE
        if any(info is None for info in infos):
            return Agreement.DIFFERENT
        known = [info for info in infos if info is not None]
        arrays = [info.array for info in known if info.array is not None]
        if len(arrays) == len(known) and not any(a.fully_addressable for a in arrays):
            if len({(a.shape, a.dtype, a.sharding, a.deleted) for a in arrays}) > 1:
                return Agreement.DIFFERENT
            if self._differing_parts():
                return Agreement.REPLICAS_DIFFER
            if not arrays[0].fully_replicated:
                return Agreement.SHARDED
            return Agreement.UNVERIFIED if self._uncompared_parts() else Agreement.SAME
        if len({info.type_name for info in known}) > 1 or len({a.deleted for a in arrays}) > 1:
            return Agreement.DIFFERENT
        if self._differing_parts():
            return Agreement.REPLICAS_DIFFER
        digests = {info.digest for info in known}
        if b"" in digests:
            return Agreement.SAME if len(known) == 1 else Agreement.UNCOMPARED
        return Agreement.SAME if len(digests) == 1 else Agreement.DIFFERENT

    @cached_property
    def array(self) -> ArrayInfo | None:
        """The last expression's array: all processes' descriptions of a global one as one.

        Of arrays that each process holds for itself it is the first, or the first whose
        replicas differ.
        """
        infos = [r.value_info for r in self.per_process.values() if r.value_info is not None]
        arrays = [info.array for info in infos if info.array is not None]
        if not arrays or len(arrays) != len(infos):
            return None
        if any(a.fully_addressable for a in arrays):
            return next((a for a in arrays if _differs_in_parts(a)), arrays[0])
        digests = {s.device_id: s.digest for a in arrays for s in a.shards if s.digest}
        shards = tuple(replace(s, digest=digests.get(s.device_id, b"")) for s in arrays[0].shards)
        corner = dict(pair for a in arrays for pair in a.corner)
        return replace(arrays[0], shards=shards, corner=tuple(sorted(corner.items())))

    def _differing_parts(self) -> bool:
        return self.array is not None and _differs_in_parts(self.array)

    def _uncompared_parts(self) -> bool:
        array = self.array
        if array is None or array.deleted or len(self.per_process) == 1:
            return False
        return any(not s.digest and s.process_index in self.per_process for s in array.shards)

    @cached_property
    def value(self) -> Any:
        """The last expression's value: one for the group if the processes agree.

        Returns:
            The value; for an array spread over processes its
            :class:`~jaxnb.model.ArrayInfo`; where the processes' values differ or cannot be
            compared, a :class:`PerProcess` of them; None if the cell has no value.
        """
        match self.agreement:
            case Agreement.NO_VALUE:
                return None
            case Agreement.SAME | Agreement.UNVERIFIED:
                return next(iter(self.per_process.values())).value
            case Agreement.SHARDED:
                return self.array
            case _:
                return PerProcess({i: r.value for i, r in self.per_process.items()})


def _differs_in_parts(array: ArrayInfo) -> bool:
    """Whether replicas of a part of the array are known to differ."""
    seen: dict[tuple[tuple[int, int], ...], bytes] = {}
    return any(
        shard.digest and seen.setdefault(shard.index, shard.digest) != shard.digest
        for shard in array.shards
    )
