from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from support.pages import faults_table, programs_text, unequal_table  # noqa: E402

TABLES = {
    "what_goes_wrong": ("<!-- the table of tests/faults/table/rows.py -->", faults_table()),
    "collectives": ("<!-- the programs of tests/support/programs.py -->", programs_text()),
    "what_differs": ("<!-- the table of tests/faults/unequal/rows.py -->", unequal_table()),
}

project = "jaxnb"
author = "the jaxnb authors"
copyright = "the jaxnb authors, Apache-2.0"
release = version = runpy.run_path(str(ROOT / "jaxnb" / "_version.py"))["__version__"]

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build", "jupyter_execute", "**/executed", "**/.ipynb_checkpoints"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# Every page is built from what its cells really showed.
nb_execution_mode = "force"
nb_execution_timeout = 180
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_execution_show_tb = True

# The course's pages take 12 minutes: `make course` executes them, `make docs` shows their code.
nb_execution_excludepatterns = [] if os.environ.get("JAXNB_DOCS_COURSE") else ["course/*"]

# `make demo` and the tests execute the quickstart: what they leave is shown, unless it is older
# than what made it.
EXECUTED = ROOT / "notebooks" / "executed" / "quickstart.ipynb"


def is_fresh(executed: Path) -> bool:
    """Whether an executed notebook is newer than its source and the package."""
    made_of = [ROOT / "notebooks" / executed.name, *(ROOT / "jaxnb").rglob("*.*")]
    made_of += [ROOT / "pyproject.toml", *(ROOT / "constraints").iterdir()]
    return executed.exists() and all(
        path.stat().st_mtime < executed.stat().st_mtime
        for path in made_of
        if "__pycache__" not in path.parts
    )


if is_fresh(EXECUTED):
    nb_execution_excludepatterns += ["quickstart.ipynb"]


def setup(app: Any) -> None:
    """Has the quickstart read from its executed copy, if that is fresh; makes tables."""

    def read(_: Any, name: str, source: list[str]) -> None:
        if name == "quickstart" and is_fresh(EXECUTED):
            source[0] = EXECUTED.read_text()
        elif name in TABLES:
            source[0] = source[0].replace(*TABLES[name])

    app.connect("source-read", read)


nb_kernel_rgx_aliases = {".*": "python3"}
nb_merge_streams = True

# A failed cell's output begins with jaxnb's own line, which the traceback lexer does not know.
suppress_warnings = ["misc.highlighting_failure"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "sphinx_book_theme"
html_title = "jaxnb"
html_static_path = ["_static"]
html_css_files = ["docs.css"]
# One search box: the one in the sidebar, not a second one in the header.
html_theme_options = {"show_toc_level": 2, "navbar_persistent": []}
