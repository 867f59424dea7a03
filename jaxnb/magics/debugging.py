"""``%spmd_debug``, and ``%debug`` after a cell that has failed on processes."""

from __future__ import annotations

import functools
import sys
from typing import Any

from IPython.core.magic import line_magic, magics_class

from jaxnb.errors import CellError
from jaxnb.magics import arguments
from jaxnb.magics.base import SessionMagics
from jaxnb.magics.shown_interrupts import plain_interrupt
from jaxnb.magics.sinks import DisplayIds, sink_for


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
