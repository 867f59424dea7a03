"""All that the processes of a cell have sent, once it has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxnb.cells.timing import timing_of
from jaxnb.model.cells import CellReply, CellRequest, CellTiming, ProcessError, RichOutput
from jaxnb.model.dispatches import Trail
from jaxnb.model.insight import Pitfall
from jaxnb.pitfalls.already_told import merged


@dataclass(frozen=True, slots=True)
class Collected:
    """All that the processes of a cell have sent.

    Attributes:
        request: The cell.
        replies: What each has answered; of one that has not, that it did not end the cell.
        silent: Who has not answered itself: the dead, too.
        displays: What each has displayed.
        texts: Name of a stream to what each has written.
        merged: Name of a stream to all that, merged and labelled.
        seconds: How long it took, as seen from the notebook.
    """

    request: CellRequest
    replies: Mapping[int, CellReply]
    silent: frozenset[int]
    displays: Mapping[int, tuple[RichOutput, ...]]
    texts: Mapping[str, Mapping[int, str]]
    merged: Mapping[str, str]
    seconds: float

    @property
    def errors(self) -> dict[int, ProcessError]:
        """What processes have raised, or were interrupted by, or that they did not end the cell."""
        return {i: each.error for i, each in self.replies.items() if each.error is not None}

    @property
    def timing(self) -> CellTiming:
        """How long its calls took on each process, if it is timed."""
        return timing_of({i: reply.calls for i, reply in self.replies.items()})

    @property
    def trails(self) -> dict[int, tuple[Trail, ...]]:
        """What each process dispatched to several, in short."""
        return {i: reply.trails for i, reply in self.replies.items()}

    @property
    def pitfalls(self) -> tuple[Pitfall, ...]:
        """What the processes saw of pitfalls, each cause once."""
        return merged({i: reply.pitfalls for i, reply in self.replies.items()})
