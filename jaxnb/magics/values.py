"""``%spmd_pull``, ``%spmd_push`` and ``%spmd_layout``."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from IPython.core.magic import line_magic, magics_class
from IPython.display import display

from jaxnb.arrays.lost import PerProcess
from jaxnb.display.card import Card
from jaxnb.labels import plural, processes_label
from jaxnb.magics import value_arguments
from jaxnb.magics.base import SessionMagics
from jaxnb.magics.meter import TransferMeter
from jaxnb.magics.shown_interrupts import plain_interrupt

if TYPE_CHECKING:
    from jaxnb.arrays.card_transfer import Moved
    from jaxnb.session import Session

PULL_STATE = "No variable was changed."
PUSH_STATE = "No variable on the processes was changed."


@magics_class
class ValueMagics(SessionMagics):
    """The magics that move values between the notebook and the processes.

    Args:
        shell: The notebook's shell.
        current: Returns the notebook's session; None while there is none.
        meter: Shows the progress of transfers, and where the card goes then.
    """

    def __init__(
        self, shell: Any, current: Callable[[], Session | None], meter: TransferMeter
    ) -> None:
        super().__init__(shell, current)
        self._meter = meter

    @line_magic
    def spmd_pull(self, line: str) -> None:
        """Brings values from the processes into variables of the notebook.

        `--help` lists the options.
        """
        from jaxnb.arrays import card_transfer

        parser = value_arguments.pull_parser()
        asked = parser.asked(line)
        if asked is None:
            return
        session = self._started()
        held = [name for name, value in self.shell.user_ns.items() if value is session]
        wishes = value_arguments.wishes(asked, held)
        values: dict[str, Any] = {}
        notes: dict[str, list[str]] = {}
        gauge = _Gauge(self._meter)
        with plain_interrupt(f"Interrupted while values were pulled. {PULL_STATE}"):
            for wish in wishes:
                with _noted(notes.setdefault(wish.target, [])):
                    values[wish.target] = session.pull(wish.path, ranks=asked.ranks, lazy=False)
        gauge.stop()
        self.shell.push(values)
        rows = [card_transfer.moved(name, value, *notes[name]) for name, value in values.items()]
        where = "pulled" if asked.ranks is None else f"pulled from {processes_label(asked.ranks)}"
        self._meter.finish(gauge.card(rows, where))

    @line_magic
    def spmd_push(self, line: str) -> None:
        """Sends variables of the notebook to the processes, under the same names.

        `--help` lists the options.
        """
        parser = value_arguments.push_parser()
        asked = parser.asked(line)
        if asked is None:
            return
        session = self._started()
        names, hidden = self.shell.user_ns, self.shell.user_ns_hidden
        values = value_arguments.chosen(asked.names, names, hidden)
        gauge = _Gauge(self._meter)
        with plain_interrupt(f"Interrupted while values were pushed. {PUSH_STATE}"):
            session.push_values(values, spec=asked.spec, mesh=asked.mesh, ranks=asked.ranks)
        gauge.stop()
        placed = asked.spec is not None or asked.mesh is not None
        sent = {name: _for_ranks(value, asked.ranks) for name, value in values.items()}
        rows = [_pushed(session, name, value, placed) for name, value in sent.items()]
        who = plural(session.num_processes, "process")
        where = f"pushed to {who if asked.ranks is None else processes_label(asked.ranks)}"
        self._meter.finish(gauge.card(rows, where))

    @line_magic
    def spmd_layout(self, line: str) -> None:
        """Shows how an array, or a pytree of arrays, lies over processes and devices.

        `--help` lists the options.
        """
        parser = value_arguments.layout_parser()
        asked = parser.asked(line)
        if asked is None:
            return
        session = self._started()
        name = value_arguments.only_name(asked.names)
        with plain_interrupt("Interrupted; nothing was moved."):
            layout = session.layout(name)
        display(layout)


def _for_ranks(value: Any, ranks: Collection[int] | None) -> Any:
    """Returns what is pushed of a value: of one by process what those processes get."""
    if ranks is None or not isinstance(value, PerProcess):
        return value
    sent = PerProcess({i: value[i] for i in ranks})
    return next(iter(sent.values())) if len(sent) == 1 else sent


class _Gauge:
    """Measures what one magic moves, and for how long.

    Args:
        meter: Measures what all move.
    """

    def __init__(self, meter: TransferMeter) -> None:
        self._meter = meter
        self._bytes, self._moving = meter.moved_bytes, meter.moving_seconds
        self._started = time.perf_counter()
        self._seconds = 0.0

    def stop(self) -> None:
        """Takes the time; what follows is not counted."""
        self._seconds = time.perf_counter() - self._started
        self._bytes = self._meter.moved_bytes - self._bytes
        self._moving = self._meter.moving_seconds - self._moving

    def card(self, rows: Sequence[Moved], where: str) -> Card:
        """Describes what was moved."""
        from jaxnb.arrays import card_transfer

        return card_transfer.moved_card(rows, where, self._bytes, self._seconds, self._moving)


def _pushed(session: Session, name: str, value: Any, placed: bool) -> Moved:
    """Describes a pushed value as it is on the processes now."""
    from jaxnb.arrays import card_transfer

    row = card_transfer.moved(name, value)
    if not placed:
        is_array = row.type.startswith("NumPy ")
        return row.with_notes("NumPy there too; --spec makes a global array") if is_array else row
    layout = session.layout(name)
    dtypes = {array.dtype for _, array in layout.entries}
    return row.as_placed(layout.entries, card_transfer.narrowed(value, dtypes))


@contextmanager
def _noted(notes: list[str]) -> Iterator[None]:
    """Puts what a pull warns of on its card; other warnings stay what they are."""
    from jaxnb.arrays.pulling import NotMovedWarning, ReplicasDifferWarning

    noted = (ReplicasDifferWarning, NotMovedWarning)
    with warnings.catch_warnings(record=True) as caught:
        for category in noted:
            warnings.simplefilter("always", category)
        yield
    for each in caught:
        if issubclass(each.category, noted):
            notes.append(str(each.message))
        else:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
