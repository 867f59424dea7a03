"""From an instruction's metadata to the line of the program that it comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from jaxnb.model.collectives import SourceLine

_SECTION = re.compile(r"^(FileNames|FunctionNames|FileLocations|StackFrames)$")
_NAME = re.compile(r'^(\d+) "(.*)"$')
_FIELDS = re.compile(r"(\w+)=(\d+)")
_NOT_THEIRS = ("/site-packages/", "/dist-packages/", "<frozen ")
_RUN_CELLS = re.compile(
    r"/(?:ipykernel|IPython|ipyparallel|jupyter_client|tornado|traitlets|asyncio)/"
    r"|/runpy\.py$|^<frozen "
)
"""They run cells: their lines say nothing of the program."""
_OWN = f"{Path(__file__).parents[1]}/"
"""jaxnb's own frames say nothing: it calls JAX for the user."""


class Frames:
    """The tables of source lines that a program's text begins with.

    Newer versions of XLA write an instruction's stack frame as a number into tables, older
    ones write file and line at the instruction.

    Args:
        header: The text before the first computation.
    """

    def __init__(self, header: str) -> None:
        self._names: dict[str, dict[int, str]] = {"FileNames": {}, "FunctionNames": {}}
        self._rows: dict[str, dict[int, dict[str, int]]] = {"FileLocations": {}, "StackFrames": {}}
        section = ""
        for line in header.splitlines():
            if _SECTION.match(line):
                section = line
            elif section in self._names and (found := _NAME.match(line)):
                self._names[section][int(found[1])] = found[2]
            elif section in self._rows and line[:1].isdigit():
                number = int(line.split(" ", 1)[0])
                self._rows[section][number] = {k: int(v) for k, v in _FIELDS.findall(line)}
        # XLA prints the parent of the first frame, which has none, as 0 or, with all numbers of
        # parents one too high, as 1.
        first = self._rows["StackFrames"].get(1, {})
        self._shift = 1 if first.get("parent_frame_id") == 1 else 0

    def line(self, metadata: Mapping[str, str]) -> SourceLine | None:
        """Returns the line that an instruction comes from.

        That is the innermost one of a cell; without one, the innermost that is not in an
        installed package; without one, the innermost but those of what runs cells.

        Args:
            metadata: The instruction's.
        """
        stack = list(self._stack(metadata))
        for wanted in (lambda f: f.startswith("<cell "),
                       lambda f: not any(part in f for part in _NOT_THEIRS)):  # fmt: skip
            for each in stack:
                if wanted(each.file):
                    return each
        return stack[0] if stack else None

    def _stack(self, metadata: Mapping[str, str]) -> Iterator[SourceLine]:
        if "source_file" in metadata:
            number = metadata.get("source_line", "0")
            if not _RUN_CELLS.search(metadata["source_file"]):
                yield SourceLine(metadata["source_file"], int(number) if number.isdigit() else 0)
            return
        text = metadata.get("stack_frame_id", "0")
        frame = int(text) if text.isdigit() else 0
        seen: set[int] = set()
        while frame in self._rows["StackFrames"] and frame not in seen:
            seen.add(frame)
            row = self._rows["StackFrames"][frame]
            place = self._rows["FileLocations"].get(row.get("file_location_id", 0), {})
            file = self._names["FileNames"].get(place.get("file_name_id", 0), "")
            function = self._names["FunctionNames"].get(place.get("function_name_id", 0), "")
            if file and not file.startswith(_OWN) and not _RUN_CELLS.search(file):
                yield SourceLine(file, place.get("line", 0), function)
            frame = row.get("parent_frame_id", 0) - self._shift
