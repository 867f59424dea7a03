"""Pure: where the conductor listens."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

_SCHEME, _SERVICE, _CONDUCTOR = "unix:", "jax-", "lock-"
"""Short: a Unix socket's path may have some hundred bytes."""


def conductor_beside(address: str) -> Path:
    """Returns where the conductor listens that is hosted with a coordination service.

    Args:
        address: The service's: ``"unix:/folder/jax-123"``.
    """
    path = Path(unquote(address.removeprefix(_SCHEME)))
    if not address.startswith(_SCHEME) or not path.name.startswith(_SERVICE):
        raise ValueError(f"no conductor is hosted beside a service at {address}")
    return path.with_name(_CONDUCTOR + path.name.removeprefix(_SERVICE))
