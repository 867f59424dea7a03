"""A script that all processes run as ``__main__``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

OF_TERMINALS = (
    "CLICOLOR", "CLICOLOR_FORCE", "FORCE_COLOR", "GIT_PAGER", "MPLBACKEND", "PAGER", "TERM"
)  # fmt: skip
"""Variables of the environment that a kernel sets for a notebook: what a script puts out would be
coloured in a pipe. It has them as they are where ``jaxnb run`` was typed."""


@dataclass(frozen=True)
class Script:
    """A script, on its way to a process.

    Attributes:
        name: What it is called in sentences: ``"train.py"``.
        path: Its file, absolute: the file of its lines in tracebacks.
        source: What the file held as the run began. All processes run that, whatever becomes of it.
        arguments: ``sys.argv``; ``{process_index}`` and ``{num_processes}`` in it are replaced.
        folder: What ``sys.path`` begins with.
        module: Its name, for ``python -m``; empty for a file.
        input_pid: The process whose standard input process 0 reads; 0 if nobody may read any.
        environment: Those of :data:`OF_TERMINALS` that it has.
    """

    name: str
    path: str
    source: bytes = field(repr=False)
    arguments: tuple[str, ...]
    folder: str
    module: str = ""
    input_pid: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
