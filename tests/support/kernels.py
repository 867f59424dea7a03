"""Notebooks of the tests: their kernels' ports, which nothing else takes, and nbclient.

Jupyter looks for free ports, lets go of them, and has the kernel take them a second later. The
groups of the tests beside it open a hundred sockets meanwhile, and a kernel that finds one of its
ports taken dies: JupyterLab shows "No Kernel", nbclient raises ``DeadKernelError``. So these are
below those that the system gives to whoever names none.
"""

from __future__ import annotations

import os
import random
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.manager import AsyncKernelManager
from jupyter_client.manager import KernelManager as BlockingKernelManager

CELL_TIMEOUT_SECONDS = 180
"""How long a cell of a notebook may run: the only clock of its test."""

_LOWEST = 12_000
_NAMES = ("shell_port", "iopub_port", "stdin_port", "hb_port", "control_port")


def kernel_ports() -> dict[str, int]:
    """Returns free ports of the loopback, by the names that Jupyter has for them."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    ports = range(_LOWEST + worker, _lowest_that_is_given(), workers)  # no other worker's
    found: list[int] = []
    while len(found) < len(_NAMES):
        port = random.choice(ports)
        if port not in found and _is_free(port):
            found.append(port)
    return dict(zip(_NAMES, found, strict=True))


def _lowest_that_is_given() -> int:
    path = Path("/proc/sys/net/ipv4/ip_local_port_range")
    # Elsewhere they begin at 49152, as IANA has it, or above what Linux has.
    return int(path.read_text().split()[0]) if path.exists() else 32_768


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


# nbformat takes seconds to import, by way of a parser of IRIs: of each worker that collects the
# tests it would take them, where one of them runs the notebooks.


def read_notebook(path: Path) -> Any:
    """Returns a notebook's content."""
    import nbformat

    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def write_notebook(notebook: Any, path: Path) -> None:
    """Writes a notebook's content."""
    import nbformat

    nbformat.write(notebook, path)  # type: ignore[no-untyped-call]


def new_code_cell(source: str) -> Any:
    """Returns a code cell that has not run."""
    from nbformat import v4

    return v4.new_code_cell(source)  # type: ignore[no-untyped-call]


def notebook_client(notebook: Any = None, **settings: Any) -> Any:
    """Returns a client that runs a notebook, or an empty one, in a kernel on such ports."""
    import nbformat
    from nbclient import NotebookClient

    if notebook is None:
        notebook = nbformat.v4.new_notebook()  # type: ignore[no-untyped-call]
    return NotebookClient(notebook, kernel_manager_class=KernelManager, **settings)


class KernelManager(AsyncKernelManager):
    """Starts a kernel on ports of the tests' own; for nbclient."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cache_ports=False, **kernel_ports(), **settings)


@dataclass
class Ran:
    """What a client saw of a cell.

    Attributes:
        prompts: What it was asked; the prompt of a password ends with ``"(hidden)"``.
        text: What the cell printed.
        shown: The plain text of what it displayed, the last state of each.
        error: Its error, without colours; empty if it succeeded.
    """

    prompts: list[str] = field(default_factory=list)
    text: str = ""
    shown: list[str] = field(default_factory=list)
    error: str = ""


class AskedKernel:
    """A kernel, and a client that answers what its cells ask; ``close`` ends both."""

    def __init__(self) -> None:
        self.manager = BlockingKernelManager(cache_ports=False, **kernel_ports())
        self.manager.start_kernel(env=dict(os.environ))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=CELL_TIMEOUT_SECONDS)

    def run(self, code: str, *answers: str | Callable[[], object], asks: bool = True) -> Ran:
        """Runs a cell.

        Args:
            code: The cell.
            answers: Each a text, or what is called instead of an answer.
            asks: Whether the client says that it can be asked.
        """
        ran, left = Ran(), list(answers)

        def take(message: Any) -> None:
            content = message["content"]
            match message["header"]["msg_type"]:
                case "stream":
                    ran.text += content["text"]
                case "display_data" | "update_display_data":
                    ran.shown.append(content["data"].get("text/plain", ""))
                case "error":
                    ran.error = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(content["traceback"]))

        def reply(message: Any) -> None:
            content = message["content"]
            ran.prompts.append(content["prompt"] + "(hidden)" * content["password"])
            given = left.pop(0)
            if isinstance(given, str):
                self.client.input(given)
            else:
                given()

        self.client.execute_interactive(
            code,
            allow_stdin=asks,
            output_hook=take,
            stdin_hook=reply,
            timeout=CELL_TIMEOUT_SECONDS,
        )
        assert not left, f"it asked only {ran.prompts}: {ran}"
        return ran

    def close(self, *, now: bool = False) -> None:
        """Shuts the kernel down, or kills it; a second call does nothing."""
        if self.manager.has_kernel:
            self.client.stop_channels()
            self.manager.shutdown_kernel(now=now)
