"""Where the table's groups run, and what starts them.

On this host by a fork server, or over the hosts of ``JAXNB_TABLE_HOSTS``, or by what
``JAXNB_TABLE_LAUNCHER`` names: ``slurm`` (in an allocation of these hosts), ``mpi``, or ``attach``
(by engines that run as long as the table is played). All rows, in these ways::

    export PYTHONPATH=tests PATH=$PWD/.venv/bin:$PATH
    table="-m pytest tests/faults/test_table.py" shape=JAXNB_TABLE_SHAPE=4x1
    hosts="$shape JAXNB_TABLE_HOSTS=hostA:2,hostB:2"
    python -m support.hosts env $hosts .venv/bin/python $table
    python -m support.slurm salloc -N2 --ntasks-per-node=2 \\
        env $hosts JAXNB_TABLE_LAUNCHER=slurm .venv/bin/python $table
    python -m support.mpi mpich env $shape JAXNB_TABLE_LAUNCHER=mpi python $table
    env $shape JAXNB_TABLE_LAUNCHER=attach python $table

Process ids are those of their own host, so what is done to one is done there, by ssh if need be.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ipyparallel as ipp
import pytest

from faults.table.rows import PROCESSES
from jaxnb.model.group import ProcessInfo
from support.fixtures import until
from support.hosts import SHARED

HOSTS = os.environ.get("JAXNB_TABLE_HOSTS", "")

LAUNCHER = os.environ.get("JAXNB_TABLE_LAUNCHER", "")

PROFILE = "table"
"""That of the engines."""

_OTHERS = [
    name
    for name in (each.partition(":")[0] for each in HOSTS.split(",") if each)
    if name != socket.gethostname()
]


def options() -> dict[str, Any]:
    """Returns the options of a start that say where, and what starts it."""
    if LAUNCHER == "attach":
        return {"attach": PROFILE}
    return {"hosts": HOSTS, "launcher": LAUNCHER or None}


@contextmanager
def engines(folder: Path) -> Iterator[None]:
    """Has engines run that start groups, if engines are to; a folder has what is theirs."""
    if LAUNCHER != "attach":
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        with ipp.Cluster(n=PROCESSES, profile=PROFILE, cluster_id=""):
            yield


def ran(host: str, command: str) -> str:
    """Runs a shell's command on a host; returns what it prints."""
    words = ["sh", "-c", command] if host not in _OTHERS else ["ssh", host, command]
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout


def send(process: ProcessInfo, signum: int) -> None:
    """Sends a process of the group a signal."""
    ran(process.host, f"kill -{int(signum)} {process.pid}")


def is_stopped(process: ProcessInfo) -> bool:
    """Whether it does not run, though it lives."""
    return ran(process.host, f"ps -o stat= -p {process.pid}").startswith("T")


def named(process: ProcessInfo) -> str:
    """Returns the process id, as messages have it."""
    return f"{process.pid} on {process.host}" if HOSTS or LAUNCHER else str(process.pid)


def elsewhere() -> list[str]:
    """Returns what there is on the other hosts: the programs that run, and temporary files."""
    found = []
    for host in _OTHERS:
        lines = ran(host, "ps -e -o stat=,comm=; ls -A /tmp /dev/shm").splitlines()
        living = [line.split() for line in lines if line and not line.startswith("Z")]
        # The connection of the look before this one may not have ended.
        found += sorted(words[-1] for words in living if not words[-1].startswith("sshd"))
    return found


def assert_elsewhere_is(before: list[str]) -> None:
    """Fails unless there is on the other hosts what there was; processes have a moment to end."""
    until(lambda: elsewhere() == before, f"elsewhere was {before}")


def shared(folder: Path) -> Path:
    """Returns a folder that all of the hosts have: this one, if there is no other."""
    return Path(os.environ[SHARED]) if HOSTS else folder


@contextmanager
def importing_from(folder: Path) -> Iterator[None]:
    """Has programs that jaxnb starts on any of the hosts import from a folder, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        for host in _OTHERS:
            ran(host, f"echo export PYTHONPATH={folder} >.bashrc")
        _in_engines(f"os.environ['PYTHONPATH'] = {str(folder)!r}")
        try:
            yield
        finally:
            for host in _OTHERS:
                ran(host, "rm .bashrc")
            _in_engines("del os.environ['PYTHONPATH']")


def _in_engines(code: str) -> None:
    if LAUNCHER == "attach":
        with ipp.Client(profile=PROFILE, cluster_id="") as client:
            client[:].apply_sync(exec, f"import os; {code}")  # not execute: it may miss its output
