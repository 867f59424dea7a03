"""``%spmd_timeline`` and ``%spmd_history``: what processes did when, and what was run."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from IPython.core.magic import line_magic, magics_class
from IPython.display import display

from jaxnb.labels import plural
from jaxnb.magics import arguments
from jaxnb.magics.base import SessionMagics

if TYPE_CHECKING:
    from jaxnb.session import Session


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return count


def _cell(text: str) -> int:
    try:
        return int(text.strip("[]"))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a cell number such as 7 or [7]"
        ) from None


def timeline_parser() -> arguments.MagicParser:
    """Returns the parser of ``%spmd_timeline``."""
    parser = arguments.MagicParser(
        "%spmd_timeline", "Shows what each process did in a cell, and who kept others waiting."
    )
    parser.add_argument("cell", nargs="?", type=_cell, metavar="CELL",
                        help="the cell's number; by default the last cell's")  # fmt: skip
    return parser


def history_parser() -> arguments.MagicParser:
    """Returns the parser of ``%spmd_history``."""
    parser = arguments.MagicParser("%spmd_history", "Shows the cells that were run.")
    parser.add_argument("--last", type=_count, metavar="N", help="the last N cells only")
    parser.add_argument("--json", metavar="FILE", dest="file",
                        help="write them to FILE, one JSON object per line")  # fmt: skip
    parser.add_argument("--overwrite", action="store_true",
                        help="replace FILE if it exists")  # fmt: skip
    return parser


@magics_class
class LookingBackMagics(SessionMagics):
    """The magics that show what has been.

    Args:
        shell: The notebook's shell.
        current: Returns the notebook's session; None while there is none.
        last: Returns the notebook's session, or the one that was stopped last.
    """

    def __init__(
        self,
        shell: Any,
        current: Callable[[], Session | None],
        last: Callable[[], Session | None],
    ) -> None:
        super().__init__(shell, current)
        self._last = last

    @line_magic
    def spmd_timeline(self, line: str) -> None:
        """Shows what each process did in a cell. `%spmd_timeline 7` shows that of cell [7]."""
        parser = timeline_parser()
        asked = parser.asked(line)
        if asked is None:
            return
        display((self._last() or self._started()).timeline(asked.cell))

    @line_magic
    def spmd_history(self, line: str) -> None:
        """Shows the cells that were run. `%spmd_history --help` lists the options."""
        parser = history_parser()
        asked = parser.asked(line)
        if asked is None:
            return
        history = (self._last() or self._started()).history
        if asked.last is not None:
            history = history.last(asked.last)
        if asked.file is None:
            if asked.overwrite:
                parser.error("--overwrite goes with --json FILE.")
            display(history)
            return
        written = history.to_jsonl(asked.file, overwrite=asked.overwrite)
        before = f"; {history.forgotten} before them are not in it" if history.forgotten else ""
        print(f"{plural(written, 'cell')} written to {asked.file}{before}")
