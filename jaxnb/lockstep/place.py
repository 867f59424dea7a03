"""Pure: where the conductor listens."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

_SCHEME = "unix:"


def conductor_beside(address: str) -> Path:
    """Returns the path of the socket of the conductor that is hosted with a coordination service.

    Args:
        address: The service's: ``"unix:/folder/jax-123"``.
    """
    if not address.startswith(_SCHEME):
        raise ValueError(f"no conductor is hosted beside a service at {address}")
    return Path(unquote(address.removeprefix(_SCHEME)) + "-conductor")
