"""What a notebook has of a session beside its methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jaxnb.assist.helper import Assist
from jaxnb.cells.result import CellResult
from jaxnb.session.reach import Reach
from jaxnb.session.work import Work


class Helped:
    """Something whose names live on processes.

    Attributes:
        assist: Help while typing code for these processes.
    """

    assist: Assist
    _reach: Reach
    _work: Work

    @property
    def results(self) -> Mapping[int, CellResult]:
        """The last cells, four at most, that wrote more than is shown, by their numbers."""
        return self._work.long_results

    def show_waits_by(self, show: Callable[[str], None]) -> None:
        """Has a function show who is waited for outside of cells.

        Args:
            show: Takes a sentence; an empty one when that is over.
        """
        self._reach.notice = show

    def _ipython_key_completions_(self) -> list[str]:
        """Returns what ``spmd["`` may go on with."""
        return list(self.assist.names())
