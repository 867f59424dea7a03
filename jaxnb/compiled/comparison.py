"""A function under several shardings: what ``jaxnb.compare`` returns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxnb.compiled.ranking import COLUMNS, best
from jaxnb.errors import UsageError
from jaxnb.model.compiled import Column, ComparisonReport, OutputWarning, Variant
from jaxnb.options import suggest

if TYPE_CHECKING:
    from jaxnb.display.card import Card


@dataclass(frozen=True, slots=True)
class Comparison:
    """A function under several shardings, a row for each.

    A notebook shows it as a table, ``print`` too; ``comparison["fsdp"]`` is one row, and a loop
    goes through all of them.

    Attributes:
        report: What it was made of.
    """

    report: ComparisonReport

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The rows, in the order in which they were given."""
        return self.report.variants

    @property
    def warnings(self) -> dict[str, tuple[OutputWarning, ...]]:
        """Variant to its outputs that are laid out in a way that nobody has asked for."""
        return {v.name: v.warnings for v in self.variants if v.warnings}

    def __iter__(self) -> Iterator[Variant]:
        """Goes through the rows, in order."""
        return iter(self.variants)

    def __getitem__(self, name: str) -> Variant:
        """Returns the row of a variant.

        Raises:
            KeyError: There is none of that name.
        """
        for variant in self.variants:
            if variant.name == name:
                return variant
        known = [variant.name for variant in self.variants]
        raise KeyError(f"There is no variant {name!r}.{suggest(name, known)} Variants: {known}.")

    def best(self, column: Column) -> Variant:
        """Returns the variant that has the least of a column; the first of several.

        Args:
            column: ``"bytes"`` (sent by each device in one call), ``"memory"`` (of each
                device), ``"compile"`` or ``"time"`` (the median of a call).

        Raises:
            UsageError: There is no such column, or no variant has a number in it.
        """
        if column not in COLUMNS:
            names = ", ".join(map(repr, COLUMNS))
            raise UsageError(
                f"There is no column {column!r}.{suggest(column, COLUMNS)} Columns: {names}."
            )
        found = best(self.variants, column)
        if found is None:
            why = f": {self.report.not_run}" if column == "time" and self.report.not_run else ""
            raise UsageError(f"No variant has a number in the column {column!r}{why}.")
        return found

    def plot(self) -> Card:
        """Returns the comparison as bars: bytes by mesh axis, memory by use, compile time, time."""
        from jaxnb.compiled.card_chart import chart_card

        return chart_card(self.report)

    def __str__(self) -> str:
        from jaxnb.compiled import card_comparison

        return card_comparison.comparison_card(self.report).text

    def __repr__(self) -> str:
        names = ", ".join(variant.name for variant in self.variants)
        return f"<Comparison of {self.report.function}: {names}>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        from jaxnb.compiled import card_comparison

        card = card_comparison.comparison_card(self.report)
        return {"text/plain": card.text, "text/html": card.html}
