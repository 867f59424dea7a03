"""JupyterLab as a user has it: a real server, a real kernel, a page in headless Chromium.

Everything waits for what the page shows or a process does; nothing sleeps.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import secrets
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil
from playwright.sync_api import Locator, Page, expect

from support.fixtures import PATIENT_SECONDS, TOKEN, processes_of_tests, still_running
from support.kernels import kernel_ports
from support.shown import who_wrote

KERNEL = "Python 3 (ipykernel)"

CHROMIUM_ARGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

_SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    # Every cell is in the DOM, on screen or not.
    "notebook-extension/tracker": {"windowingMode": "none"},
    # What stands in a cell is what the test wrote.
    "docmanager-extension/plugin": {"autosave": False},
}

_WAITS = "waits"
_HAS_RUN = re.compile(r"^\[\d+\]:?$")


def assert_none_left(token: str, *, but: int | None = None) -> None:
    """Fails if a process with the token, other than one, does not end; kills it then."""
    others = [process for pid, process in processes_of_tests(token).items() if pid != but]
    described = still_running(others)
    for process in others:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    assert not described, "processes were left behind:\n" + "\n".join(described)


class LabServer:
    """A JupyterLab server on a free port of the loopback, with directories of its own.

    Args:
        folder: An empty folder; the notebooks are in ``folder / "notebooks"``.
        theme: JupyterLab's; in the dark one cards are read less easily.
    """

    def __init__(self, folder: Path, theme: str = "JupyterLab Dark") -> None:
        self.token = secrets.token_hex(16)
        self.notebooks = folder / "notebooks"
        self.notebooks.mkdir(parents=True)
        themes = {"apputils-extension/themes": {"theme": theme}}
        for name, values in (_SETTINGS | themes).items():
            path = folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(values))
        self._lines: list[str] = []
        self._urls: queue.Queue[str | None] = queue.Queue()
        self._process = subprocess.Popen(
            self._command_line(),
            env=self._environment(folder),
            cwd=self.notebooks,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._process.stdout is not None
        self._reader = threading.Thread(
            target=self._read, args=(self._process.stdout,), daemon=True
        )
        self._reader.start()
        try:
            self.url = self._wait_for_url()
        except BaseException:
            self.stop()
            raise

    def _command_line(self) -> list[str]:
        return [
            sys.executable, "-m", "jupyterlab",
            "--allow-root",
            "--ServerApp.open_browser=False",
            "--ServerApp.ip=127.0.0.1",
            "--ServerApp.port=0",
            f"--ServerApp.root_dir={self.notebooks}",
            "--ServerApp.terminals_enabled=False",
            f"--IdentityProvider.token={self.token}",
            "--LabApp.news_url=",
            "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
            "--LabApp.extension_manager=readonly",
            "--KernelManager.cache_ports=False",
            *(f"--KernelManager.{name}={port}" for name, port in kernel_ports().items()),
        ]  # fmt: skip

    def _environment(self, folder: Path) -> dict[str, str]:
        of_jupyter = {k for k in os.environ if k.startswith(("JUPYTER", "IPYTHON"))}
        kept = {k: v for k, v in os.environ.items() if k not in of_jupyter}
        return {
            **kept,
            TOKEN: self.token,
            "JUPYTER_CONFIG_DIR": str(folder / "config"),
            "JUPYTER_DATA_DIR": str(folder / "data"),
            "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
            "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
            "IPYTHONDIR": str(folder / "ipython"),
            # The kernel's jaxnb is the one that is being tested.
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }

    def _read(self, output: IO[str]) -> None:
        with output:
            for line in output:
                self._lines.append(line)
                if found := re.search(r"(http://127\.0\.0\.1:\d+)/lab", line):
                    self._urls.put(found[1])
        self._urls.put(None)

    def _wait_for_url(self) -> str:
        try:
            url = self._urls.get(timeout=PATIENT_SECONDS)
        except queue.Empty:
            url = None
        assert url, f"JupyterLab did not start within {PATIENT_SECONDS:g} s:\n{self.log}"
        return url

    @property
    def log(self) -> str:
        """What the server wrote."""
        return "".join(self._lines)

    def address(self, notebook: str) -> str:
        """Returns the address at which JupyterLab opens a notebook."""
        return f"{self.url}/lab/tree/{notebook}?token={self.token}&reset"

    def shut_kernels_down(self) -> None:
        """Shuts all kernels down, and fails if they have left any process running."""
        for kernel in json.loads(self._ask("GET", "kernels")):
            self._ask("DELETE", f"kernels/{kernel['id']}")
        assert_none_left(self.token, but=self._process.pid)

    def _ask(self, method: str, what: str) -> bytes:
        request = urllib.request.Request(
            f"{self.url}/api/{what}",
            method=method,
            headers={"Authorization": f"token {self.token}"},
        )
        with urllib.request.urlopen(request, timeout=PATIENT_SECONDS) as answer:
            return bytes(answer.read())

    def new_notebook(self) -> Path:
        """Returns the path of a notebook that does not exist yet."""
        return self.notebooks / f"notebook{len(list(self.notebooks.glob('*.ipynb')))}.ipynb"

    def stop(self) -> None:
        """Ends the server and its kernels."""
        self._process.terminate()
        try:
            self._process.wait(PATIENT_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
            self._reader.join(PATIENT_SECONDS)


@dataclass(frozen=True)
class Cell:
    """A cell of the notebook in the page.

    Attributes:
        page: The page.
        node: Its element.
    """

    page: Page
    node: Locator

    @property
    def prompt(self) -> Locator:
        """What stands left of its source: ``[ ]:``, ``[*]:`` or ``[3]:``."""
        return self.node.locator(".jp-InputPrompt")

    @property
    def output(self) -> Locator:
        """What stands below its source."""
        return self.node.locator(".jp-Cell-outputArea")

    @property
    def text(self) -> str:
        """The visible text of its output."""
        return self.output.inner_text()

    @property
    def lines(self) -> list[str]:
        """The same, by line."""
        return self.text.splitlines()

    @property
    def html(self) -> str:
        """The HTML of its output."""
        return self.output.inner_html()

    @property
    def error(self) -> Locator:
        """The red block of the traceback that makes the notebook stop."""
        block = '[data-mime-type="application/vnd.jupyter.stderr"]'
        return self.output.locator(block).filter(has_text="Error: ").last

    def start(self) -> None:
        """Runs the cell as a user does and returns at once."""
        self.prompt.scroll_into_view_if_needed()
        self.prompt.click()
        # A cell that ran before, perhaps on another kernel, has a number already.
        self.prompt.evaluate(f"prompt => prompt.textContent = '{_WAITS}'")
        self.page.keyboard.press("Control+Enter")

    def wait(self) -> None:
        """Waits until the kernel has run the cell to its end, well or not."""
        expect(self.prompt).to_have_text(_HAS_RUN)

    def run(self) -> None:
        """Runs the cell and waits until it has ended, well or not."""
        self.start()
        self.wait()

    def wait_for_line(self, text: str, processes: Sequence[int]) -> None:
        """Waits until each of these processes has written a line, together or one by one."""
        deadline = time.monotonic() + PATIENT_SECONDS
        while who_wrote(self.lines, text) != list(processes):
            assert time.monotonic() < deadline, f"not all wrote {text!r}: {self.text}"
            self.page.wait_for_timeout(50)


class LabPage:
    """A notebook in JupyterLab.

    Args:
        page: The browser's page, with the notebook on it.
        server: Its server.
        sources: Position in the notebook to source, of the code cells.
    """

    def __init__(self, page: Page, server: LabServer, sources: Mapping[int, str]) -> None:
        self.page = page
        self.server = server
        self._sources = dict(sources)

    def cell(self, which: int | str) -> Cell:
        """Returns a cell by position, or the one code cell with this fragment in its source."""
        if isinstance(which, str):
            (which,) = [i for i, source in self._sources.items() if which in source]
        return Cell(self.page, self.page.locator(".jp-Notebook .jp-Cell").nth(which))

    def run(self, which: int | str) -> Cell:
        """Runs a cell, waits until it has ended, and returns it."""
        cell = self.cell(which)
        cell.run()
        return cell

    def interrupt(self) -> None:
        """Presses the toolbar's *Interrupt the kernel*."""
        command = '[data-command="notebook:interrupt-kernel"]'
        self.page.locator(f".jp-NotebookPanel-toolbar {command}").click()

    def wait_until_idle(self) -> None:
        """Waits until there is a kernel and it has nothing to do."""
        # The notebook's own indicator says "idle" before there is a kernel, too.
        status = self.page.get_by_role("button", name=f"{KERNEL} | Idle", exact=True)
        try:
            expect(status).to_be_visible()
        except AssertionError as error:
            error.add_note(f"JupyterLab said:\n{self.server.log}")
            raise

    def untrusted_copy(self) -> Path:
        """Saves the notebook and returns a copy that JupyterLab does not trust.

        It trusts what it has saved itself, to the letter; the copy is another one by a letter.
        """
        with self.page.expect_response(lambda a: a.request.method == "PUT" and a.ok):
            self.page.keyboard.press("Control+s")
        saved = max(self.server.notebooks.glob("*.ipynb"), key=lambda path: path.stat().st_mtime)
        content = json.loads(saved.read_text())
        content["metadata"]["copied"] = True
        copy = saved.with_name(f"copy of {saved.name}")
        copy.write_text(json.dumps(content))
        return copy


def write_notebook(path: Path, sources: Sequence[str]) -> None:
    """Writes a notebook of code cells.

    As JSON: to import nbformat takes seconds, of each worker that collects these tests.
    """
    empty = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
    notebook = {
        "cells": [{**empty, "id": f"cell-{n}", "source": each} for n, each in enumerate(sources)],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path.write_text(json.dumps(notebook))


@contextlib.contextmanager
def opened(page: Page, server: LabServer, notebook: Path | Sequence[str]) -> Iterator[LabPage]:
    """Opens a copy of a notebook, or one made of these code cells, and waits for its kernel."""
    path = server.new_notebook()
    if isinstance(notebook, Path):
        path.write_bytes(notebook.read_bytes())
    else:
        write_notebook(path, notebook)
    cells = json.loads(path.read_text())["cells"]
    page.goto(server.address(path.name))
    expect(page.locator(".jp-Notebook .jp-Cell")).to_have_count(len(cells))
    code = {n: cell["source"] for n, cell in enumerate(cells) if cell["cell_type"] == "code"}
    lab = LabPage(page, server, {n: "".join(source) for n, source in code.items()})
    lab.wait_until_idle()
    yield lab
