"""How jaxnb's own programs are started."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ENDPOINT = "jaxnb.session.process_endpoint"
"""The module by which a process answers the notebook. It stands above all features, so it is named
here and imported by its name."""

IDENTITY = "JAXNB_IDENTITY"
"""The environment variable that tells an engine's program the name it is routed by."""

_ROOT = Path(__file__).resolve().parents[2]


def command_line(module: str, *arguments: str) -> list[str]:
    """Returns the command line of one of jaxnb's programs.

    What lies in the working folder is not imported in place of what it needs (``-P``): a
    ``random.py`` beside the notebook, which may be another user's where others can write. Code in
    cells can import it all the same.

    Args:
        module: The program.
        arguments: Its arguments; other users can read them.
    """
    # From its own checkout jaxnb may be found in no other way.
    is_checkout = Path(os.getcwd()).resolve() == _ROOT
    return [sys.executable, *([] if is_checkout else ["-P"]), "-m", module, *arguments]
