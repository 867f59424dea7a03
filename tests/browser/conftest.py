"""The fixture of the browser's tests: a notebook in a real JupyterLab.

All tests share one server and one browser; each has a page, a notebook and a kernel of its own.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ViewportSize, expect, sync_playwright

from browser.lab import CHROMIUM_ARGS, LabPage, LabServer, assert_none_left, opened
from support.fixtures import PATIENT_SECONDS, TOKEN
from support.pytest_hooks import NO_CHROMIUM, find_chromium

OpenLab = Callable[..., LabPage]

# It tells what comes from what never does. On two cores the notebook's processes and Chromium
# share the processor, and a page may show what has long happened only after 5 s, the default.
expect.set_options(timeout=PATIENT_SECONDS * 1000)

_PAGE_SIZE: ViewportSize = {"width": 1280, "height": 900}

_FOLDER = Path(__file__).parent


class Lab:
    """The server and the browser; at the end nothing of either may be left."""

    def __init__(self, folder: Path, chromium: str) -> None:
        self._stack = ExitStack()
        # Of its own: by the server's token its kernels are found.
        token = secrets.token_hex(16)
        try:
            self._stack.callback(assert_none_left, token)
            self.server = LabServer(folder / "lab")
            # Last of all: by then everything else has been told to end.
            self._stack.callback(assert_none_left, self.server.token)
            self._stack.callback(self.server.stop)
            playwright = self._stack.enter_context(sync_playwright())
            self.browser: Browser = playwright.chromium.launch(
                executable_path=chromium,
                args=CHROMIUM_ARGS,
                env={**os.environ, TOKEN: token, "HOME": str(folder)},
            )
            self._stack.callback(self.browser.close)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends both; calls after the first do nothing."""
        self._stack.close()


_open: list[Lab] = []


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The server and the browser; of the session, so that no test takes them for left behind."""
    chromium = find_chromium()
    if chromium is None:
        pytest.skip(NO_CHROMIUM)
    lab = Lab(tmp_path_factory.mktemp("lab"), chromium)
    _open.append(lab)
    yield lab
    lab.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Ends them after the last of these tests.

    While Playwright runs, its event loop is that of this thread: whatever else uses one in a test,
    as nbclient does, finds it running already.
    """
    try:
        return (yield)
    finally:
        if _open and (nextitem is None or not nextitem.path.is_relative_to(_FOLDER)):
            _open.pop().close()


@pytest.fixture
def lab_page(lab: Lab) -> Iterator[OpenLab]:
    """Opens a notebook in a page of the test's own.

    Call it once, with the sources of code cells. At the end of the test its kernel is shut down,
    and the test fails if a process is left that the kernel has started.
    """
    with ExitStack() as stack:

        def open_lab(notebook: Sequence[str]) -> LabPage:
            stack.callback(lab.server.shut_kernels_down)
            context = stack.enter_context(lab.browser.new_context(viewport=_PAGE_SIZE))
            return stack.enter_context(opened(context.new_page(), lab.server, notebook))

        yield open_lab
