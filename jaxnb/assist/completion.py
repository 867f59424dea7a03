"""Asks a process for names and documentation; never for long, and never with an error."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from jaxnb.labels import MAGICS, START_IMPORTS, plural, text_of
from jaxnb.options import suggest

DEADLINE_SECONDS = 0.1
"""With what the notebook itself needs, who types has waited 150 ms at most."""

_PROCESS = "jaxnb.assist.process_assist"


class Assist:
    """Help while typing, from the first process that is alive; none where it is silent.

    Args:
        ask: Returns what a function returns on that process, within some seconds; else None.
    """

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask

    def complete(self, code: Code) -> tuple[int, dict[str, str]]:
        """Returns what fits at a place in code that runs on the processes.

        Returns:
            Where in the code the words begin; and the words, with what each is.
        """
        told = self._told("complete", code=code.text, offset=code.offset)
        return told or (code.offset, {})

    def inspect(self, name: str, detail: int) -> dict[str, str]:
        """Returns what IPython tells of an object on the processes; empty if it is not known."""
        return self._told("inspect", name=name, detail=detail) or {}

    def names(self) -> tuple[str, ...]:
        """Returns the names of the processes' variables."""
        return self._told("names") or ()

    def _told(self, function: str, **data: Any) -> Any:
        """Returns what the first living process answers; None if it does not do so in time."""
        try:
            return self._ask(f"{_PROCESS}.{function}", DEADLINE_SECONDS, **data)
        except Exception:  # of whatever kind: a completer that raises prints a traceback
            return None


_LINE_MAGIC = re.compile(r"\s*(?:[\w.,\s\[\]]+=\s*)?%(?P<name>spmd\w*)(?P<blank>[ \t]+)")
_NAME = re.compile(r"\s*(?:[\w.,\s\[\]]+=\s*)?%{1,2}(?P<name>spmd\w*)")
_CELL_MAGIC = re.compile(r"%%(?P<name>\w+)(?P<blank>[ \t]*)")


@dataclass(frozen=True, slots=True)
class Code:
    """A place in code that runs on the processes.

    Attributes:
        text: The code.
        offset: The place in it.
        shift: Where in the cell the code begins.
    """

    text: str
    offset: int
    shift: int


@dataclass(frozen=True, slots=True)
class MagicLine:
    """A place behind the name of one of jaxnb's magics.

    Attributes:
        magic: Its name, without ``%``.
        text: What stands behind the name, to the end of the line.
        offset: The place in it.
        shift: Where in the cell the text begins.
    """

    magic: str
    text: str
    offset: int
    shift: int

    def code(self, start: int) -> Code:
        """Returns the text from a place on, as code."""
        return Code(self.text[start:], self.offset - start, self.shift + start)


def magic_at(cell: str, offset: int) -> str:
    """Returns the magic in whose name a place is, or at its end, without ``%``; or nothing."""
    start = cell.rfind("\n", 0, offset) + 1
    found = _NAME.match(cell, start)
    is_inside = found is not None and found.start("name") - 2 <= offset <= found.end()
    return found["name"] if found is not None and is_inside else ""


def place_at(cell: str, offset: int) -> Code | MagicLine | None:
    """Returns what stands at a place; None where it is the notebook's own.

    Args:
        cell: The whole cell.
        offset: The place.
    """
    start = 0
    for line in re.split(r"(?<=\n)", cell):  # IPython knows no other ends of a line
        stop = start + len(line)
        found = _CELL_MAGIC.match(line)
        if found is not None and found["name"].startswith("spmd"):
            text_start = start + found.end()
            if offset >= stop and line.endswith("\n"):
                return Code(cell[stop:], offset - stop, stop)
            if offset < text_start or not found["blank"]:
                return None
            text = line[found.end() :].rstrip("\n")
            return MagicLine(found["name"], text, offset - text_start, text_start)
        if found is None and line.strip():
            break  # a cell magic stands first, or after blank lines and other cell magics
        start = stop
    return _in_line(cell, offset)


def _in_line(cell: str, offset: int) -> MagicLine | None:
    start = cell.rfind("\n", 0, offset) + 1
    stop = cell.find("\n", offset)
    line = cell[start : len(cell) if stop < 0 else stop]
    found = _LINE_MAGIC.match(line)
    if found is None or offset < start + found.end():
        return None
    text_start = start + found.end()
    return MagicLine(found["name"], line[found.end() :], offset - text_start, text_start)


_TOO_FEW = re.compile(r"Number of devices (\d+) must be >= the product of mesh_shape")

_NO_MAGIC = re.compile(r"\w+ magic (?:function )?`(%+)(s[mp]\w+)` not found")

_INDENTED = re.compile(r"\s+%%(\w+)")


def magic_hint(error: BaseException | None, code: str) -> str:
    """Returns what to say of a cell whose magic was misspelt or misplaced; mostly nothing.

    Args:
        error: What the cell has raised, or why it could not begin.
        code: The cell.
    """
    found = _INDENTED.match(code)
    if found is not None and found[1] in MAGICS and isinstance(error, SyntaxError):
        return f"`%%{found[1]}` must be the first thing in its cell: remove the blanks before it."
    if (found := _NO_MAGIC.match(text_of(error))) is not None:
        sign, name = found.groups()
        if name in MAGICS:  # it is one for a line, as IPython says
            return ""
        # What all have in common makes none of them near.
        own = [each.removeprefix("spmd_") for each in MAGICS]
        is_near = suggest(name.removeprefix("spmd_"), own)
        return suggest(sign + name, (sign + each for each in MAGICS)).strip() if is_near else ""
    return ""


def hint(
    error: BaseException | None,
    code: str,
    names: Callable[[], Collection[str]],
    devices: int,
) -> str:
    """Returns what to say of an error of a cell that ran in the notebook; mostly nothing.

    Args:
        error: What the cell has raised.
        code: The cell.
        names: Returns the names of variables on the processes.
        devices: How many devices these have.
    """
    if type(error) is NameError and error.name and error.name in names():
        statement = START_IMPORTS.get(error.name)
        or_else = f", or type `%spmd_pull {error.name}` to bring it here"
        if statement:
            or_else = f", or import it here: `{statement}`"
        elif re.search(rf"\b{error.name}\s*\(", code):
            or_else = ""  # a function stays where its devices are
        return (
            f"`{error.name}` is on the processes, and this cell ran in the notebook. Put `%%spmd` "
            f"on its first line{or_else}."
        )
    if isinstance(error, ValueError) and (found := _TOO_FEW.match(str(error))) is not None:
        here = int(found[1])
        if devices > here:
            return (
                f"This cell ran in the notebook, whose own JAX has {plural(here, 'device')}; the "
                f"processes have {devices}. Put `%%spmd` on its first line."
            )
    return ""
