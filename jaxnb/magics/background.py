"""``%%spmd --async``: a cell that runs while the notebook goes on."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from jaxnb.cells.card_cell import BACKGROUND_INTERRUPT
from jaxnb.cells.merge_output import LineLimiter, MergedLine
from jaxnb.cells.result import CellResult
from jaxnb.cells.sinks import NoSink
from jaxnb.display.card import NOTHING, Card, stacked
from jaxnb.errors import CellError, JaxnbError, UsageError
from jaxnb.labels import Outputs
from jaxnb.magics.sinks import DisplayIds, Place, Sink, is_notebook
from jaxnb.model.cells import RichOutput
from jaxnb.model.group import Waits

if TYPE_CHECKING:
    from jaxnb.session import Session

LINES_SHOWN = 200
"""How many of the last lines of its output the card of a background cell shows."""


class CardView(NoSink):
    """Shows a background cell as a card that is updated in place.

    Args:
        cell: The cell's number.
        holder: The name of its result.
        outputs: What is shown of what processes displayed alike.
    """

    shows_cards = True
    interrupt_by = BACKGROUND_INTERRUPT

    def __init__(self, cell: int, holder: str, outputs: Outputs) -> None:
        from jaxnb.cells import card_value

        self._cell = cell
        self._outputs = outputs
        self._since = time.strftime("%H:%M:%S")
        self._holder = holder
        self._limiter = LineLimiter(head=0, tail=LINES_SHOWN, holder=holder)
        self._columns = card_value.DisplayColumns()
        self._first = 0
        self._waits = NOTHING
        self._place = Place()
        self._place.show(self._card())

    def begin(self, processes: tuple[int, ...]) -> None:
        """Takes which processes run the cell."""
        self._first = min(processes)

    def lines(self, lines: list[MergedLine]) -> None:
        """Shows the last lines, and counts those before."""
        self._limiter.feed(lines)
        self._place.offer(self._card)

    def tick(self) -> None:
        """Shows lines that came too soon after others; called a few times a second."""
        self._place.tick()

    def notice(self, text: str) -> None:
        """Shows a sentence of jaxnb's own."""
        self.lines([MergedLine("stderr", frozenset(), f"jaxnb: {text}")])

    def waits(self, waits: Waits) -> None:
        """Shows where all processes wait."""
        from jaxnb.cells import card_cell

        self._waits = card_cell.waits_card(waits, self.interrupt_by)
        self._place.show(self._card())

    def display(self, process_index: int, output: RichOutput) -> None:
        """Shows a rich output."""
        self._columns.add(process_index, output)
        self._place.show(self._card())

    def clear(self, process_index: int, wait: bool) -> None:
        """Forgets what a process displayed."""
        self._columns.drop(process_index, wait)

    def end(self, result: CellResult | None, trouble: str | None) -> None:
        """Shows how the cell ended."""
        self._place.show(self._card(result, trouble))

    def _card(self, result: CellResult | None = None, trouble: str | None = None) -> Card:
        from jaxnb.cells import card_error, card_value

        displays = card_value.displays_card(
            self._columns, self._first, self._outputs, with_first=True
        )
        shown = stacked([displays, self._waits])
        kept = self._limiter.kept()
        return card_error.background_card(self._cell, self._since, kept, shown, result, trouble)


class TerminalView(Sink):
    """Shows a background cell's output above the prompt as it comes, and its card once.

    Args:
        cell: The cell's number.
        ids: The notebook's names for displays.
        holder: The name of its result.
        outputs: What is shown of what processes displayed alike.
    """

    interrupt_by = BACKGROUND_INTERRUPT

    def __init__(self, cell: int, ids: DisplayIds, holder: str, outputs: Outputs) -> None:
        from jaxnb.cells import card_error

        super().__init__(ids, holder)
        self._outputs = outputs
        self._since = time.strftime("%H:%M:%S")
        self._cell = cell
        self._print(card_error.background_card(cell, self._since, [], NOTHING, None, None))

    def end(self, result: CellResult | None, trouble: str | None) -> None:
        """Shows how the cell ended."""
        from jaxnb.cells import card_error

        self._write(self._limiter.finish())
        rest = self.rest(self._outputs)
        self._print(card_error.background_card(self._cell, self._since, [], rest, result, trouble))

    def _print(self, card: Card) -> None:
        # Standard output, as it is now: while a prompt is open, what writes above it.
        sys.stdout.write(f"{card.text}\n")
        sys.stdout.flush()


class BackgroundCell:
    """A handle on a cell that runs in the background.

    In a notebook its card is updated in place, and is complete when the cell has ended. A
    terminal gets the output as it comes, and the card at the end.

    Args:
        shell: The notebook's shell.
        session: The session to run on; cells run there one at a time, in order.
        code: The cell.
        settings: Further arguments of :meth:`jaxnb.session.Session.run`.
        ids: The notebook's names for displays.
        out: The variable that holds the handle; by default ``Out`` does.
    """

    def __init__(
        self,
        shell: Any,
        session: Session,
        code: str,
        settings: dict[str, Any],
        ids: DisplayIds,
        out: str | None = None,
    ) -> None:
        self._shell, self._session = shell, session
        self._code = code
        self._settings = settings
        self._interrupted = threading.Event()
        self._result: CellResult | None = None
        self._error: BaseException | None = None
        self._number = settings["cell"]
        holder = f"{out or f'Out[{self._number}]'}.result()"
        outputs = settings.get("outputs", "merged")
        self._view: CardView | TerminalView
        if is_notebook(shell):
            self._view = CardView(self._number, holder, outputs)
        else:
            self._view = TerminalView(self._number, ids, holder, outputs)
        self._thread = threading.Thread(
            target=self._run, name=f"jaxnb-cell-{self._number}", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._session.run(
                self._code, sink=self._view, interrupted=self._interrupted, **self._settings
            )
        except KeyboardInterrupt as error:  # before its turn came: nobody pressed Interrupt here
            self._error = UsageError(str(error))
        except BaseException as error:
            self._error = error
            self._result = getattr(error, "result", None)
        self._view.end(self._result, self._trouble())

    def _trouble(self) -> str | None:
        error = self._error
        if error is None or type(error) is CellError:  # the card has the tracebacks
            return None
        return str(error) if isinstance(error, JaxnbError) else f"{type(error).__name__}: {error}"

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
        """Interrupts the cell on every process that is still in it.

        No other cell is: one that has not begun is not run, one that has ended stays so.
        """
        self._interrupted.set()

    def __repr__(self) -> str:
        state = "ended" if self.done() else "running"
        return f"<jaxnb background cell [{self._number}], {state}>"

    def _ipython_display_(self) -> None:
        # Its own cell shows its card already, and must not add a second output.
        if self._shell.displayhook.prompt_count != self._number:
            print(repr(self))
