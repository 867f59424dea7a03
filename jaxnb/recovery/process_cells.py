"""The texts of cells, which tracebacks show and classes are made from, carried with the code."""

from __future__ import annotations

import linecache
import re

CELL = re.compile(r"<cell (\d+)(?:, loaded)?>")
"""The name that a cell's code has for its file."""

names_of_cells: dict[str, str] = {}
"""The names that cells have here whose own names are others' already."""


def sources_of_cells() -> dict[str, str]:
    """Returns the texts of cells, by the names that their code has."""
    names = [name for name in [*linecache.cache] if CELL.fullmatch(name)]
    return {name: "".join(linecache.getlines(name)) for name in names}


def set_sources_of_cells(sources: dict[str, str]) -> None:
    """Makes the texts of cells known; where another cell has the name, under another name."""
    known = sources_of_cells()
    names_of_cells.clear()
    for name, text in sources.items():
        if known.get(name, text) != text:
            names_of_cells[name] = f"{name[:-1].removesuffix(', loaded')}, loaded>"
        at = names_of_cells.get(name, name)
        linecache.cache[at] = len(text), None, text.splitlines(keepends=True), at
