"""What is said of output that was too much to keep."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from jaxnb.labels import plural, processes_label

if TYPE_CHECKING:
    from jaxnb.wire.messages import Dropped


def flood_text(event: Dropped) -> str:
    """Returns the sentence on a process that has begun to write more than a cell keeps."""
    return (
        f"process {event.process_index} has written more to {_stream_text(event)}. What follows "
        "is counted, and only its end is kept."
    )


def dropped_texts(events: Collection[Dropped]) -> list[str]:
    """Returns the sentences on what processes wrote and no result holds."""
    texts = []
    for name in ("stdout", "stderr"):
        found = [event for event in events if event.name == name and event.characters]
        if found:
            lines, chars = (sum(e.lines for e in found), sum(e.characters for e in found))
            texts.append(
                f"{processes_label(e.process_index for e in found)} wrote {plural(lines, 'line')} "
                f"({plural(chars, 'character')}) more to {_stream_text(found[0])}. They are in no "
                "result; what is written to a file is not limited."
            )
    return texts


def _stream_text(event: Dropped) -> str:
    stream = {"stdout": "standard output", "stderr": "standard error"}[event.name]
    most = f"{plural(event.most_lines, 'line')} or {plural(event.most_characters, 'character')}"
    return f"{stream} than a cell keeps ({most} of each process)"
