"""``jaxnb run NOTEBOOK.ipynb``: nbclient runs it, papermill sets its parameters."""

from __future__ import annotations

import ast
import asyncio
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxnb.cli import terminal
from jaxnb.cli.scripts import require_writable
from jaxnb.cli.terminal import say
from jaxnb.display.markup import strip_ansi
from jaxnb.errors import UsageError
from jaxnb.labels import one_line


def run_notebook(
    path: str, output: str, timeout: float | None, parameters: Mapping[str, str]
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
        from traitlets.config import Config
    except ImportError as error:
        raise UsageError(_not_imported("nbclient", "lab", error)) from error
    notebook = _read(path)
    require_writable(output or path, instead="" if output else "Name another with --output.")
    if parameters:
        notebook = _with_parameters(path, parameters)
    manager = {}
    if hasattr(AsyncKernelManager, "transport_encryption"):  # else ipykernel warns of plain text
        manager["transport_encryption"] = "auto"
    client = NotebookClient(
        notebook,
        config=Config({"KernelManager": manager}),
        timeout=timeout,
        resources={"metadata": {"path": str(Path(path).absolute().parent)}},
        on_notebook_start=_take_signals,
        on_cell_executed=_show,
    )
    status = 1
    try:
        status = _executed(client, path)
    finally:
        try:
            nbformat.write(notebook, output or path)  # type: ignore[no-untyped-call]
        except OSError as error:
            say(f"{output or path} could not be written: {error.strerror}")
            status = status or 1
    return status


def _executed(client: Any, path: str) -> int:
    """Runs the cells, and returns the exit status."""
    from jupyter_client.kernelspec import NoSuchKernel
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    try:
        with terminal.installed():
            client.execute()
    except terminal.Ended as end:
        return end.status
    except CellExecutionError:  # which is among the outputs of its cell
        return 1
    except (CellTimeoutError, DeadKernelError, NoSuchKernel) as error:
        say(f"{path}: {one_line(str(error), 300)}")
        return terminal.TIMED_OUT if isinstance(error, CellTimeoutError) else 1
    return 0


def _show(*, cell: Any, **_: Any) -> None:
    """Writes the text of a cell's outputs; nbclient calls this when the cell has ended."""
    for each in cell.outputs:
        is_error = each.output_type == "error"
        stream = sys.stderr if is_error or each.get("name") == "stderr" else sys.stdout
        text = each.get("text") or each.get("data", {}).get("text/plain", "")
        if is_error:
            text = "\n".join(each.traceback)
        if text:
            text = text if stream.isatty() else strip_ansi(text)
            print(text, file=stream, end="" if each.output_type == "stream" else "\n", flush=True)


def _read(path: str) -> Any:
    """Returns a notebook of which nbclient can run the cells."""
    import nbformat

    try:
        notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
        _ = notebook["metadata"], [(c["cell_type"], c["source"]) for c in notebook["cells"]]
    except Exception as error:  # of many kinds, where it is JSON but not a notebook
        raise UsageError(f"Cannot read the notebook {path!r}: {one_line(repr(error))}") from error
    return notebook


def _with_parameters(path: str, parameters: Mapping[str, str]) -> Any:
    try:
        from papermill.iorw import load_notebook_node
        from papermill.parameterize import parameterize_notebook
    except ImportError as error:
        raise UsageError(_not_imported("papermill", "cli", error)) from error
    notebook = load_notebook_node(path)
    tagged = [each.source for each in notebook.cells if "parameters" in each.metadata.tags]
    unknown = [name for name in parameters if not re.search(rf"\b{name}\b", "\n".join(tagged))]
    if unknown:
        say(f"{path} has no {', '.join(unknown)} in a cell that is tagged `parameters`")
    kernel = notebook.metadata.get("kernelspec", {})
    return parameterize_notebook(
        notebook,
        {name: _value(text) for name, text in parameters.items()},
        kernel_name=kernel.get("name", "python3"),
        language=kernel.get("language", "python"),
    )


def _not_imported(package: str, extra: str, error: ImportError) -> str:
    reason = one_line(str(error))
    return f"{package} cannot be imported: {reason}. Type `pip install --upgrade 'jaxnb[{extra}]'`."


def _value(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _take_signals(**_: Any) -> None:
    """Has signals end this command as others: nbclient's handlers fail after the kernel's end."""
    for number in terminal.ENDING:
        asyncio.get_running_loop().remove_signal_handler(number)
    terminal.install()
