"""A script that all processes run as ``__main__``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
        environment: Variables that ipykernel has set in its kernels, and what they are for the
            script; None where they are not set.
        input_pid: The process whose standard input process 0 reads; 0 if nobody may read any.
    """

    name: str
    path: str
    source: bytes = field(repr=False)
    arguments: tuple[str, ...]
    folder: str
    environment: Mapping[str, str | None]
    module: str = ""
    input_pid: int = 0
