"""``%spmd_stats``: what the processes use, once or every second."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from IPython.core.magic import line_magic, magics_class
from IPython.display import display

from jaxnb.display.card import Card
from jaxnb.errors import JaxnbError
from jaxnb.labels import plural
from jaxnb.magics.arguments import PARSERS, flag, option, parsed
from jaxnb.magics.base import SessionMagics
from jaxnb.magics.sinks import Place, is_notebook

if TYPE_CHECKING:
    from jaxnb.session import Session


PERIOD_SECONDS = 1.0
"""Time between two updates of the panel."""

IDLE_MINUTES = 5
"""Without a cell for so long, the panel stops."""

AGAIN = "`%spmd_stats --live` shows it again."
ONE_LOOK = (
    "A terminal cannot be updated in place: this is one look. `%spmd_stats` takes another, and "
    "`%%spmd --async` leaves the prompt free for it."
)


class LivePanel:
    """Shows statistics every second, beside what the notebook does, until it stops by itself.

    It stops when the group is stopped or restarted, when no cell has run for five minutes, and
    when another takes its place. It ends with the kernel.

    Args:
        session: The group.
        show: Shows a card in the place of the one before.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        session: Session,
        show: Callable[[Card], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._show = show
        self._clock = clock
        self._generation = session.generation
        self._cells = session.group.cells_run
        self._last_cell = clock()
        self._stopping = threading.Event()
        self._replaced = ""
        self._look()  # what goes wrong at once is the magic's error
        self._thread = threading.Thread(target=self._go_on, name="jaxnb-stats-panel", daemon=True)
        self._thread.start()

    def stop(self, why: str) -> None:
        """Ends it; its last card says why. Waits until that is shown."""
        self._replaced = why
        self._stopping.set()
        self._thread.join()

    @property
    def is_running(self) -> bool:
        """Whether it goes on."""
        return self._thread.is_alive()

    def _go_on(self) -> None:
        ended = ""
        while not ended and not self._stopping.wait(PERIOD_SECONDS):
            ended = self._reason_to_stop()
            try:
                if not ended:
                    self._look()
            except JaxnbError as error:  # stopped or restarted just now
                ended = self._reason_to_stop() or str(error)
        self._show_last(ended or self._replaced, ended=True)

    def _look(self) -> None:
        self._last = self._session.stats(brief=True)
        self._at = time.strftime("%H:%M:%S")
        self._show_last(
            f"Taken every second while cells run or hang, until {IDLE_MINUTES} minutes after the "
            "last. A saved notebook keeps the last look."
        )

    def _show_last(self, words: str, *, ended: bool = False) -> None:
        from jaxnb.profile import card_stats

        self._show(card_stats.stats_card(self._last, words, at=self._at, ended=ended))

    def _reason_to_stop(self) -> str:
        session, now = self._session, self._clock()
        if session.state == "closed" or session.generation != self._generation:
            return f"The group was stopped or restarted. {AGAIN}"
        if session.state == "busy" or session.group.cells_run != self._cells:
            self._cells, self._last_cell = session.group.cells_run, now
        if now - self._last_cell >= 60 * IDLE_MINUTES:
            return f"Stopped: no cell ran for {IDLE_MINUTES} minutes. {AGAIN}"
        return ""


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


@magics_class
class LookingMagics(SessionMagics):
    """The magics that show statistics and what has been.

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
        self._panel: LivePanel | None = None

    @line_magic
    @parsed(
        "Shows what each process did in a cell, and who kept others waiting.",
        option("cell", nargs="?", type=_cell, metavar="CELL",
               help="the cell's number; by default the last cell's"),
    )  # fmt: skip
    def spmd_timeline(self, asked: argparse.Namespace) -> None:
        """Shows what each process did in a cell. `%spmd_timeline 7` shows that of cell [7]."""
        display((self._last() or self._started()).timeline(asked.cell))

    @line_magic
    @parsed(
        "Shows the cells that were run.",
        option("--last", type=_count, metavar="N", help="the last N cells only"),
        option("--json", metavar="FILE", dest="file",
               help="write them to FILE, one JSON object per line"),
        flag("--overwrite", help="replace FILE if it exists"),
    )  # fmt: skip
    def spmd_history(self, asked: argparse.Namespace) -> None:
        """Shows the cells that were run. `%spmd_history --help` lists the options."""
        history = (self._last() or self._started()).history
        if asked.last is not None:
            history = history.last(asked.last)
        if asked.file is None:
            if asked.overwrite:
                PARSERS["spmd_history"]().error("--overwrite goes with --json FILE.")
            display(history)
            return
        written = history.to_jsonl(asked.file, overwrite=asked.overwrite)
        before = f"; {history.forgotten} before them are not in it" if history.forgotten else ""
        print(f"{plural(written, 'cell')} written to {asked.file}{before}")

    @line_magic
    @parsed(
        "Shows memory and load by device.",
        flag("--live", help="a panel that is updated every second, beside cells"),
    )
    def spmd_stats(self, asked: argparse.Namespace) -> None:
        """Shows memory and load of every device and process. `--help` lists the options."""
        from jaxnb.profile import card_stats

        session = self._started()
        if asked.live and is_notebook(self.shell):
            if self._panel is not None:
                self._panel.stop("Goes on where `%spmd_stats --live` was typed again.")
            self._panel = LivePanel(session, Place().show)
            return
        display(card_stats.stats_card(session.stats(), ONE_LOOK if asked.live else ""))
