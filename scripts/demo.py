"""Runs the quickstart notebook on real processes and prints what its cells show.

The executed notebook is left in ``notebooks/executed/``. The exit status is 1 if a cell
failed; the notebook is written then too, up to the cell that failed.

The kernel is the Python that runs this script; no kernel needs to be installed.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from traitlets import default

ROOT = Path(__file__).resolve().parents[1]
CELL_TIMEOUT_SECONDS = 180
ANSI = re.compile(r"\x1b\[[0-9;]*m")


class OwnKernel(AsyncKernelManager):
    """Starts the Python that runs this script, whichever kernels are installed."""

    @default("kernel_spec_manager")
    def _own_specification(self) -> KernelSpecManager:
        # In no folder at all, so that only ipykernel's own specification is found.
        return KernelSpecManager(kernel_dirs=[], ensure_native_kernel=True)


def say(text: str = "") -> None:
    """Prints, with colours only where the terminal shows them."""
    print(text if sys.stdout.isatty() else ANSI.sub("", text), flush=True)


def as_text(output: Any) -> str:
    """Returns what a plain terminal can show of one output of a cell."""
    match output["output_type"]:
        case "stream":
            return str(output["text"])
        case "error":
            return "\n".join(output["traceback"])
        case _:
            kinds = ", ".join(output["data"])
            return str(output["data"].get("text/plain", f"<{kinds}>"))


def show_source(cell: Any, cell_index: int) -> None:
    """Prints a cell's source before it runs."""
    if cell.cell_type == "code":
        say("\n" + "\n".join(f"  ┃ {line}" for line in cell.source.splitlines()))


def show_outputs(cell: Any, cell_index: int, execute_reply: Any) -> None:
    """Prints a cell's outputs once it has run."""
    for output in cell.outputs:
        if text := as_text(output).rstrip():
            say(text)


def run(source: Path, target: Path) -> int:
    """Executes a notebook, printing as it goes, and writes it to ``target``.

    Returns:
        The exit status: 0, or 1 if a cell failed.
    """
    notebook = nbformat.read(source, as_version=4)
    client = NotebookClient(
        notebook,
        kernel_manager_class=OwnKernel,
        kernel_name="python3",
        # ipykernel warns of a loopback connection without encryption.
        extra_arguments=["--log-level=ERROR"],
        timeout=CELL_TIMEOUT_SECONDS,
        resources={"metadata": {"path": str(source.parent)}},
        coalesce_streams=True,
        on_cell_start=show_source,
        on_cell_executed=show_outputs,
    )
    began = time.monotonic()
    failure = ""
    try:
        client.execute()
    except CellExecutionError as error:
        failure = f"a cell failed: {error.ename}: {error.evalue}"
    except (CellTimeoutError, DeadKernelError) as error:
        failure = f"the notebook stopped: {error}"
    finally:
        target.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, target)
    seconds = time.monotonic() - began

    say()
    if failure:
        print(f"demo: {failure}", file=sys.stderr)
    say(f"{source.relative_to(ROOT)} took {seconds:.1f} s; as executed: {target.relative_to(ROOT)}")
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(
        run(
            ROOT / "notebooks" / "quickstart.ipynb",
            ROOT / "notebooks" / "executed" / "quickstart.ipynb",
        )
    )
