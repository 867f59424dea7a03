"""What cards are made of: blocks that say what is shown, not how HTML or a terminal shows it.

A card has an HTML version, made by :mod:`jaxnb.display.html`, and a text version of plain
characters, made by :mod:`jaxnb.display.text`. In sentences and facts, what stands between backticks
is code. Blocks with nothing in them show nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from jaxnb.display.markup import View
from jaxnb.labels import plural

Look = Literal["", "bold", "code", "dim", "head", "pre", "warn"]
Only = Literal["both", "html", "text"]


@dataclass(frozen=True, slots=True)
class Facts:
    """Short texts on one line, with dots between.

    Attributes:
        parts: The texts.
        title: A heading before them.
        look: ``"dim"``: of less weight; ``"small"``: the line below a value.
        wrap: In the text version, lines end at 80 columns.
        before: In the text version, what the line begins with.
    """

    parts: Sequence[str]
    title: str = ""
    look: Literal["", "dim", "small"] = ""
    wrap: bool = True
    before: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence or more.

    Attributes:
        text: The sentences.
        look: ``"dim"``: of less weight; ``"warn"``: a warning of its own.
        wrap: In the text version, lines end at 80 columns.
        before: In the text version, what the first line begins with; the others begin below its
            end.
    """

    text: str
    look: Literal["", "bold", "dim", "warn"] = ""
    wrap: bool = True
    before: str = ""


class Length(NamedTuple):
    """A piece of a strip: where it begins and how long it is, in percent."""

    start: float
    percent: float
    color: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Strip:
    """A bar with coloured lengths, in order; only in HTML."""

    lengths: Sequence[Length]
    title: str = ""
    width: int = 120


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        title: What stands above it.
        align: ``">"`` for numbers.
        least: In the text version, to how many characters it may be shortened in a row that is
            too long.
        short: Its title in the text version, if it differs.
        only: The version that it is shown in.
        optional: It is left out where nothing is in it.
        wrap: In HTML, its cells are broken where the page is narrow, short ones too.
    """

    title: str = ""
    align: Literal["<", ">"] = "<"
    least: int | None = None
    short: str | None = None
    only: Only = "both"
    optional: bool = False
    wrap: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table; a plain text is one too.

    Attributes:
        text: What is in it.
        look: How it is shown in HTML.
        short: What it says in the text version, if it differs.
        strip: A bar in its place, in HTML.
        title: A tooltip.
    """

    text: str = ""
    look: Look = ""
    short: str | None = None
    strip: Strip | None = None
    title: str | None = None


Row = Sequence[str | Cell]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells.

    Attributes:
        columns: The columns.
        rows: For each row a cell for each column.
        tooltips: For each row a tooltip, or none at all.
        more: How many rows were left out, and what they are: ``(3, "process")``.
        gap: In the text version, how many blanks are between columns.
    """

    columns: Sequence[Column]
    rows: Sequence[Row]
    tooltips: Sequence[str] = ()
    more: tuple[int, str] = (0, "")
    gap: int = 2

    def shown_columns(self, version: Literal["html", "text"]) -> list[int]:
        """Returns the indices of the columns that are shown in a version."""
        return [
            i
            for i, column in enumerate(self.columns)
            if column.only in ("both", version)
            and not (column.optional and all(_is_empty(row[i]) for row in self.rows))
        ]

    @property
    def rest(self) -> str:
        """What is said of rows that were left out."""
        count, what = self.more
        return f"… {plural(count, f'more {what}')}" if count > 0 else ""


def _is_empty(cell: str | Cell) -> bool:
    if isinstance(cell, Cell):
        return not (cell.text or cell.strip or cell.short)
    return not cell


@dataclass(frozen=True, slots=True)
class Pre:
    """Text as it is, with its ANSI colours; ``wide``: its lines are not broken."""

    text: str
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Shown:
    """An object of the user's."""

    view: View


@dataclass(frozen=True, slots=True)
class Progress:
    """How far something is."""

    doing: str
    percent: int
    facts: Sequence[str]


@dataclass(frozen=True, slots=True)
class Box:
    """A place of a grid.

    Attributes:
        lines: The lines in it.
        color: Behind the lines; empty: it has a dashed edge.
        title: Its tooltip; in the text version, its line where the grid is too large.
        text: What stands in it in the text version.
        stacked: Several devices hold this part; drawn as a stack.
    """

    lines: Sequence[str]
    color: str
    title: str
    text: str
    stacked: bool = False


@dataclass(frozen=True, slots=True)
class Grid:
    """Boxes in rows and columns.

    The text version is a table, or a line for each box where that is too large.

    Attributes:
        boxes: By row; None where there is none.
        columns: What stands above each column; a title stands above those without one behind it.
        rows: What stands left of each row.
    """

    boxes: Sequence[Sequence[Box | None]]
    columns: Sequence[str] = ()
    rows: Sequence[str] = ()


class Key(NamedTuple):
    """An entry of a legend; the symbol is for the text version."""

    name: str
    color: str
    symbol: str


@dataclass(frozen=True, slots=True)
class Lanes:
    """Coloured lengths one below the other over one axis.

    Attributes:
        labels: The name of each strip.
        strips: The lengths of each strip.
        ticks: Places on the axis in percent, and what stands there.
        legend: What the colours mean.
    """

    labels: Sequence[str]
    strips: Sequence[Sequence[Length]]
    ticks: Sequence[tuple[float, str]]
    legend: Sequence[Key]


@dataclass(frozen=True, slots=True)
class Fold:
    """Blocks that are a click away in HTML; in the text version they stand below the summary."""

    summary: Facts
    blocks: Sequence[Block]
    opened: bool = False


@dataclass(frozen=True, slots=True)
class Beside:
    """Groups of blocks side by side, as many as fit the page's width."""

    groups: Sequence[Sequence[Block]]


@dataclass(frozen=True, slots=True)
class Either:
    """What is said in one way in HTML and in another in the text version; each may be nothing."""

    html: Sequence[Block] = ()
    text: str = ""


Block = (
    Facts | Note | Table | Pre | Shown | Progress | Grid | Lanes | Fold | Beside | Either
)  # fmt: skip
