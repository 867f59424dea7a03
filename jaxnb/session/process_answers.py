"""What this process tells of its cell, whatever its main thread does."""

from __future__ import annotations

from collections.abc import Sequence

from jaxnb.lockstep import process_recorded
from jaxnb.lockstep.messages import Failures
from jaxnb.lockstep.process_origins import ORIGINS
from jaxnb.model.dispatches import Argument, DigestedArray, Processes, ProgramLine, Recording
from jaxnb.wire.process_sentinel import ThisProcess


def recording(process: ThisProcess) -> Recording:
    """Returns what it has dispatched in its cell."""
    return process.recorder.recording()


def failures(process: ThisProcess) -> dict[Processes, Failures]:
    """Returns what has failed of what it has dispatched, by the processes that it spans."""
    return process.recorder.launches.told()


def still_computed(process: ThisProcess) -> tuple[str, ...]:
    """Returns what it has dispatched that has not ended."""
    return process_recorded.still_computed()


def arguments(process: ThisProcess, processes: Sequence[int], number: int) -> list[Argument]:
    """Returns what it was to give to a dispatch of its last cell that was not made.

    Args:
        process: This process.
        processes: Those that the dispatch spans.
        number: Which one over these it is.
    """
    return process.recorder.arguments(tuple(processes), number)


def program(process: ThisProcess, fingerprint: int) -> list[ProgramLine]:
    """Returns a program that it has dispatched; empty if it does not remember it."""
    return process.recorder.programs.lines(fingerprint)


def bound(process: ThisProcess) -> dict[str, Argument]:
    """Returns the names that hold global arrays, and where those come from."""
    return {each.name: each for each in ORIGINS.bound()}


def digested(process: ThisProcess) -> list[DigestedArray]:
    """Returns the arrays whose replicas it has digested in its last cell."""
    return process.recorder.replicas.digested()


def chunks(process: ThisProcess, place: int, device: int) -> tuple[int, list[str]]:
    """Returns the size of a replica's pieces in bytes and their digests; none if it is gone.

    Args:
        process: This process.
        place: Which of the arrays that it has digested.
        device: On which of its devices.
    """
    return process.recorder.replicas.chunks(place, device)


def piece(process: ThisProcess, place: int, device: int, start: int, stop: int) -> bytes:
    """Returns bytes of a replica; none if it is gone. See :func:`chunks`."""
    return process.recorder.replicas.piece(place, device, start, stop)


def watch(process: ThisProcess, request_id: str) -> bool:
    """Looks at the main thread now and then, as long as that cell runs."""
    return process.sampler.watch(request_id)
