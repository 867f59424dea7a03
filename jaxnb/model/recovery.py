"""Forming a group anew in living processes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReformRequest:
    """Asks a process to leave its broken group and to join a new one, with its variables.

    Attributes:
        coordinator_address: ``host:port`` of the new coordination service.
        timeout_seconds: How long to wait for the others.
    """

    coordinator_address: str
    timeout_seconds: int


@dataclass(frozen=True, slots=True)
class Reformed:
    """A process has joined the new group.

    Attributes:
        process_index: Who answers.
        arrays: How many arrays it has put back on its devices.
        nbytes: Their size in bytes, of its own shards.
        lost: What could not be kept, in words.
        collective_ports: Where its collectives listen now.
        left_service: Whether the old coordination service may end, as far as it is concerned.
        seconds: What it took.
    """

    process_index: int
    arrays: int
    nbytes: int
    lost: tuple[str, ...]
    collective_ports: tuple[int, ...]
    left_service: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Recovered:
    """A group that was formed anew, with its variables.

    Attributes:
        processes: What each process says.
    """

    processes: tuple[Reformed, ...]

    @property
    def arrays(self) -> int:
        """How many arrays were kept, on the process that has most."""
        return max(process.arrays for process in self.processes)

    @property
    def nbytes(self) -> int:
        """Bytes of all their shards."""
        return sum(process.nbytes for process in self.processes)

    @property
    def lost(self) -> tuple[str, ...]:
        """What could not be kept, in words."""
        return tuple(dict.fromkeys(thing for p in self.processes for thing in p.lost))

    @property
    def seconds(self) -> float:
        """What the slowest process took."""
        return max(process.seconds for process in self.processes)
