"""From an instruction's metadata to the line of the program that it comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxnb.compat.xla_messages import Message
from jaxnb.model.compiled import SourceLine

Place = tuple[str, int, int]
"""A file, a line in it and a column."""

moved_places: dict[Any, Mapping[Place, Place]] = {}
"""By the fingerprint of an executable that was compiled where its lines stood elsewhere: where they
stand now."""

NOT_MOVED: Mapping[Place, Place] = {}

_NOT_THEIRS = ("/site-packages/", "/dist-packages/", "<frozen ")
_RUN_CELLS = re.compile(
    r"/(?:site|dist)-packages/(?:ipykernel|IPython|ipyparallel|jupyter_client|tornado|traitlets)/"
    r"|/python3\.\d+/(?:asyncio/|runpy\.py$)|^<frozen "
)
"""They run cells: their lines say nothing of the program."""
_OWN = f"{Path(__file__).parents[1]}/"
"""jaxnb's own frames say nothing: it calls JAX for the user."""


class Frames:
    """The stack frames in which a program's instructions were made.

    Args:
        frames: By number, from 1, the line of each frame and the number of its caller; 0 if it
            has none.
    """

    def __init__(self, frames: Mapping[int, tuple[SourceLine, int]]) -> None:
        self._frames = frames

    def line(self, frame: int, file: str = "", number: int = 0) -> SourceLine | None:
        """Returns the line that an instruction comes from.

        That is the innermost one of a cell; without one, the innermost that is not in an
        installed package; without one, the innermost but those of what runs cells.

        Args:
            frame: The number of its frame.
            file: Its file, where XLA writes that instead.
            number: The line in it.
        """
        stack = [SourceLine(file, number)] if file else list(self._stack(frame))
        chosen = _told([each.file for each in stack])
        return None if chosen is None else stack[chosen]

    def _stack(self, frame: int) -> Iterator[SourceLine]:
        seen: set[int] = set()
        while frame in self._frames and frame not in seen:
            seen.add(frame)
            line, frame = self._frames[frame]
            yield line


def frames_of(module: Message, moved: Mapping[Place, Place] = NOT_MOVED) -> Frames:
    """Returns the frames of a serialized module.

    Args:
        module: The module.
        moved: Where its lines stand now, of ``moved_places``.
    """
    tables = module.message(17)
    files, functions = ["", *tables.texts(1)], ["", *tables.texts(2)]
    places = [SourceLine("", 0)]
    for each in tables.messages(3):
        then = files[each.number(1)], each.number(3), each.number(4)
        file, line, _ = moved.get(then, then)
        places.append(SourceLine(file, line, functions[each.number(2)]))
    rows = enumerate(tables.messages(4), 1)
    return Frames({i: (places[row.number(1)], row.number(2)) for i, row in rows})


def told(stack: Sequence[Place]) -> Place | None:
    """Returns which of the lines of a stack is told, from the innermost, as :meth:`Frames.line`."""
    chosen = _told([file for file, _, _ in stack])
    return None if chosen is None else stack[chosen]


def _told(files: Sequence[str]) -> int | None:
    kept = [k for k, file in enumerate(files) if _is_told(file)]
    for wanted in (lambda f: f.startswith("<cell "),
                   lambda f: not any(part in f for part in _NOT_THEIRS)):  # fmt: skip
        for k in kept:
            if wanted(files[k]):
                return k
    return kept[0] if kept else None


def _is_told(file: str) -> bool:
    return bool(file) and not file.startswith(_OWN) and not _RUN_CELLS.search(file)
