"""``%spmd_collectives``: what a call compiles to, on the group or for devices nobody has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.magic import line_cell_magic, magics_class, no_var_expand
from IPython.display import display

from jaxnb.errors import UsageError
from jaxnb.magics import arguments
from jaxnb.magics.base import SessionMagics
from jaxnb.magics.shown_interrupts import plain_interrupt

if TYPE_CHECKING:
    pass


def parser_of(magic: str) -> arguments.MagicParser:
    """Returns the parser of the magic's line."""
    parser = arguments.MagicParser(
        magic, "Compiles a call without running it, and lists its collectives."
    )
    parser.usage = "%%spmd_collectives [--devices N] CALL"
    parser.epilog = (
        "CALL is an expression such as step(state, batch); jax.ShapeDtypeStruct will do for "
        "arguments. With --devices as a cell magic: lines that make mesh and arguments, then CALL."
    )
    parser.add_argument("--devices", type=int, metavar="N",
                        help="plan for this many devices, in a process of its own")  # fmt: skip
    return parser


@magics_class
class CompilingMagics(SessionMagics):
    """The magic that shows what the compiler does."""

    @no_var_expand
    @line_cell_magic
    def spmd_collectives(self, line: str, cell: str | None = None) -> None:
        """Lists the collectives that a call compiles to. `--help` lists the options."""
        magic = "%spmd_collectives" if cell is None else "%%spmd_collectives"
        parser = parser_of(magic)
        options, rest = arguments.split_options(line, parser)
        asked = parser.asked(self.shell.var_expand(options))
        if asked is None:
            return
        if cell is not None and rest.strip():
            raise UsageError(
                f"`{rest.strip()}` stands behind `{magic}`, where only options do: put the call on "
                "the cell's last line. Nothing was run."
            )
        first_line = 1 if cell is None else 2
        code = rest if cell is None else cell
        where = "Interrupted; nothing was run, and the group can be used."
        with plain_interrupt(where):
            if asked.devices is None:
                found = self._started().collectives(code)
            else:
                found = self._planned(code, asked.devices, first_line)
        display(found)

    def _planned(self, code: str, devices: int, first_line: int) -> Any:
        session = self._current()
        number = self.shell.displayhook.prompt_count
        if session is not None:
            return session.collectives(code, devices=devices, cell=number, first_line=first_line)
        from jaxnb.compiled import planning

        return planning.plan(code, devices=devices, name=f"<cell {number}>", first_line=first_line)
