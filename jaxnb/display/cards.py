"""Every card, by name. One module per subject makes them."""

from __future__ import annotations

from jaxnb.display.card import Card, stacked
from jaxnb.display.cards_array import array_card, replicas_differ_card
from jaxnb.display.cards_cell import cell_card, footer_card, straggler
from jaxnb.display.cards_error import ErrorGroup, error_card, error_groups
from jaxnb.display.cards_group import progress_card, start_card, status_card, stopped_card
from jaxnb.display.cards_output import DisplayColumns, displays_card, native_value
from jaxnb.display.cards_stats import stats_card
from jaxnb.display.cards_value import value_card

__all__ = [
    "Card",
    "DisplayColumns",
    "ErrorGroup",
    "array_card",
    "cell_card",
    "displays_card",
    "error_card",
    "error_groups",
    "footer_card",
    "native_value",
    "progress_card",
    "replicas_differ_card",
    "stacked",
    "start_card",
    "stats_card",
    "status_card",
    "stopped_card",
    "straggler",
    "value_card",
]
