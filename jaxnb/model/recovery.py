"""Forming a group anew: in living processes, and with new ones in the place of dead ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxnb.model.origins import Origin

Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class PutAway:
    """Asks a process to copy what belongs to its backend to host memory; nothing else changes."""


@dataclass(frozen=True, slots=True)
class JoinAgain:
    """Asks a process to leave its broken group and to join a new one, with what it has put away.

    Attributes:
        coordinator_address: Of the new coordination service, as gRPC takes it.
        timeout_seconds: How long to wait for the others.
        dead: The processes that have died: their shards are gone.
    """

    coordinator_address: str
    timeout_seconds: int
    dead: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Survey:
    """Asks a process that has outlived another what its names are bound to."""


@dataclass(frozen=True, slots=True)
class Give:
    """Asks a process for what new processes need of it.

    Attributes:
        names: The names whose values they get.
        replaced: The new processes.
        with_values: Give the values too; else shards only, and a digest of the values.
    """

    names: tuple[str, ...]
    replaced: tuple[int, ...]
    with_values: bool


@dataclass(frozen=True, slots=True)
class Take:
    """Gives a new process the names that it gets.

    Attributes:
        names: The names, in the order of the pickle.
        pickle: Pairs of a name and its value.
        buffers: What was left out of the pickle.
        pieces: Shards for its devices.
        origins: Where the arrays of the values come from.
        dead: Processes whose shards are lost: an array that had some there only is lost too.
    """

    names: tuple[str, ...]
    pickle: bytes
    buffers: tuple[Any, ...]
    pieces: tuple[Piece, ...]
    origins: tuple[Origin | None, ...] = ()
    dead: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CallHooks:
    """Asks a process to call what :func:`jaxnb.on_reform` was given; all processes at once."""


Step = PutAway | JoinAgain | Survey | Give | Take | CallHooks


@dataclass(frozen=True, slots=True)
class ReformRequest:
    """Asks a process for one step of the forming anew."""

    step: Step


@dataclass(frozen=True, slots=True)
class UnkeptArray:
    """An array that a process could not keep, as its computation was broken off, say.

    Attributes:
        name: Where the user has it, as a path: ``"params[0]['b']"``; empty if no name leads there.
        type: ``"float32[4, 2]"``.
        why: Why it is lost.
    """

    name: str
    type: str
    why: str

    def __str__(self) -> str:
        what = f"`{self.name}` ({self.type})" if self.name else self.type
        return f"{what} ({self.why})"


@dataclass(frozen=True, slots=True)
class LostPart:
    """A value, or a part of one, that could not be carried to another process.

    Attributes:
        path: Where the user has it: ``"state['loader']"``.
        type: What it is: ``"generator"``, ``"float32[4, 2]"``.
        reason: Why it is lost.
    """

    path: str
    type: str
    reason: str

    def __str__(self) -> str:
        return f"`{self.path}` ({self.type}): {self.reason}"


@dataclass(frozen=True, slots=True)
class Reformed:
    """A process has joined the new group.

    Attributes:
        process_index: Who answers.
        arrays: How many arrays it has put back on its devices.
        nbytes: Their size in bytes, of its own shards.
        lost: What else than arrays could not be kept, or arrays not as they were, in words.
        collective_ports: Where its collectives listen now.
        left_service: Whether the old coordination service may end, as far as it is concerned.
        seconds: What it took.
        lost_shards: Names of arrays that had shards on dead processes only.
        hooks: How many functions :func:`jaxnb.on_reform` was given.
        is_settled: Whether all that it had under way has ended.
        unkept: Arrays that could not be kept.
    """

    process_index: int
    arrays: int
    nbytes: int
    lost: tuple[str, ...]
    collective_ports: tuple[int, ...]
    left_service: bool
    seconds: float
    lost_shards: tuple[str, ...] = ()
    hooks: int = 0
    is_settled: bool = True
    unkept: tuple[UnkeptArray, ...] = ()


@dataclass(frozen=True, slots=True)
class Possession:
    """What a name is bound to on one process, as far as it could be given to another.

    Attributes:
        digest: Equal on two processes only if the values are, but for the elements of arrays
            that are spread over processes; empty if it cannot be given.
        reason: Why not.
        is_common: It is the same on every process by its nature: it has arrays or meshes of
            several processes in it, or is a module, or a function without values of its own.
        arrays: The arrays in it that are spread over processes, as paths.
        holders: The processes that have a part of each.
        replicas: Digests of their shards that others hold too: (array, box) to digest.
        origins: The numbers of where they come from; None for one of which that is not known.
        was_lost: It is an array that an earlier recovery has lost.
    """

    digest: bytes
    reason: str = ""
    is_common: bool = False
    arrays: tuple[str, ...] = ()
    replicas: Mapping[tuple[int, Box], bytes] = field(default_factory=dict)
    origins: tuple[int | None, ...] = ()
    was_lost: bool = False
    holders: tuple[frozenset[int], ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """A shard on its way to a new process.

    Attributes:
        array: The array's place among those of the given values.
        device_id: The device that it is for.
        process_index: The process that has that device.
        data: Its bytes on the host.
    """

    array: int
    device_id: int
    process_index: int
    data: Any


@dataclass(frozen=True, slots=True)
class Gift:
    """What a process gives to new ones.

    Attributes:
        digest: Of the values' pickle.
        pickle: The values, if asked for; else empty.
        buffers: What was left out of the pickle.
        pieces: Shards of which this process is to give its replica.
        origins: Where the values' arrays come from, if the values were asked for.
    """

    digest: bytes
    pickle: bytes
    buffers: tuple[Any, ...]
    pieces: tuple[Piece, ...]
    origins: tuple[Origin | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Taken:
    """A new process has its values, or none of them.

    Attributes:
        refused: Names that it cannot have, and why; then it has taken nothing.
        nbytes: Bytes of the shards that it has put on its devices.
    """

    refused: Mapping[str, str]
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class RescuedParcel:
    """Variables that were read out of a process before it was ended by force.

    Attributes:
        names: The names, in the order of the pickle.
        pickle: Pairs of a name and its value.
        buffers: What was left out of the pickle.
        pieces: The process's own shards of arrays that are spread over processes.
        origins: Where those arrays come from.
    """

    names: tuple[str, ...]
    pickle: bytes
    buffers: tuple[Any, ...]
    pieces: tuple[Piece, ...]
    origins: tuple[Origin | None, ...]


@dataclass(frozen=True, slots=True)
class Rescued:
    """What was read out of a process before it was ended by force.

    Attributes:
        parcels: All that could be pickled together, if it could; then each name by itself.
        missing: Names that could not be read, and why.
    """

    parcels: tuple[RescuedParcel, ...]
    missing: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Recovered:
    """A group that was formed anew, with its variables.

    Attributes:
        processes: What each process says that was there before.
        replaced: The processes that had died, and are new.
        given: Names that the new ones have from the others, which hold them equal.
        refilled: Arrays whose shards on the new ones were filled from replicas.
        missing: Names that the new ones do not have, and why.
        rescued: Process index to the names that were read out of the process that it replaces.
        total_seconds: What it took in all; 0 if only the processes' own time is known.
        hook_errors: What functions raised that :func:`jaxnb.on_reform` was given, in words.
        given_up: Processes that could not leave the old group and were replaced, and why.
    """

    processes: tuple[Reformed, ...]
    replaced: tuple[int, ...] = ()
    given: tuple[str, ...] = ()
    refilled: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    rescued: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    total_seconds: float = 0.0
    hook_errors: tuple[str, ...] = ()
    given_up: Mapping[int, str] = field(default_factory=dict)

    @property
    def arrays(self) -> int:
        """How many arrays were kept, on the process that has most."""
        return max((process.arrays for process in self.processes), default=0)

    @property
    def nbytes(self) -> int:
        """Bytes of all their shards."""
        return sum(process.nbytes for process in self.processes)

    @property
    def lost(self) -> tuple[str, ...]:
        """What could not be kept, in words."""
        arrays = [str(each) for p in self.processes for each in p.unkept]
        return tuple(dict.fromkeys([*arrays, *(thing for p in self.processes for thing in p.lost)]))

    @property
    def lost_shards(self) -> tuple[str, ...]:
        """Arrays that had shards on the dead processes only; each use of one raises."""
        return tuple(dict.fromkeys(name for p in self.processes for name in p.lost_shards))

    @property
    def unsettled(self) -> tuple[int, ...]:
        """Processes on which computations of before do not end."""
        return tuple(p.process_index for p in self.processes if not p.is_settled)

    @property
    def seconds(self) -> float:
        """What it took; without replaced processes, the slowest process's own time."""
        slowest = max((process.seconds for process in self.processes), default=0.0)
        return max(self.total_seconds, slowest)
