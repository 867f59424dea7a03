"""The launchers, by name: ipyparallel finds each by an entry point ``jaxnb_NAME``."""

from __future__ import annotations

import sys

from jaxnb.options import StartOptions, one_of

LAUNCHERS = ("fork", "local")
"""``"fork"`` forks processes from one that has imported jax; ``"local"`` starts each by itself."""


def launcher_of(options: StartOptions) -> str:
    """Returns the name of the launcher that was asked for, or of the best on this system.

    Raises:
        UsageError: There is no launcher of that name.
    """
    return one_of("launcher", options.launcher or default_launcher(), LAUNCHERS)


def default_launcher() -> str:
    """Returns ``"fork"`` where forking after importing jax is known to be safe (Linux)."""
    return "fork" if sys.platform.startswith("linux") else "local"
