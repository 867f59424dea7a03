"""Takes the README's pictures: a real notebook in JupyterLab, in the light theme and in the dark.

    python scripts/readme_picture.py [FOLDER]

FOLDER is ``docs/_static`` by default. Needs Chromium, as the tests of ``tests/browser`` do. The
last cell is shown while its processes wait for one of them.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, expect, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from browser.lab import CHROMIUM_ARGS, LabServer, opened  # noqa: E402
from support.pytest_hooks import NO_CHROMIUM, find_chromium  # noqa: E402

START = "%load_ext jaxnb\n%spmd_start -n 4 --devices-per-process 2 --platform cpu"
ARRAY = """%%spmd
mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
sharding = NamedSharding(mesh, P("data", "model"))
table = np.arange(32.0).reshape(8, 4)
x = jax.make_array_from_callback(table.shape, sharding, lambda index: table[index])
x"""
HANGS = """%%spmd
while process_index == 2:  # never comes
    pass
jax.jit(jnp.sum)(x)"""

WIDTH, HEIGHT = 960, 1030


def take(browser: Browser, theme: str, picture: Path) -> None:
    """Runs the notebook in a theme of JupyterLab, and writes a picture of the page."""
    with tempfile.TemporaryDirectory() as folder:
        server = LabServer(Path(folder) / "lab", f"JupyterLab {theme}")
        try:
            page = browser.new_page(
                viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=1.5
            )
            with opened(page, server, [START, ARRAY, HANGS]) as lab:
                page.keyboard.press("Control+b")  # without the list of files
                lab.run(0)
                lab.run(1)
                cell = lab.cell(2)
                cell.start()
                expect(cell.output).to_contain_text("wait for process 2")
                page.locator(".jp-NotebookPanel-notebook").screenshot(path=picture)
                lab.interrupt()
                cell.wait()
                server.shut_kernels_down()
            page.close()
        finally:
            server.stop()


def main(folder: Path) -> None:
    """Takes both pictures."""
    chromium = find_chromium()
    if chromium is None:
        sys.exit(NO_CHROMIUM)
    expect.set_options(timeout=60_000)  # a group may have to start on a busy machine
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGS)
        for theme in ("Light", "Dark"):
            take(browser, theme, folder / f"notebook-{theme.lower()}.png")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "docs" / "_static")
