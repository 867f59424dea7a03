"""What cards are made of: blocks that say what is shown, not how HTML or a terminal shows it.

:mod:`jaxnb.display.html` and :mod:`jaxnb.display.text` show them. In sentences and facts, what
stands between backticks is code. Blocks with nothing in them show nothing.
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
        title: What they are of, before them.
        look: ``"dim"``: of less weight; ``"small"``: the line below a value.
        wrap: As text, lines end at 80 columns.
        before: As text, what the line begins with.
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
        wrap: As text, lines end at 80 columns.
        before: As text, what the first line begins with; the others begin below its end.
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
        least: As text, to how many characters it may be shortened in a row that is too long.
        short: Its title as text, if that is another.
        only: Where it is shown.
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
        short: What it says as text, if that is something else.
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
        gap: As text, blanks between columns.
        titled: As text, the titles are shown.
    """

    columns: Sequence[Column]
    rows: Sequence[Row]
    tooltips: Sequence[str] = ()
    more: tuple[int, str] = (0, "")
    gap: int = 2
    titled: bool = True

    def places(self, where: Only) -> list[int]:
        """Returns the columns that are shown as ``"html"`` or as ``"text"``."""
        return [
            i
            for i, column in enumerate(self.columns)
            if column.only in ("both", where)
            and not (column.optional and all(_is_empty(row[i]) for row in self.rows))
        ]

    @property
    def rest(self) -> str:
        """What is said of rows that were left out."""
        count, what = self.more
        return f"… {plural(count, f'more {what}')}" if count > 0 else ""


def _is_empty(cell: str | Cell) -> bool:
    return not (cell.text or cell.strip or cell.short) if isinstance(cell, Cell) else not cell


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
        colors: Its owners' colours, side by side.
        title: Its tooltip; as text, its line in a grid that is too wide.
        text: What stands in it as text.
        stacked: Several devices have one.
        chips: Above the lines, words in colours of their own.
    """

    lines: Sequence[str]
    colors: Sequence[str]
    title: str
    text: str
    stacked: bool = False
    chips: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Grid:
    """Boxes in rows and columns; as text a table, or a line for each box where it is too wide.

    Attributes:
        boxes: By row; None where there is none.
        captions: What stands above, by line.
        columns: What stands above each column.
        rows: What stands left of each row.
    """

    boxes: Sequence[Sequence[Box | None]]
    captions: Sequence[str] = ()
    columns: Sequence[str] = ()
    rows: Sequence[str] = ()


MARK_COLOR = "#D55E00"


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment on an axis of time, in percent, across some lanes of it."""

    at: float
    first: int
    last: int
    title: str


@dataclass(frozen=True, slots=True)
class Lanes:
    """Coloured lengths one below the other over one axis; only in HTML.

    Attributes:
        labels: The name of each strip.
        strips: The lengths of each strip.
        marks: Moments across several of them.
        ticks: Places on the axis in percent, and what stands there.
        legend: Names and colours.
    """

    labels: Sequence[str]
    strips: Sequence[Sequence[Length]]
    marks: Sequence[Mark]
    ticks: Sequence[tuple[float, str]]
    legend: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Fold:
    """Blocks that are a click away in HTML; as text they stand below the summary."""

    summary: Facts
    blocks: Sequence[Block]
    opened: bool = False


@dataclass(frozen=True, slots=True)
class Beside:
    """Groups of blocks side by side, as far as the page is wide."""

    groups: Sequence[Sequence[Block]]


@dataclass(frozen=True, slots=True)
class Either:
    """What is said in another way in HTML than as text; each may be nothing."""

    html: Sequence[Block] = ()
    text: str = ""


Block = (
    Facts | Note | Table | Pre | Shown | Progress | Grid | Lanes | Fold | Beside | Either
)  # fmt: skip
