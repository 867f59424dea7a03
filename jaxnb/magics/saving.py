"""``%spmd_save`` and ``%spmd_load``: variables of all processes, in a directory and back."""

from __future__ import annotations

from IPython.core.magic import line_magic, magics_class
from IPython.display import display

from jaxnb.display.card import line_card
from jaxnb.errors import UsageError
from jaxnb.magics import arguments
from jaxnb.magics.base import SessionMagics
from jaxnb.magics.shown_interrupts import plain_interrupt
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
