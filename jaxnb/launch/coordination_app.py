"""JAX's coordination service as a program, for launchers that do not fork."""

from __future__ import annotations

import os
import sys
import time

from jaxnb.launch import lifeline, process_coordination

OUTLIVES_PROCESSES_SECONDS = 2.0


def main() -> None:
    """Runs the service until its owner ends: ``folder num_processes owner_pid``.

    Writes its address to standard output as one line.
    """
    folder, num_processes, owner_pid = sys.argv[1:]

    def end() -> None:
        # XLA aborts a process that loses the service; this leaves those that lost the same
        # owner the time to end their own children first.
        time.sleep(OUTLIVES_PROCESSES_SECONDS)
        os._exit(0)

    lifeline.watch_owner(int(owner_pid), end)
    process_coordination.serve(folder, int(num_processes), os.dup(1))


if __name__ == "__main__":
    main()
