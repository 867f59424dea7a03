"""``jaxnb run NOTEBOOK.ipynb``: nbclient runs it, papermill sets its parameters."""

from __future__ import annotations

import ast
import asyncio
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jaxnb.cli import terminal
from jaxnb.cli.scripts import require_writable
from jaxnb.cli.terminal import say
from jaxnb.display.markup import strip_ansi
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
        from jupyter_client.manager import AsyncKernelManager
        from traitlets.config import Config

        from jaxnb.cli.live_notebook import LiveClient
    except ImportError as error:
        raise UsageError(
            f"{_not_imported('nbclient', error)} To run notebooks type `pip install --upgrade "
            "'jaxnb[lab]'`."
        ) from error
    notebook = _read(path)
    require_writable(output or path, instead="" if output else "Name another with --output.")
    if parameters:
        notebook = _with_parameters(path, parameters)
    manager = {}
    if hasattr(AsyncKernelManager, "transport_encryption"):  # else ipykernel warns of plain text
        manager["transport_encryption"] = "auto"
    client: Any = LiveClient(
        notebook,
        config=Config({"KernelManager": manager}),
        timeout=timeout,
        resources={"metadata": {"path": str(Path(path).absolute().parent)}},
        on_notebook_start=_take_signals,
    )
    client.on_cell_start, client.on_cell_executed = client.begin_cell, client.end_cell
    try:
        status = _executed(client, path)
    finally:
        is_saved = _save(notebook, output or path)
    return status or int(not is_saved)


def _save(notebook: Any, path: str) -> bool:
    """Writes a notebook, or says why not; returns whether it is written."""
    import nbformat

    try:
        nbformat.write(notebook, path)  # type: ignore[no-untyped-call]
    except OSError as error:
        say(f"{path} could not be written: {error.strerror}")
        return False
    return True


def _executed(client: Any, path: str) -> int:
    """Runs the cells, and returns the exit status."""
    from jupyter_client.kernelspec import NoSuchKernel
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    try:
        with terminal.installed():
            client.execute()
    except terminal.Ended as end:
        return end.status
    except CellTimeoutError as error:
        say(f"{path}: {one_line(str(error), 300)}")
        return terminal.TIMED_OUT
    except (NoSuchKernel, DeadKernelError) as error:
        say(f"{path}: {one_line(str(error), 300)}")
        return 1
    except CellExecutionError as error:
        text = str(error)
        sys.stderr.write(f"{text if sys.stderr.isatty() else strip_ansi(text)}\n")
        return 1
    return 0


def _read(path: str) -> Any:
    """Returns a notebook of which nbclient can run the cells."""
    import nbformat

    try:
        notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
        _ = (
            notebook["metadata"],
            [(each["cell_type"], each["source"]) for each in notebook["cells"]],
        )
    except (OSError, ValueError) as error:  # which says what is wrong
        raise UsageError(f"Cannot read the notebook {path!r}: {one_line(str(error))}") from error
    except (nbformat.ValidationError, AttributeError, KeyError, TypeError) as error:
        raise UsageError(f"{path!r} is not a notebook, though it is JSON.") from error
    return notebook


def _with_parameters(path: str, parameters: Mapping[str, str]) -> Any:
    try:
        from papermill.iorw import load_notebook_node
        from papermill.parameterize import parameterize_notebook
        from papermill.translators import papermill_translators
        from papermill.utils import find_first_tagged_cell_index
    except ImportError as error:
        raise UsageError(
            f"{_not_imported('papermill', error)} For parameters of notebooks type `pip install "
            "--upgrade 'jaxnb[cli]'`."
        ) from error
    values = {k: _value(v) for k, v in parameters.items()}
    notebook = load_notebook_node(path)
    kernel = notebook.metadata.get("kernelspec", {})
    language = kernel.get("language", "python")
    name = kernel.get("name", "python3")
    tagged = find_first_tagged_cell_index(notebook, "parameters")
    inspect = papermill_translators.find_translator(name, language).inspect
    known = [each.name for each in inspect(notebook.cells[tagged])] if tagged >= 0 else []
    unknown = sorted(values.keys() - {*known})
    if unknown and (known or tagged < 0):  # papermill does not read every assignment
        names = f"It has: {', '.join(known)}." if known else "No cell is tagged `parameters`."
        say(f"{path} has no parameter {', '.join(unknown)}. {names}")
    return parameterize_notebook(notebook, values, kernel_name=name, language=language)


def _not_imported(package: str, error: ImportError) -> str:
    """Says that a package is missing, or what is wrong with it."""
    if find_spec(package) is None:
        return f"{package} is not installed."
    return f"{package} is installed, but cannot be imported: {one_line(str(error))}."


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
