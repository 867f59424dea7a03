"""Pure: a compiled program's text, with metadata, to one line for each operation."""

from __future__ import annotations

import re
from collections.abc import Iterator

from jaxnb.compat.xla_frames import Frames
from jaxnb.model.dispatches import ProgramLine

MAX_LINES = 20_000
"""Of a longer program the first lines are shown to people; all of it is compared."""

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?[\w.$-]+ (?:\(.*\) -> .*)?\{$", re.MULTILINE)
_METADATA = re.compile(r",? ?metadata=\{((?:[^{}\"]|\"(?:[^\"\\]|\\.)*\")*)\}")
_FIELD = re.compile(r"(\w+)=(?:\"((?:[^\"\\]|\\.)*)\"|(\S+))")
_BODY = re.compile(r", \w+=(?:\{)?(?=,|$)")
_INSTRUCTION = re.compile(r"^  (ROOT )?\S+ = ")


def program_lines(text: str, frames: Frames) -> list[ProgramLine]:
    """Returns the operations of a program, in the order of its text, each once.

    Bodies that XLA prints within the operation that calls them stand there by themselves too, so
    they are left out within it. Where nobody knows the source of a constant it is that of what
    comes next.

    Args:
        text: XLA's canonical text of a module, with metadata.
        frames: The module's stack frames.
    """
    first = _COMPUTATION.search(text)
    header = text[: first.start()] if first else text
    found = [ProgramLine(each) for each in _facts(header)]
    for line in _joined(text[len(header) :]):
        if len(found) >= MAX_LINES:
            break
        match = _METADATA.search(line)
        place = None
        if match is not None:
            known = {name: a or b for name, a, b in _FIELD.findall(match[1])}
            place = frames.line(int(known.get("stack_frame_id", 0)))
        source = "" if place is None else f"{place.file}:{place.line}"
        found.append(ProgramLine(_BODY.sub("", _METADATA.sub("", line)), source))
    following = ""
    for i in range(len(found) - 1, -1, -1):
        following = found[i].source or following
        if not found[i].source and " constant(" in found[i].text:
            found[i] = ProgramLine(found[i].text, following)
    return found


def _facts(header: str) -> list[str]:
    """Returns what a module's first line says beside its name: donation, layouts, partitions."""
    facts, depth, start = [], 0, 0
    line = header.partition("\n")[0].partition(", ")[2]
    for place, character in enumerate(f"{line},"):
        depth += (character in "{([") - (character in "})]" and line[place - 1] != "-")
        if character == "," and depth == 0:
            facts.append(line[start:place].strip())
            start = place + 1
    return [fact for fact in facts if fact not in ("", "is_scheduled=true")]


def _joined(text: str) -> Iterator[str]:
    """Yields operations without the bodies within them."""
    current = ""
    for line in text.split("\n"):
        if found := _INSTRUCTION.match(line):
            if current:
                yield current
            current = ("ROOT " if found[1] else "") + line[found.end() :]
        elif line.startswith("  }") and current:
            current += line[3:]
        elif not line.startswith("  ") and current:
            yield current
            current = ""
    if current:
        yield current
