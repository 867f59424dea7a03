"""The cells that a group has run, to be run again by fresh processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxnb.cells.result import CellResult
from jaxnb.labels import plural
from jaxnb.model.cells import CellRequest


@dataclass(frozen=True, slots=True)
class Ran:
    """A cell that has run without an error.

    Attributes:
        request: The cell.
        processes: Those that it ran on; None for all.
    """

    request: CellRequest
    processes: tuple[int, ...] | None


class Replayable:
    """What successful cells a group has run, in order, one run more than once if it was."""

    def __init__(self) -> None:
        self._ran: list[Ran] = []
        self._is_over = False

    @property
    def cells(self) -> list[CellRequest]:
        """The cells."""
        return [ran.request for ran in self._ran]

    def note(self, request: CellRequest, result: CellResult) -> None:
        """Notes a cell that has ended, if it has succeeded."""
        if result.errors or request.aside:
            return
        if self._is_over:
            self._ran, self._is_over = [], False
        who = tuple(result.per_process)
        self._ran.append(Ran(request, None if len(who) == result.num_processes else who))

    def end(self) -> None:
        """Ends the history of processes that are gone; it is kept until the first new cell."""
        self._is_over = True

    def replay(self, run: Callable[..., Any], progress: Callable[[str, str], None]) -> int:
        """Runs the cells again, in fresh processes, up to the first that fails.

        Args:
            run: ``Session.run``, which notes them anew.
            progress: Told of each cell.

        Returns:
            How many have run.

        Raises:
            BaseException: What the first that failed raised, or an interrupt, with a note of how
                far it went. The history is as it was, so that it can be run again.
        """
        cells = self._ran
        self.end()
        done = 0
        try:
            for done, ran in enumerate(cells):
                cell = ran.request
                progress("replaying", f"cell [{cell.cell}], {done + 1} of {len(cells)}")
                run(
                    cell.code,
                    ranks=ran.processes,
                    cell=cell.cell,
                    first_line=cell.first_line,
                    check=cell.check,
                )
        except BaseException as error:
            self._ran, self._is_over = cells, False
            error.add_note(_how_far(cells, done))
            raise
        return len(cells)


def _how_far(cells: Sequence[Ran], done: int) -> str:
    return (
        f"%spmd_restart --replay: the processes are new. {done} of {plural(len(cells), 'cell')} "
        f"had been run again when cell [{cells[done].request.cell}] failed or was interrupted; the "
        "others were not run. Push again what `%spmd_push` had sent."
    )
