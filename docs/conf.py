from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

project = "jaxnb"
author = "the jaxnb authors"
copyright = "the jaxnb authors, Apache-2.0"
release = version = runpy.run_path(str(ROOT / "jaxnb" / "_version.py"))["__version__"]

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build", "jupyter_execute"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# Every page is built from what its cells really showed.
nb_execution_mode = "force"
nb_execution_timeout = 180
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_execution_show_tb = True
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
html_theme_options = {"show_toc_level": 2}
