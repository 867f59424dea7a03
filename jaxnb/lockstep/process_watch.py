"""What looks at the values of computations: its interface to the recorder of dispatches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from jaxnb.model.dispatches import Processes


class Watch(Protocol):
    """What looks at the values of computations, before and after their dispatch.

    Attributes:
        is_on: Whether the next computation is to be looked at.
    """

    is_on: bool

    def require_seen(self, missing: str) -> None:
        """Raises if the cell asks to look at what nothing is told of.

        Args:
            missing: Why nothing is; empty if it is.
        """

    def before(self, arguments: Sequence[Any]) -> Any:
        """Looks at the arguments of a computation; returns what :meth:`after` is given."""

    def after(
        self,
        name: str,
        processes: Processes,
        number: int,
        line: int | None,
        inputs: Any,
        results: Sequence[Any],
    ) -> None:
        """Looks at the results of a computation; waits for them.

        Args:
            name: Its name.
            processes: Those that it spans.
            number: Which dispatch over these it is; 0 if that is not counted.
            line: The cell's line.
            inputs: What :meth:`before` has returned.
            results: Its results.
        """
