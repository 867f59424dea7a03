"""Every card, by name. One module per subject makes them, and is imported when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxnb._lazy import lazy

if TYPE_CHECKING:
    from jaxnb.display.card import Card, stacked
    from jaxnb.display.cards_array import array_card, replicas_differ_card
    from jaxnb.display.cards_cell import below_card, cell_card, footer_card, straggler
    from jaxnb.display.cards_collectives import collectives_card
    from jaxnb.display.cards_comparison import comparison_card
    from jaxnb.display.cards_error import ErrorGroup, error_card, error_groups
    from jaxnb.display.cards_group import (
        progress_card,
        start_card,
        status_card,
        stopped_card,
    )
    from jaxnb.display.cards_history import history_card
    from jaxnb.display.cards_layout import layout_card
    from jaxnb.display.cards_live import background_card, live_card
    from jaxnb.display.cards_output import DisplayColumns, displays_card, native_value
    from jaxnb.display.cards_pitfalls import pitfalls_card
    from jaxnb.display.cards_stats import stats_card
    from jaxnb.display.cards_stats_live import live_stats_card
    from jaxnb.display.cards_timeline import timeline_card
    from jaxnb.display.cards_timing import timing_card
    from jaxnb.display.cards_transfer import (
        Moved,
        gathered_card,
        moved,
        moved_card,
        narrowed,
        per_process_card,
        transfer_card,
    )
    from jaxnb.display.cards_value import value_card
    from jaxnb.display.cards_waits import waits_card
    from jaxnb.display.stats_history import StatsHistory

__all__ = [
    "Card",
    "DisplayColumns",
    "ErrorGroup",
    "Moved",
    "StatsHistory",
    "array_card",
    "background_card",
    "below_card",
    "cell_card",
    "collectives_card",
    "comparison_card",
    "displays_card",
    "error_card",
    "error_groups",
    "footer_card",
    "gathered_card",
    "history_card",
    "layout_card",
    "live_card",
    "live_stats_card",
    "moved",
    "moved_card",
    "narrowed",
    "native_value",
    "per_process_card",
    "pitfalls_card",
    "progress_card",
    "replicas_differ_card",
    "stacked",
    "start_card",
    "stats_card",
    "status_card",
    "stopped_card",
    "straggler",
    "timeline_card",
    "timing_card",
    "transfer_card",
    "value_card",
    "waits_card",
]

__getattr__ = lazy(
    __name__,
    [
        f"jaxnb.display.{module}"
        for module in (
            "card",
            "cards_group",
            "cards_live",
            "cards_output",
            "cards_error",
            "cards_value",
            "cards_pitfalls",
            "cards_cell",
            "cards_array",
            "cards_layout",
            "cards_stats",
            "cards_stats_live",
            "stats_history",
            "cards_collectives",
            "cards_comparison",
            "cards_timeline",
            "cards_timing",
            "cards_history",
            "cards_transfer",
            "cards_waits",
        )
    ],
)
