"""The fixture of the browser's tests: a notebook in a real JupyterLab."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import ViewportSize, expect, sync_playwright

from browser.lab import CHROMIUM_ARGS, TOKEN, LabPage, LabServer, assert_none_left, opened
from jaxnb_pytest_hooks import NO_CHROMIUM, find_chromium

OpenLab = Callable[..., LabPage]

# It tells what comes from what never does. On two cores the notebook's processes and Chromium
# share the processor, and a page may show what has long happened only after 5 s, the default.
expect.set_options(timeout=40_000)

_PAGE_SIZE: ViewportSize = {"width": 1280, "height": 900}


@pytest.fixture
def lab_page(tmp_path: Path) -> Iterator[OpenLab]:
    """Opens a notebook in a JupyterLab of the test's own.

    Call it once, with the path of a notebook or with the sources of code cells; ``theme`` may
    be ``"JupyterLab Dark"``. At the end of the test the browser, the server and its kernels
    are ended, and the test fails if any process that descends from them is left.
    """
    chromium = find_chromium()
    if chromium is None:
        pytest.skip(NO_CHROMIUM)
    with ExitStack() as stack:

        def open_lab(notebook: Path | Sequence[str], *, theme: str = "JupyterLab Light") -> LabPage:
            server = LabServer(tmp_path / "lab", theme)
            # Last of all: by then everything else has been told to end.
            stack.callback(assert_none_left, server.token)
            stack.callback(server.stop)
            playwright = stack.enter_context(sync_playwright())
            browser = playwright.chromium.launch(
                executable_path=chromium,
                args=CHROMIUM_ARGS,
                env={**os.environ, TOKEN: server.token, "HOME": str(tmp_path)},
            )
            stack.callback(browser.close)
            page = browser.new_page(viewport=_PAGE_SIZE)
            return stack.enter_context(opened(page, server, notebook))

        yield open_lab
