"""A script that all processes run as ``__main__``, and what sentences call the code that runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

OF_TERMINALS = (
    "CLICOLOR", "CLICOLOR_FORCE", "FORCE_COLOR", "GIT_PAGER", "MPLBACKEND", "PAGER", "TERM"
)  # fmt: skip
"""Variables of the environment that a kernel sets for a notebook: what a script puts out would be
coloured in a pipe. It has them as they are where ``jaxnb run`` was typed."""

_script = ""
"""The name of the script, in the processes of ``jaxnb run``: there are no cells in them."""


def begin_script(name: str) -> None:
    """Has sentences speak of a script from now on, in this process: ``jaxnb run`` runs one."""
    global _script
    _script = name


def cell_label(number: int) -> str:
    """Returns what sentences call the code that runs: ``"cell [7]"``, or a script's name."""
    return _script or f"cell [{number}]"


def the_cell() -> str:
    """Returns ``"the cell"``, or ``"the script"``."""
    return "the script" if _script else "the cell"


def in_notebook(text: str) -> str:
    """Returns a text that holds in a notebook only, what to type there say; empty for a script."""
    return "" if _script else text


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


@dataclass(frozen=True)
class SourceLine:
    """The line of a program that an operation comes from.

    Attributes:
        file: Its file; ``"<cell 7>"`` for a cell.
        line: Counted from 1, as the notebook does.
        function: The function it is in; empty if it is not known.
    """

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        if self.file.startswith("<cell ") and self.file.endswith(">"):
            return f"cell [{self.file[len('<cell ') : -1]}] line {self.line}"
        return f"{self.file.replace(chr(92), '/').rpartition('/')[2]}:{self.line}"
