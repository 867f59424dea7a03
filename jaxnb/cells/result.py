"""What a cell did, as its user holds it: :class:`CellResult` and :class:`ProcessResult`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from math import inf
from typing import Any, Literal

from jaxnb.arrays.blocks import differing, lying, merged
from jaxnb.arrays.lost import Gather, PerProcess, unpickle
from jaxnb.callers import levels_to_caller
from jaxnb.debugging.steps import Steps
from jaxnb.errors import DivergenceWarning, JaxnbError, UsageError
from jaxnb.labels import by_text, one_line
from jaxnb.lockstep.divergence import NOTHING_RAN
from jaxnb.model.arrays import ArrayInfo
from jaxnb.model.cells import (
    NO_ANSWER,
    CellMemory,
    CellTiming,
    ProcessError,
    ProcessTiming,
    RichOutput,
    ValueInfo,
    code_seconds,
)
from jaxnb.model.dispatches import Cause, Difference, Divergence, UnequalInput
from jaxnb.model.insight import Pitfall
from jaxnb.model.scripts import cell_label
from jaxnb.pitfalls.findings import FirstNan

MOST_RAISED_CHARS = 160
"""Of a longer error the beginning is told while others are still in the cell."""

MOST_STOPPED_CHARS = 600
"""Of why processes were stopped: who was to do what."""

FOLLOW = (NO_ANSWER, "KeyboardInterrupt", "DivergenceError")
"""What a process raises because of another one, or of an interrupt."""


def place_of(value: ValueInfo | None) -> object:
    """Returns which array a value is, if it is one: processes may hold several, each of a mesh."""
    array = value.array if value is not None else None
    return None if array is None else lying(array)


def raised(errors: Mapping[int, ProcessError]) -> dict[str, list[int]]:
    """Returns what processes have raised, as clauses, and which ones; the causes alone, if any."""
    causes = {i: error for i, error in errors.items() if error.type_name not in FOLLOW}
    return by_text({i: _said(error) for i, error in (causes or errors).items()})


def _said(error: ProcessError) -> str:
    if error.type_name == "DivergenceError":  # one for all that take part, wherever each was
        why = error.message.partition(NOTHING_RAN)[0].rstrip()
        return f"raised DivergenceError: {one_line(why.rstrip('.'), MOST_STOPPED_CHARS)}"
    at = "" if error.line is None else f" at line {error.line}"
    first = one_line(error.message.partition("\n")[0], MOST_RAISED_CHARS)
    return f"raised {error.type_name}{at}{f': {first}' if first else ''}"


class Agreement(Enum):
    """How the last expression's values of the processes relate."""

    NO_VALUE = "no process has a value"
    SAME = "every process has the same value (byte-compared)"
    SUSPECT = "identical in every byte, but computed from inputs that differ between processes"
    SHARDED = "one array, spread over processes"
    DIFFERENT = "values differ by process"
    REPLICAS_DIFFER = "JAX treats the array as replicated, but its replicas differ"
    UNVERIFIED = "one replicated array, whose bytes were not compared (too large)"
    UNCOMPARED = "the values have no canonical bytes to compare"


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
        compiles: How many computations were compiled, or loaded.
        loads: How many of them were loaded, as another process has compiled them.
        memory: What it changed on each of its devices; empty if it changed nothing on any.
        computes: As the cell ended it still computed what the cell had dispatched.
        fetch: Brings a value that was too large to travel with the reply.
        gather: Makes an array that stayed on the processes from its index and description.
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
    loads: int = 0
    memory: tuple[CellMemory, ...] = ()
    computes: bool = False
    fetch: Callable[[Gather | None], Any] | None = field(default=None, repr=False, compare=False)
    gather: Gather | None = field(default=None, repr=False, compare=False)

    @property
    def code_seconds(self) -> float:
        """How long the cell's own code ran; in ``seconds`` is the formatting of its error."""
        return code_seconds(self.seconds, self.error)

    @cached_property
    def value(self) -> Any:
        """The last expression's value; None if there was none.

        A ``jax.Array`` that this process holds whole comes as a NumPy array. Of one that is
        spread over processes the value here is this process's own view: reading what others
        hold is an error, and :attr:`CellResult.value` has the whole. A large value is fetched
        on the first access.

        Raises:
            JaxnbError: The value cannot be pickled, cannot be read here (a class that the cell
                defined), or no longer exists on the process.
        """
        return self.value_as(self.gather)

    def value_as(self, gather: Gather | None) -> Any:
        """Returns the value, with its spread arrays made by ``gather``."""
        info = self.value_info
        if info is None:
            return None
        if info.array is not None and info.payload_note:  # spread over processes, or deleted
            return info.array if gather is None or info.array.deleted else gather(0, info.array)
        if info.payload is None and self.fetch is not None and not info.payload_note:
            return self.fetch(gather)
        if info.payload is None:
            raise JaxnbError(
                f"The value on process {self.process_index} ({info.type_name}) cannot be pulled: "
                f"{info.payload_note}. It is unchanged there, as `_`."
            )

        def array(index: int) -> Any:
            return gather(index, info.arrays[index]) if gather else info.arrays[index]

        try:
            return unpickle(info.payload, (), array)
        except Exception as error:  # a class of the cell, or a package that is missing here
            raise JaxnbError(
                f"The value on process {self.process_index} ({info.type_name}) cannot be read "
                f"in the notebook: {type(error).__name__}: {error}. What it is made of must be "
                "importable here too. It is unchanged there, as `_`."
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
        divergence: Where the processes were about to part, of which nothing has run, or in which
            order they have dispatched that was not the same. None if they agreed, or if that was
            not checked.
        unequal_names: Names that hold parts of different arrays since this cell, which did not
            end alike on all processes: arrays of different steps, after an interrupt.
        pitfalls: What the cell did that JAX says nothing of; a cause that an earlier cell has
            told of is left out.
        first_nan: Where NaN appeared first, if that was looked for; None if nowhere.
        timing: How long its calls took, if it was timed.
        gather: Makes an array that stayed on the processes from its index and description.
        unequal: Replicated inputs and results of its computations whose bytes differ.
        cause: Why its processes diverged, or waited until they were interrupted, or one had
            died, in a word: ``"program"``, ``"input"``, ``"order"``, ``"missing"``, ``"dead"``,
            or ``"slow"``. Empty if they did not, or if it is not known.
        suspect: Of what parts its value is made, if these are of different arrays; empty if they
            are not, as far as is known.
        steps: The lines that it ran within ``shard_map``, if these were asked for.
        is_called: It is code that the cell of this number, in the notebook, gave to
            :meth:`Session.run`: its lines are not that cell's.
        profile: The folder with the profiles of its processes; empty if there is none.
    """

    cell: int
    code: str
    per_process: Mapping[int, ProcessResult]
    num_processes: int
    seconds: float
    stdout: str = ""
    stderr: str = ""
    divergence: Divergence | None = None
    unequal_names: tuple[Difference, ...] = ()
    pitfalls: tuple[Pitfall, ...] = ()
    first_nan: FirstNan | None = None
    timing: CellTiming | None = None
    gather: Gather | None = field(default=None, compare=False)
    unequal: tuple[UnequalInput, ...] = ()
    cause: Cause | Literal[""] = ""
    suspect: str = ""
    steps: Steps | None = None
    is_called: bool = False
    profile: str = ""

    def __repr__(self) -> str:
        outcome = f"errors on {sorted(self.errors)}" if self.errors else self.agreement.value
        return (
            f"<CellResult of cell [{self.cell}] on {len(self.per_process)} of "
            f"{self.num_processes} processes, {self.seconds:.3g} s: {outcome}>"
        )

    @property
    def label(self) -> str:
        """What errors call it: ``"cell [7]"``."""
        label = cell_label(self.cell)
        return f"code that {label} has run" if self.is_called else label

    @property
    def errors(self) -> dict[int, ProcessError]:
        """Process index to what it raised, for those that raised."""
        return {i: r.error for i, r in self.per_process.items() if r.error is not None}

    def raised_at(self, process: int) -> tuple[float, float]:
        """Returns what to order processes by that raised, the first one first."""
        error = self.errors[process]
        return (inf if error.at is None else error.at, self.per_process[process].seconds)

    @cached_property
    def agreement(self) -> Agreement:
        """How the values of the processes relate; from digests, nothing is fetched."""
        found = self._agreement()
        return Agreement.SUSPECT if found is Agreement.SAME and self.suspect else found

    def _agreement(self) -> Agreement:
        infos = [r.value_info for r in self.per_process.values()]
        if all(info is None for info in infos):
            return Agreement.NO_VALUE
        if any(info is None for info in infos):
            return Agreement.DIFFERENT
        known = [info for info in infos if info is not None]
        arrays = [info.array for info in known if info.array is not None]
        array = self.array
        replicas_differ = array is not None and bool(differing(array))
        if len(arrays) == len(known) and (
            _is_one_array(arrays) or not any(a.fully_addressable for a in arrays)
        ):
            if len({(a.dtype, a.deleted, lying(a)) for a in arrays}) > 1:
                return Agreement.DIFFERENT
            if replicas_differ:
                return Agreement.REPLICAS_DIFFER
            # Of an array on one device of one process there is no replica either.
            if not arrays[0].fully_replicated or len(arrays[0].shards) == 1 < len(arrays):
                return Agreement.SHARDED
            if array is None or array.deleted or len(self.per_process) == 1:
                return Agreement.SAME
            here = [s for s in array.shards if s.process_index in self.per_process]
            return Agreement.SAME if all(s.digest for s in here) else Agreement.UNVERIFIED
        # Of several: one of its own and one of several processes; other types; a deleted one.
        if any(
            len(kinds) > 1
            for kinds in (
                {a.fully_addressable for a in arrays},
                {info.type_name for info in known},
                {a.deleted for a in arrays},
            )
        ):
            return Agreement.DIFFERENT
        if replicas_differ:
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
        if any(a.fully_addressable for a in arrays) and not _is_one_array(arrays):
            return next((a for a in arrays if differing(a)), arrays[0])
        return merged(arrays)

    @cached_property
    def value(self) -> Any:
        """The last expression's value: one for the group if the processes agree.

        Returns:
            The value. An array that is spread over processes comes as a
            :class:`jaxnb.GatheredArray`, whose data stay there until they are used.
            Where the processes' values differ or cannot be compared, a
            :class:`PerProcess` of them; None if the cell has no value. If it is made of parts
            of different arrays, a :class:`~jaxnb.errors.DivergenceWarning` says so.
        """
        if self.suspect:
            warnings.warn(
                f"The value of cell [{self.cell}] {self.suspect}.",
                DivergenceWarning,
                stacklevel=levels_to_caller(),
            )
        match self.agreement:
            case Agreement.NO_VALUE:
                return None
            case Agreement.SAME | Agreement.UNVERIFIED | Agreement.SUSPECT:
                results = list(self.per_process.values())  # all but spread arrays are whole
                whole = (r for r in results if r.value_info and not r.value_info.payload_note)
                return next(whole, results[0]).value_as(self.gather)
            case Agreement.SHARDED:
                array = self.array
                if array is None or array.deleted or self.gather is None:
                    return array
                return self.gather(0, array)
            case _:
                return PerProcess({i: r.value for i, r in self.per_process.items()})


def _is_one_array(arrays: Sequence[ArrayInfo]) -> bool:
    """Whether processes mean one global array, though its devices may all be one process's."""
    return len(arrays) > 1 and len({lying(a) for a in arrays}) == 1


MAX_REPEATS = 100_000
"""Of those that the user asks for."""


def calls_of(repeats: int | None, steps: bool = False) -> int | None:
    """Returns how many calls a timed cell has; None for as many as take about a second.

    Args:
        repeats: How many repeats the user wants.
        steps: Whether the cell's steps are wanted too.

    Raises:
        UsageError: That number is not possible, or steps are not timed.
    """
    if steps:
        raise UsageError("`steps` and `time` exclude each other. Nothing was run.")
    if repeats is None:
        return None
    if isinstance(repeats, bool) or not isinstance(repeats, int):
        raise UsageError(f"The number of repeats is a whole number, not {repeats!r}.")
    if not 1 <= repeats <= MAX_REPEATS:
        raise UsageError(
            f"The number of repeats is from 1 to {MAX_REPEATS}, not {repeats}. Nothing was run."
        )
    return 1 + repeats


def timing_of(calls: dict[int, tuple[float, ...]]) -> CellTiming:
    """Returns what the calls of each process come to, the first apart."""
    return CellTiming(
        {i: ProcessTiming(i, each[0] if each else None, each[1:]) for i, each in calls.items()}
    )
