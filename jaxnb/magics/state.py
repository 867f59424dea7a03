"""``%spmd_save`` and ``%spmd_load``: variables of all processes, in a directory and back."""

from __future__ import annotations

import argparse
import functools
import sys
from typing import Any

from IPython.core.magic import line_magic, magics_class
from IPython.display import display

from jaxnb.display.card import line_card
from jaxnb.errors import CellError, UsageError
from jaxnb.magics.arguments import flag, option, parsed, ranks
from jaxnb.magics.base import SessionMagics, plain_interrupt
from jaxnb.magics.sinks import DisplayIds, sink_for

_WHAT = (
    option("folder", nargs="?", metavar="DIR", help="the directory"),
    option("names", nargs="*", metavar="NAME", help="the variables; all by default"),
)


def _folder(given: str | None) -> str:
    if given is None:
        raise UsageError("Name a directory: `%spmd_save DIR`, `%spmd_load DIR`. Nothing was done.")
    return given


@magics_class
class StateMagics(SessionMagics):
    """The magics that save and load variables, and look at what a failed cell has left."""

    @line_magic
    @parsed(
        "Saves the variables of every process to a directory.",
        *_WHAT,
        flag("--overwrite", help="overwrite what DIR holds"),
    )
    def spmd_save(self, asked: argparse.Namespace) -> None:
        """Saves variables to a directory. `%spmd_save --help` lists the options."""
        session, folder = self._started(), _folder(asked.folder)
        with plain_interrupt("Interrupted."):
            saved = session.save(folder, asked.names, overwrite=asked.overwrite)
        display(line_card(str(saved)))

    @line_magic
    @parsed("Binds the variables that %spmd_save saved. Loading them runs their code.", *_WHAT)
    def spmd_load(self, asked: argparse.Namespace) -> None:
        """Binds variables that were saved. `%spmd_load --help` lists the options."""
        session, folder = self._started(), _folder(asked.folder)
        with plain_interrupt("Interrupted."):
            saved = session.load(folder, asked.names)
        display(line_card(str(saved)))

    @line_magic
    @parsed(
        "Opens a debugger where the last cell failed on a process.",
        option("--ranks", type=ranks, metavar="0,2-3",
               help="on these processes, one by one (default: the cause)"),
    )  # fmt: skip
    def spmd_debug(self, asked: argparse.Namespace) -> None:
        """Opens a debugger where the last cell failed. `%spmd_debug --help` lists the options."""
        session = self._started()
        from jaxnb.session.post_mortem import others_advice, post_mortem

        if asked.ranks is None and (advice := others_advice(session.last_failed)):
            print(advice)
        number, sink = self.shell.displayhook.prompt_count, sink_for(self.shell, DisplayIds())
        with plain_interrupt("Interrupted."), sink:
            post_mortem(session, asked.ranks, sink=sink, cell=number)


def install(shell: Any, magics: StateMagics) -> None:
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
