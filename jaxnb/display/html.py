"""Blocks to HTML: tables, divisions and styles in place, nothing else.

JupyterLab shows a notebook that is not trusted without style sheets, scripts and SVG, and keeps of
styles what a list allows: no ``var()``, no ``currentColor``. So a card uses only what is kept, and
looks the same trusted or not. It takes the page's own colours and fonts; its own colours are
mid-tones or translucent, as the page may be light or dark.

Other pages, such as GitHub's, keep no styles at all: the words of a card are words there, too, by
blanks between texts that stand beside each other, ``<br>`` and ``<pre>``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import zip_longest
from typing import Any, Literal

from jaxnb.display import blocks as b
from jaxnb.display.markup import Html, ansi_runs, coded, tag, together

Tone = Literal["", "warn", "error"]

ACCENT, AMBER, RED = "#3b7ddd", "#c98a00", "#d03a3a"
_GREY = "rgba(128,128,128,.25)"
_DIM = "opacity:.65"
_BREAK, _BLANK, _NOTHING = tag("br"), Html(" "), Html("")

_CARD = "padding-left:5px;font-size:13px;line-height:1.5;overflow-x:auto"
_TONES = {
    "": "",
    "warn": f"border-left:3px solid {AMBER};padding-left:10px",
    "error": f"border-left:3px solid {RED};padding-left:10px",
}
_MONO = "font-family:Menlo,Consolas,monospace"
_PRE = f"margin:0;padding:0;border:0;background:none;{_MONO};font-size:13px;line-height:1.35"
_FACTS = {"": None, "dim": _DIM, "small": "font-size:11px;opacity:.75"}
_NOTES = {
    "": None,
    "bold": "font-weight:bold",
    "dim": _DIM,
    "warn": f"{_TONES['warn']};margin:4px 0",
}
_TABLE = "border-collapse:collapse;border:0;margin:4px 0"
# Front ends have styles of their own for cells of tables: each says what it needs.
_CELL = "padding:1px 14px 1px 0;text-align:"
_LOOKS = {
    "bold": "font-weight:bold",
    "dim": _DIM,
    "head": f"font-weight:normal;{_DIM}",
    "pre": _MONO,
    "warn": f"color:{AMBER}",
}
_PLAIN_ROW = "background:none"
_SHORT = 32
"""Cells with fewer characters are not broken."""

_LANE, _LANE_GAP = 16, 6


def html_of(blocks: Iterable[b.Block], tone: Tone = "") -> Html:
    """Returns a card of blocks; nothing if there are none."""
    shown = _all(blocks)
    style = ";".join(filter(None, [_CARD, _TONES[tone]]))
    return tag("div", shown, class_="jaxnb", style=style) if shown else shown


def _all(blocks: Iterable[b.Block]) -> Html:
    return together(*(_SHOW[type(block)](block) for block in blocks))


def _facts(facts: b.Facts) -> Html:
    line = _facts_line(facts)
    return tag("div", line, style=_FACTS[facts.look]) if line else line


def _facts_line(facts: b.Facts) -> Html:
    shown: list[str] = []
    if facts.title:
        shown.append(tag("b", coded(facts.title)))
        shown.append("" if not facts.parts else " " if facts.title.endswith(":") else " · ")
    for i, part in enumerate(facts.parts):
        shown += [" · ", coded(part)] if i else [coded(part)]
    return together(*shown)


def _note(note: b.Note) -> Html:
    if not note.text:
        return _NOTHING
    return tag("div", coded(note.text), style=_NOTES[note.look])


def _table(table: b.Table) -> Html:
    if not table.rows:
        return _NOTHING
    indices = table.shown_columns("html")
    columns = [table.columns[i] for i in indices]
    parts: list[Html] = []
    if any(column.title for column in columns):
        titles = (
            tag("th", c.title, style=f"{_CELL}{_side(c)};font-weight:normal;{_DIM}")
            for c in columns
        )
        parts.append(tag("thead", tag("tr", *titles, style=_PLAIN_ROW)))
    rows = zip_longest(table.rows, table.tooltips)
    parts.append(
        tag("tbody", *(_row([row[i] for i in indices], columns, tip) for row, tip in rows))
    )
    shown = tag("div", tag("table", *parts, style=_TABLE), style="overflow-x:auto")
    return together(shown, tag("div", table.rest, style=_DIM) if table.rest else "")


def _row(row: Sequence[str | b.Cell], columns: Sequence[b.Column], tooltip: str | None) -> Html:
    cells = [cell if isinstance(cell, b.Cell) else b.Cell(cell) for cell in row]
    top = any("\n" in cell.text for cell in cells)
    shown = [_cell(cell, column, top) for cell, column in zip(cells, columns, strict=True)]
    return tag("tr", *shown, title=tooltip, style=_PLAIN_ROW)


def _side(column: b.Column) -> str:
    return "right" if column.align == ">" else "left"


def _cell(cell: b.Cell, column: b.Column, top: bool) -> Html:
    text = cell.text
    is_short = column.align == ">" or len(text) <= _SHORT or cell.look == "code"
    # What has no blank is not broken anyway.
    has_gaps = " " in text or "-" in text
    space = "nowrap" if is_short and has_gaps and not column.wrap else ""
    inside: str = text
    if cell.look == "pre" and "\n" in text:
        inside = _pre(b.Pre(text))
    elif "\n" in text:
        inside, space = _broken(text.split("\n")), ""
    if cell.strip is not None:
        inside = _strip(cell.strip)
    elif cell.look == "code" and text:
        inside = tag("code", text, style="white-space:nowrap")  # pages may have it broken
    style = _cell_style(_side(column), top, space, cell.look)
    return tag("th" if cell.look == "head" else "td", inside, style=style, title=cell.title)


def _broken(lines: Iterable[str]) -> Html:
    """Returns lines one below the other."""
    return together(*[part for line in lines for part in (_BREAK, line)][1:])


@cache
def _cell_style(side: str, top: bool, space: str, look: b.Look) -> str:
    space = "pre-wrap" if look == "pre" else space
    parts = [_CELL + side, "vertical-align:top" if top else "", space and f"white-space:{space}"]
    return ";".join(filter(None, [*parts, _LOOKS.get(look)]))


def _strip(strip: b.Strip) -> Html:
    style = f"display:flex;width:{strip.width}px;height:9px;margin:2px 0;background:{_GREY}"
    return tag("div", _lengths(strip.lengths), style=style, title=strip.title or None)


def _lengths(lengths: Sequence[b.Length]) -> Html:
    shown, end = [], 0.0
    for each in lengths:
        gap = each.start - end
        style = f"width:{each.percent:.4g}%;background:{each.color}"
        if gap > 0.01:
            style += f";margin-left:{gap:.4g}%"
        shown.append(tag("i", style=style, title=each.title or None))
        end = each.start + each.percent
    return together(*shown)


def _pre(pre: b.Pre) -> Html:
    if not pre.text:
        return _NOTHING
    space = "pre" if pre.wide else "pre-wrap"
    runs = ansi_runs(pre.text) if "\x1b" in pre.text else ()
    inside = [tag("span", run.text, style=run.style) if run.style else run.text for run in runs]
    return tag("pre", *(inside or [pre.text]), style=f"{_PRE};white-space:{space}")


def _shown(shown: b.Shown) -> Html:
    view = shown.view
    if view.kind == "html":
        return tag("div", view.content)
    if view.kind == "image":
        source = f"data:{view.mime_type};base64,{view.content}"
        width = str(view.width) if view.width else None
        fits = None if width else "max-width:100%"
        return tag("img", alt=view.text, src=source, width=width, style=fits)
    return _pre(b.Pre(view.content))


def _progress(progress: b.Progress) -> Html:
    bar = tag("progress", value=str(progress.percent), max="100", style="width:160px")
    facts = " · ".join(progress.facts)
    return tag("div", tag("b", progress.doing), " ", bar, " ", facts)


def _fold(fold: b.Fold) -> Html:
    summary = tag("summary", _facts_line(fold.summary), style=_FACTS[fold.summary.look] or None)
    return tag("details", summary, _all(fold.blocks), open="" if fold.opened else None)


def _beside(beside: b.Beside) -> Html:
    style = "flex:none;max-width:100%"
    shown = [tag("div", inside, style=style) for g in beside.groups if (inside := _all(g))]
    style = "display:flex;flex-wrap:wrap;gap:8px 32px;align-items:flex-start;margin:4px 0"
    return tag("div", *shown, style=style) if shown else _NOTHING


_AROUND = "padding:0 4px;font-size:11px;font-weight:normal;white-space:nowrap;opacity:.75"


def _spans(titles: Sequence[str]) -> list[tuple[str, int]]:
    """Returns titles, and over how many columns each stands: over those without one behind it."""
    found: list[tuple[str, int]] = []
    for title in titles:
        if title or not found:
            found.append((title, 1))
        else:
            found[-1] = found[-1][0], found[-1][1] + 1
    return found


def _grid(grid: b.Grid) -> Html:
    rows = []
    if grid.columns:
        corner = [tag("td", style=_AROUND)] if grid.rows else []
        heads = (
            tag("th", text, colspan=str(n) if n > 1 else None, style=f"{_AROUND};text-align:center")
            for text, n in _spans(grid.columns)
        )
        rows.append(tag("tr", *corner, *heads, style=_PLAIN_ROW))
    for boxes, name in zip_longest(grid.boxes, grid.rows):
        label = [] if name is None else [tag("th", name, style=f"{_AROUND};text-align:right")]
        rows.append(tag("tr", *label, *map(_box, boxes), style=_PLAIN_ROW))
    style = "border-collapse:separate;border-spacing:2px;border:0;margin:0"
    return tag("table", tag("tbody", *rows), style=style)


_BOX = (
    "width:16px;height:16px;padding:1px 3px;text-align:center;font-size:11px;white-space:nowrap;"
    "background:"
)


def _box(box: b.Box | None) -> Html:
    if box is None:
        return tag("td", "⋯", style=_AROUND)
    style = _BOX + (box.color or "none;border:1px dashed rgba(128,128,128,.6)")
    if box.stacked:
        style += ";box-shadow:3px 3px 0 0 rgba(128,128,128,.35)"
    return tag("td", _broken(box.lines), style=style, title=box.title)


def _apart(inline: Iterable[Html]) -> list[Html]:
    """Returns elements with blanks between, so that their words do not run together unstyled."""
    return [part for each in inline for part in (_BLANK, each)][1:]


_TICK = "font-size:11px;white-space:nowrap;opacity:.75"


def _lanes(lanes: b.Lanes) -> Html:
    pitch = _LANE + _LANE_GAP
    label = f"height:{pitch}px;line-height:{pitch}px;font-size:11px;text-align:right;opacity:.75"
    names = (tag("div", text, style=label) for text in lanes.labels)
    strip = f"display:flex;height:{_LANE}px;padding:{_LANE_GAP // 2}px 0"
    strips = (tag("div", _lengths(lengths), style=strip) for lengths in lanes.strips)
    ticks = (
        tag("span", text, style=f"position:absolute;left:{at:.4g}%;{_TICK}")
        for at, text in lanes.ticks
    )
    axis = tag(
        "div", *_apart(ticks), style=f"position:relative;height:18px;border-top:1px solid {_GREY}"
    )
    whole = tag("div", *strips, axis, style="flex:1 1 0;max-width:680px")
    left = tag("div", *names, style="flex:none;padding-right:6px")
    # The last tick's label stands right of the axis.
    outer = tag("div", left, whole, style="display:flex;padding-right:40px;margin:4px 0")
    keys = (
        tag("span", tag("span", "■", style=f"color:{key.color};font-size:15px"), f" {key.name}",
            style=_KEY)
        for key in lanes.legend
    )  # fmt: skip
    return together(outer, tag("div", *_apart(keys), style="font-size:11px"))


_KEY = "margin-left:12px;white-space:nowrap"


_SHOW: dict[type[Any], Callable[[Any], Html]] = {
    b.Facts: _facts,
    b.Note: _note,
    b.Table: _table,
    b.Pre: _pre,
    b.Shown: _shown,
    b.Progress: _progress,
    b.Grid: _grid,
    b.Lanes: _lanes,
    b.Fold: _fold,
    b.Beside: _beside,
    b.Either: lambda either: _all(either.html),
}
