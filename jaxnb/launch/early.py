"""A fork server that is started first: it imports JAX while this process imports what uses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxnb.launch.folder import make_folder
from jaxnb.launch.forkclient import ForkServerClient

_server: ForkServerClient | None = None


def start() -> None:
    """Starts a fork server for the next group, which need not come: it ends with this process.

    Raises:
        StartError: There is no folder for it.
    """
    global _server
    _server = ForkServerClient(make_folder(), lambda _: None)


def take(on_event: Callable[[dict[str, Any]], None]) -> ForkServerClient | None:
    """Returns the fork server that was started, once; None if none was.

    Args:
        on_event: Told of its events from now on.
    """
    global _server
    server, _server = _server, None
    if server is not None:
        server.on_event = on_event
    return server
