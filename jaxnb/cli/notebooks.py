"""``jaxnb run NOTEBOOK.ipynb``: nbclient runs it, papermill sets its parameters."""

from __future__ import annotations

import ast
import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxnb.cli import signals
from jaxnb.cli.terminal import say
from jaxnb.display.ansi import strip_ansi
from jaxnb.errors import UsageError
from jaxnb.labels import one_line


def run_notebook(
    path: str, *, output: str, timeout: float | None, parameters: Mapping[str, str]
) -> int:
    """Runs a notebook in a kernel of its own, and saves it with its outputs, whatever happens.

    Its ``%%spmd`` cells start and use groups as in JupyterLab. The kernel ends with this process.

    Args:
        path: The notebook.
        output: Where it is saved; in place if empty.
        timeout: Seconds that each cell may take.
        parameters: Names to Python literals, or plain text: set in a cell after the one that is
            tagged ``parameters``.

    Returns:
        The exit status: 0, 1 after an error in a cell, 124 after a time-out.

    Raises:
        UsageError: It cannot be run; nothing was.
    """
    try:
        import nbformat
        from jupyter_client.manager import AsyncKernelManager
        from nbclient import NotebookClient
        from nbclient.exceptions import CellExecutionError, CellTimeoutError
        from traitlets.config import Config
    except ImportError as error:
        raise UsageError(
            "To run notebooks type `pip install 'jaxnb[lab]'`, which brings nbclient."
        ) from error
    try:
        notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    except (OSError, nbformat.reader.NotJSONError) as error:
        raise UsageError(f"Cannot read the notebook {path!r}: {one_line(str(error))}") from error
    if parameters:
        notebook = _with_parameters(path, parameters)
    manager = {}
    if hasattr(AsyncKernelManager, "transport_encryption"):  # else ipykernel warns of plain text
        manager["transport_encryption"] = "auto"
    client: Any = NotebookClient(
        notebook,
        config=Config({"KernelManager": manager}),
        timeout=timeout,
        resources={"metadata": {"path": str(Path(path).absolute().parent)}},
        on_cell_executed=_show,
        on_notebook_start=_take_signals,
    )
    status = 0
    try:
        with signals.installed():
            client.execute()
    except signals.Ended as end:
        status = end.status
    except CellTimeoutError as error:
        say(f"{path}: {one_line(str(error), 300)}")
        status = signals.TIMED_OUT
    except CellExecutionError as error:
        text = str(error)
        sys.stderr.write(f"{text if sys.stderr.isatty() else strip_ansi(text)}\n")
        status = 1
    finally:
        nbformat.write(notebook, output or path)  # type: ignore[no-untyped-call]
    return status


def _with_parameters(path: str, parameters: Mapping[str, str]) -> Any:
    try:
        from papermill.iorw import load_notebook_node
        from papermill.parameterize import parameterize_notebook
    except ImportError as error:
        raise UsageError(
            "For parameters of notebooks type `pip install 'jaxnb[cli]'`, which brings papermill."
        ) from error
    values = {k: _value(v) for k, v in parameters.items()}
    return parameterize_notebook(load_notebook_node(path), values)


def _value(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _take_signals(**_: Any) -> None:
    """Has signals end this command as others: nbclient's handlers fail after the kernel's end."""
    for number in signals.ENDING:
        asyncio.get_running_loop().remove_signal_handler(number)
    signals.install()


def _show(cell: Any, cell_index: int, **_: Any) -> None:
    """Writes the text that a cell has put out."""
    for output in cell.get("outputs", ()):
        stream = sys.stderr if output.get("name") == "stderr" else sys.stdout
        data = output.get("data", {}).get("text/plain", "")
        text = output.get("text", data)
        stream.write(text if text.endswith("\n") or not text else f"{text}\n")
        stream.flush()
