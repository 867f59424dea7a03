"""``%%spmd --async``: a cell that runs while the notebook goes on."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from IPython.display import display

from jaxnb.display.cards_live import background_card
from jaxnb.display.merge import MergedLine
from jaxnb.errors import CellError, JaxnbError
from jaxnb.result import CellResult

if TYPE_CHECKING:
    from jaxnb.session import Session

LINES_SHOWN = 200
"""How many of the last lines of its output the card of a background cell shows."""


class BackgroundCell:
    """A handle on a cell that runs in the background.

    Its card is updated in place, and is complete when the cell has ended.

    Args:
        shell: The notebook's shell.
        session: The session to run on; cells run there one at a time, in order.
        code: The cell.
        settings: Further arguments of :meth:`jaxnb.session.Session.run`.
    """

    def __init__(self, shell: Any, session: Session, code: str, settings: dict[str, Any]) -> None:
        self._session = session
        self._code = code
        self._settings = settings
        self._shown: list[MergedLine] = []
        self._result: CellResult | None = None
        self._error: BaseException | None = None
        self._number = settings["cell"]
        self._since = time.strftime("%H:%M:%S")
        self._display = display(self._card(), display_id=True)
        self._thread = threading.Thread(
            target=self._run, name=f"jaxnb-cell-{self._number}", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._session.run(self._code, sink=self, **self._settings)
        except BaseException as error:
            self._error = error
            self._result = getattr(error, "result", None)
        self._update()

    # ------------------------------------------------------------------ the handle

    def done(self) -> bool:
        """Whether the cell has ended."""
        return not self._thread.is_alive()

    def result(self, timeout: float | None = None) -> CellResult:
        """Waits for the cell's end.

        Args:
            timeout: Seconds to wait.

        Raises:
            TimeoutError: The cell is still running; it goes on.
            CellError: The cell raised.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(
                f"Cell [{self._number}] is still running after {timeout:g} s; it goes on. "
                "`%spmd_status` shows who is busy."
            )
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def interrupt(self) -> None:
        """Interrupts the cell on every process that is still in it."""
        self._session.interrupt()

    def __repr__(self) -> str:
        state = "ended" if self.done() else "running"
        return f"<jaxnb background cell [{self._number}], {state}>"

    def _ipython_display_(self) -> None:
        # The card has been displayed already; the cell's value must not add a second output.
        return None

    # ------------------------------------------------------------------ the sink

    def lines(self, lines: list[MergedLine]) -> None:
        """Takes final lines."""
        self._shown = [*self._shown, *lines][-LINES_SHOWN:]
        self._update()

    def live(self, lines: list[MergedLine]) -> None:
        """Does nothing: the final state comes as a line."""

    def notice(self, text: str) -> None:
        """Takes a sentence of jaxnb's own."""
        self.lines([MergedLine("stderr", frozenset(), f"jaxnb: {text}")])

    def _update(self) -> None:
        self._display.update(self._card())

    def _card(self) -> Any:
        error = self._error
        return background_card(
            self._number,
            self._since,
            self._shown,
            self._result,
            str(error) if isinstance(error, JaxnbError) and not isinstance(error, CellError)
            else None,
        )  # fmt: skip
