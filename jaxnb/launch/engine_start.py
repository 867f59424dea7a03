"""From a fork server's command to a running engine that has joined its group."""

from __future__ import annotations

import faulthandler
import os
import sys
from dataclasses import asdict, dataclass
from typing import Any

from jaxnb.model.cells import JoinRequest


@dataclass(frozen=True, slots=True)
class EngineStart:
    """What one forked engine needs.

    Attributes:
        environment: All of its environment variables.
        connection_info: How to reach the controller, as ipyparallel's JSON.
        identity: The name that the controller routes by.
        join: Its place in the group.
        directory: Its working directory.
    """

    environment: dict[str, str]
    connection_info: str
    identity: str
    join: JoinRequest
    directory: str


def command(starts: list[EngineStart]) -> list[dict[str, Any]]:
    """Returns the starts as plain data for JSON."""
    return [asdict(start) for start in starts]


def prepare(command: dict[str, Any], position: int) -> EngineStart:
    """Reads one of the starts from a command."""
    fields = dict(command["starts"][position])
    join = fields.pop("join")
    return EngineStart(**fields, join=JoinRequest(**join))


def run(start: EngineStart, cluster_dir: str) -> None:
    """Runs an engine in this process, which has just been forked, until it is told to stop.

    It joins before it registers with the controller: the joining of all processes overlaps
    the controller's start, and a failure to join ends the process with its reason as the
    last lines it wrote.
    """
    from jaxnb.launch import engine_app, process_bootstrap

    reseed()
    os.environ.clear()
    os.environ.update(start.environment)
    os.chdir(start.directory)
    faulthandler.enable(2)  # before it joins: a plugin that JAX loads then may crash
    process_bootstrap.join(start.join)
    config = engine_app.engine_config(cluster_dir, start.identity)
    engine_app.run(config, start.connection_info)


def reseed() -> None:
    """Seeds the generators anew whose state this process has from the fork server.

    NumPy seeds its global generator as it is imported, so all engines, those of a restart too,
    would draw the same numbers; a program started by itself draws its own. ``random`` seeds itself
    anew in every forked child, and ``secrets``, ``uuid4`` and ``default_rng()`` ask the system.
    """
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # from the system's entropy
