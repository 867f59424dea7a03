"""How values that came from the processes look in the notebook."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jaxnb.display.card import Card

if TYPE_CHECKING:
    from jaxnb.arrays.gathered import GatheredArray
    from jaxnb.arrays.lost import PerProcess
    from jaxnb.session import Session

_Bundle = dict[str, Any]


def register(shell: Any, session: Callable[[], Session | None]) -> None:
    """Teaches a shell to show them.

    Args:
        shell: The shell.
        session: Returns the notebook's session, if there is one.
    """
    formatter = shell.display_formatter
    # By name, so that loading the extension need not import the classes.
    formatter.mimebundle_formatter.for_type_by_name(
        "jaxnb.arrays.gathered", "GatheredArray", lambda array: _array_bundle(array, session())
    )
    values = ("jaxnb.arrays.lost", "PerProcess")
    formatter.formatters["text/html"].for_type_by_name(
        *values, lambda found: _values_card(found, shell).html
    )
    # IPython's own way to print a dict would come before a bundle's text.
    formatter.formatters["text/plain"].for_type_by_name(
        *values, lambda found, printer, cycle: _print_values(found, printer, shell)
    )


def _array_bundle(array: GatheredArray, session: Session | None) -> _Bundle:
    from jaxnb.arrays import card_transfer

    card = card_transfer.gathered_card(array, _pulled_since(array, session))
    return {"text/plain": card.text, "text/html": card.html}


def _values_card(values: PerProcess, shell: Any) -> Card:
    from jaxnb.arrays import card_transfer

    return card_transfer.per_process_card(
        (i, _own_bundle(each, shell)) for i, each in values.items()
    )


def _print_values(values: PerProcess, printer: Any, shell: Any) -> None:
    """Prints a table; inside another value, what Python prints."""
    inside = len(printer.stack) > 1
    printer.text(repr(values) if inside else _values_card(values, shell).text)


def _own_bundle(value: Any, shell: Any) -> _Bundle:
    from jaxnb.arrays.gathered import GatheredArray

    if isinstance(value, GatheredArray):  # a line, not a picture for each process
        return {"text/plain": repr(value)}
    bundle: _Bundle = shell.display_formatter.format(value)[0]
    return bundle or {"text/plain": repr(value)}


def _pulled_since(array: GatheredArray, session: Session | None) -> str:
    """Returns after which cell an array was pulled, if others have run since; else nothing.

    Whether its name has been bound to something else is not known; to pull again tells.
    """
    after = array.wanted().key.after
    if session is None or after is None or after == (session.group.last_cell or 0):
        return ""
    return f"pulled after cell [{after}]" if after else "pulled before the first cell"
