"""What IPython would show in a pager (`x?`, `%page x`), shown as other outputs, and once."""

from __future__ import annotations

from typing import Any

from IPython.core import page

from jaxnb.wire.process_features import CellHere, Feature


class Paging(Feature):
    """Displays what IPython would page, on the first of a cell's processes.

    What the processes tell of an object may differ (where it is in memory, its values), and nobody
    wants to read its documentation so often.

    Args:
        shell: This process's shell. ipykernel puts what is paged into the reply, for a pager that
            a notebook has for its own kernel only.
        process_index: This process.
    """

    def __init__(self, shell: Any, process_index: int) -> None:
        self._me = process_index
        self._shows = True
        shell.set_hook("show_in_pager", page.as_hook(self._show), 0)

    def begin(self, cell: CellHere) -> None:
        """Notes whether this process is the first that runs the cell."""
        self._shows = self._me == min(cell.request.ranks, default=self._me)

    def _show(self, text: Any, *_: Any, **__: Any) -> None:
        if self._shows:
            page.display_page(text)
