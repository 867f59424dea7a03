"""What the table is spanned by: when, how, and which process; and what has no meaning."""

from __future__ import annotations

import os
from itertools import product

SHAPE = "JAXNB_TABLE_SHAPE"

IS_REPORT = SHAPE in os.environ
"""Whether the rows are played for ``make faults-report``."""

PROCESSES, DEVICES = map(int, os.environ.get(SHAPE, "3x1").split("x"))
"""The group: its processes, and the devices of each. ``make faults-report`` takes several."""

QUEUED = int(os.environ.get("JAXNB_TABLE_QUEUED", "0"))
"""So many collectives others have dispatched when they come to the one that they wait in."""

WHEN = ("starting", "idle", "Python", "collective", "pull", "push", "re-forming")

ENDS = ("raise", "sys.exit", "os._exit", "SIGSEGV", "SIGKILL", "SIGSTOP", "loop")
"""What one process does, or what is done to it."""

AGREED = (
    "collective", "device_put", "allgather", "first compile", "sync_global_devices", "barrier",
)  # fmt: skip
"""Waits that begin once all processes have come to them."""

WAITS_IN_JAX = (*AGREED, "key")
WAITS_IN_PYTHON = ("subprocess", "lock", "swallow", "swallow all")
DEADLOCKS = WAITS_IN_JAX + WAITS_IN_PYTHON
"""Waits that never end. ``swallow`` is a busy loop in Python that swallows KeyboardInterrupt,
``swallow all`` one in another that both swallow all exceptions."""

COMPUTATIONS = ("order", "constant", "one more", "one fewer")
VALUES = ("shape", "some ranks", "scalars", "NumPy arrays", "keys", "replicas")
MISMATCHES = COMPUTATIONS + VALUES
"""What the processes do, or have, that is not the same."""

HOW = (
    *ENDS,
    *(f"deadlock: {kind}" for kind in DEADLOCKS),
    *(f"mismatch: {kind}" for kind in MISMATCHES),
)

WHICH = ("0", "last")

Place = tuple[str, str, str]
"""When, how, which."""


def index_of(which: str) -> int:
    """Returns the process index."""
    return {"0": 0, "last": PROCESSES - 1}[which]


def _places(when: str, kinds: tuple[str, ...], prefix: str = "") -> list[tuple[str, str]]:
    return [(when, f"{prefix}{kind}") for kind in kinds]


_ONE_WAIT = "a wait for other processes, as `deadlock: collective`"
_SILENT = "silent to the notebook, as `loop`"

NO_ROW: dict[tuple[str, str], str] = {
    **dict.fromkeys(_places("starting", DEADLOCKS, "deadlock: "), _SILENT),
    **dict.fromkeys(_places("starting", MISMATCHES, "mismatch: "), "no code of the user's runs"),
    **dict.fromkeys(_places("idle", DEADLOCKS, "deadlock: "), "nobody waits for an idle process"),
    **dict.fromkeys(_places("idle", MISMATCHES, "mismatch: "), "nothing is dispatched"),
    **dict.fromkeys(
        _places("Python", MISMATCHES, "mismatch: "), "what differs is dispatched: see `collective`"
    ),
    **dict.fromkeys(_places("pull", WAITS_IN_JAX[1:], "deadlock: "), _ONE_WAIT),
    **dict.fromkeys(
        _places("pull", COMPUTATIONS, "mismatch: "), "what differs is dispatched: see `collective`"
    ),
    **dict.fromkeys(_places("push", WAITS_IN_JAX[1:], "deadlock: "), _ONE_WAIT),
    **dict.fromkeys(
        _places("push", MISMATCHES, "mismatch: "), "the notebook gives all processes one value"
    ),
    **dict.fromkeys(_places("re-forming", DEADLOCKS, "deadlock: "), _SILENT),
    **dict.fromkeys(
        _places("re-forming", COMPUTATIONS, "mismatch: "), "nothing of the user's is dispatched"
    ),
}
"""When and how, to why there is no row for either process."""


def all_places() -> set[Place]:
    """Returns all that there could be a row for."""
    return set(product(WHEN, HOW, WHICH))
