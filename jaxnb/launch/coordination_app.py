"""JAX's coordination service as a program, for launchers that do not fork."""

from __future__ import annotations

import os
import sys

from jaxnb.engine import coordination
from jaxnb.launch import lifeline


def main() -> None:
    """Runs the service until its owner ends: ``host port num_processes owner_pid``.

    Writes its address to standard output as one line.
    """
    host, port, num_processes, owner_pid = sys.argv[1:]
    lifeline.watch_owner(int(owner_pid), lambda: os._exit(0))
    coordination.serve(host, int(port), int(num_processes), os.dup(1))


if __name__ == "__main__":
    main()
