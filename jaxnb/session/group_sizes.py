"""What a group of another size is started with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from jaxnb.errors import UsageError
from jaxnb.labels import format_bytes
from jaxnb.launch.host import Placement, available_bytes, place
from jaxnb.options import StartOptions

PROCESS_BYTES = 60 << 20
"""What a process takes that has computed nothing, beside what it shares with others."""


class Size(NamedTuple):
    """How a group is started.

    Attributes:
        options: What is asked for.
        placement: Who gets what.
    """

    options: StartOptions
    placement: Placement

    @property
    def numbers(self) -> tuple[int, int]:
        """Processes, and devices of each."""
        return self.placement.num_processes, self.placement.devices_per_process

    def other(
        self, num_processes: int | None, devices_per_process: int | None, gpus: Sequence[str]
    ) -> Size | None:
        """Returns that of a group of another size; None if that is the same.

        Args:
            num_processes: How many processes it is to have; None for as many.
            devices_per_process: How many devices each is to have; None for as many.
            gpus: The GPUs of this host that may be used.

        Raises:
            UsageError: There are not so many GPUs, or not so much memory; or a number is none.
        """
        now = self.placement
        options = replace(
            self.options,
            num_processes=now.num_processes if num_processes is None else num_processes,
            devices_per_process=self.options.devices_per_process
            if devices_per_process is None
            else devices_per_process,
            platform=now.platform,
        )
        size = Size(options, place(options, gpus))
        require_room(size.placement, now.num_processes)
        return None if size.numbers == self.numbers else size


def require_room(placement: Placement, there_are: int = 0) -> None:
    """Looks whether so many processes fit into memory at all.

    Args:
        placement: Of a group that is to be started.
        there_are: Processes that will have ended by then.

    Raises:
        UsageError: They do not.
    """
    needed, room = placement.num_processes * PROCESS_BYTES, available_bytes()
    if needed > room + there_are * PROCESS_BYTES:
        raise UsageError(
            f"{placement.num_processes} processes take at least {format_bytes(needed)} of "
            f"memory, and {format_bytes(room)} is free. Nothing was changed. Ask for fewer (-n)."
        )
