"""``%spmd_save`` and ``%spmd_load``: variables of all processes, in a directory and back."""

from __future__ import annotations

import functools
import sys
from typing import Any

from IPython.core.magic import line_magic, magics_class
from IPython.display import display

from jaxnb.display.card import line_card
from jaxnb.errors import CellError, UsageError
from jaxnb.magics import arguments
from jaxnb.magics.base import SessionMagics, plain_interrupt
from jaxnb.magics.sinks import DisplayIds, sink_for
from jaxnb.recovery.messages import SavedState


def save_parser() -> arguments.MagicParser:
    """Returns the parser of ``%spmd_save``."""
    parser = arguments.MagicParser(
        "%spmd_save", "Saves the variables of every process to a directory."
    )
    parser.add_argument("folder", nargs="?", metavar="DIR", help="the directory")
    parser.add_argument("names", nargs="*", metavar="NAME",
                        help="the variables; all by default")  # fmt: skip
    parser.add_argument("--overwrite", action="store_true",
                        help="overwrite what DIR holds")  # fmt: skip
    return parser


def load_parser() -> arguments.MagicParser:
    """Returns the parser of ``%spmd_load``."""
    parser = arguments.MagicParser(
        "%spmd_load", "Binds the variables that %spmd_save saved. Loading them runs their code."
    )
    parser.add_argument("folder", nargs="?", metavar="DIR", help="the directory")
    parser.add_argument("names", nargs="*", metavar="NAME",
                        help="the variables; all by default")  # fmt: skip
    return parser


def _folder(given: str | None) -> str:
    if given is None:
        raise UsageError("Name a directory: `%spmd_save DIR`, `%spmd_load DIR`. Nothing was done.")
    return given


@magics_class
class SavingMagics(SessionMagics):
    """The magics that save and load variables."""

    @line_magic
    def spmd_save(self, line: str) -> None:
        """Saves variables to a directory. `%spmd_save --help` lists the options."""
        asked = save_parser().asked(line)
        if asked is None:
            return
        session, folder = self._started(), _folder(asked.folder)
        with plain_interrupt("Interrupted."):
            self._show(session.save(folder, asked.names, overwrite=asked.overwrite))

    @line_magic
    def spmd_load(self, line: str) -> None:
        """Binds variables that were saved. `%spmd_load --help` lists the options."""
        asked = load_parser().asked(line)
        if asked is None:
            return
        session, folder = self._started(), _folder(asked.folder)
        with plain_interrupt("Interrupted."):
            self._show(session.load(folder, asked.names))

    def _show(self, saved: SavedState) -> None:
        display(line_card(str(saved)))


def debug_parser() -> arguments.MagicParser:
    """Returns the parser of ``%spmd_debug``."""
    parser = arguments.MagicParser(
        "%spmd_debug", "Opens a debugger where the last cell failed on a process."
    )
    parser.add_argument("--ranks", type=arguments.ranks, metavar="0,2-3",
                        help="on these processes, one by one (default: the cause)")  # fmt: skip
    return parser


@magics_class
class DebuggingMagics(SessionMagics):
    """The magic that looks at what a cell has left where it failed."""

    @line_magic
    def spmd_debug(self, line: str) -> None:
        """Opens a debugger where the last cell failed. `%spmd_debug --help` lists the options."""
        asked = debug_parser().asked(line)
        if asked is None:
            return
        session = self._started()
        from jaxnb.session.post_mortem import others_advice, post_mortem

        if asked.ranks is None and (advice := others_advice(session.last_failed)):
            print(advice)
        number, sink = self.shell.displayhook.prompt_count, sink_for(self.shell, DisplayIds())
        with plain_interrupt("Interrupted."), sink:
            post_mortem(session, asked.ranks, sink=sink, cell=number)


def install(shell: Any, magics: DebuggingMagics) -> None:
    """Has ``%debug``, and ``%debug --ranks 2``, look at a cell that has failed on processes last.

    Nothing changes before the first has failed: IPython loads its own ``%debug`` when it is asked
    for, and that takes a while.
    """

    def after(result: Any) -> None:
        if isinstance(result.error_in_exec, CellError):
            shell.events.unregister("post_run_cell", after)
            shell.register_magic_function(
                _debug(shell.find_line_magic("debug"), magics), "line", "debug"
            )

    shell.events.register("post_run_cell", after)


def _debug(own: Any, magics: Any) -> Any:
    """Returns what stands for IPython's ``%debug``."""

    @functools.wraps(own)
    def debug(line: str = "", *args: Any, **settings: Any) -> Any:
        is_ours = not line.strip() or line.lstrip().startswith("--ranks")
        if is_ours and isinstance(getattr(sys, "last_value", None), CellError):
            return magics.spmd_debug(line)
        return own(line, *args, **settings)

    return debug
