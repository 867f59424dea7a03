"""The history of a session: a line for each cell that was run."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal, overload

from jaxnb.cells.result import CellResult
from jaxnb.errors import UsageError
from jaxnb.labels import one_line
from jaxnb.model.cells import CellOutcome, CellRecord
from jaxnb.model.dispatches import Cause, Trail

MAX_CELLS = 10_000
"""The last so many cells are kept."""

MAX_CHARS = 300
"""Of a line of code, and of what is said of an error."""


_TELLS_LITTLE = re.compile(r"#|import\b|from\b.*\bimport\b")


class CellHistory(Sequence[CellRecord]):
    """What cells a session has run, in order; kept over restarts and recoveries.

    The last 10 000 are kept; ``forgotten`` says how many were before them. A notebook shows it as
    a table, ``print`` as text.

    Attributes:
        forgotten: How many cells are not kept any more.
    """

    def __init__(self, records: Sequence[CellRecord] = (), forgotten: int = 0) -> None:
        self._records = deque(records, maxlen=MAX_CELLS)
        self.forgotten = forgotten

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> CellRecord: ...
    @overload
    def __getitem__(self, index: slice) -> CellHistory: ...
    def __getitem__(self, index: int | slice) -> CellRecord | CellHistory:
        if isinstance(index, slice):
            return CellHistory(list(self._records)[index], self.forgotten)
        return self._records[index]

    def __iter__(self) -> Iterator[CellRecord]:
        return iter(list(self._records))  # a cell in the background may add one meanwhile

    def last(self, count: int) -> CellHistory:
        """Returns the last ``count`` cells; those before them count as forgotten."""
        start = max(0, len(self) - count)
        return CellHistory(list(islice(self, start, None)), self.forgotten + start)

    def note(self, record: CellRecord) -> None:
        """Adds a cell."""
        self.forgotten += len(self._records) == MAX_CELLS
        self._records.append(record)

    def to_jsonl(self, path: str | Path, *, overwrite: bool = False) -> int:
        """Writes one JSON object per line: the fields of :class:`~jaxnb.model.CellRecord`.

        Args:
            path: The file.
            overwrite: Whether a file that exists is replaced.

        Returns:
            How many cells were written.

        Raises:
            UsageError: The file exists; nothing was written.
            OSError: It cannot be written.
        """
        records = list(self)
        text = "".join(json.dumps(asdict(record)) + "\n" for record in records)
        target = Path(path).expanduser()
        try:
            with target.open("w" if overwrite else "x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise UsageError(
                f"{target} exists. Nothing was written. Give another name, or replace it: "
                "`%spmd_history --json FILE --overwrite` (in Python: `overwrite=True`)."
            ) from None
        return len(records)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} cells>"

    def __str__(self) -> str:
        from jaxnb.session import card_history

        return card_history.history_card(list(self), self.forgotten).text

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        from jaxnb.session import card_history

        card = card_history.history_card(list(self), self.forgotten)
        return {"text/plain": card.text, "text/html": card.html}


def record_of(
    result: CellResult,
    *,
    began: datetime,
    trails: Sequence[Mapping[int, tuple[Trail, ...]]] | None,
    outcome: CellOutcome,
    detail: str,
    generation: int,
    starts: int = 1,
    cause: Cause | Literal[""] = "",
) -> CellRecord:
    """Returns what is kept of a cell.

    Args:
        result: What it did.
        began: When it was sent.
        trails: For each of its requests, what each process dispatched to several; None if that
            was not recorded.
        outcome: How it ended.
        detail: What went wrong.
        generation: How often the group had been restarted.
        starts: How often its processes had been started.
        cause: Why its processes diverged, or waited without end.
    """
    results = list(result.per_process.values())
    lines = [line.strip() for line in result.code.strip().splitlines()]
    telling = (line for line in lines if line and not _TELLS_LITTLE.match(line))
    allocated, peaks = _memory(result)
    return CellRecord(
        cell=result.cell,
        began=began.astimezone().isoformat(timespec="milliseconds"),
        code=one_line(next(telling, lines[0]), MAX_CHARS) if lines else "",
        lines=len(lines),
        processes=tuple(result.per_process),
        seconds=result.seconds,
        process_seconds=max((each.seconds for each in results), default=0.0),
        compile_seconds=max((each.compile_seconds for each in results), default=0.0),
        compiles=max((each.compiles for each in results), default=0),
        dispatches=None if trails is None else sum(map(_dispatches, trails)),
        allocated_bytes=allocated,
        peak_bytes=peaks,
        outcome=outcome,
        detail=one_line(detail, MAX_CHARS),
        generation=generation,
        starts=starts,
        cause=cause,
    )


def _dispatches(trails: Mapping[int, tuple[Trail, ...]]) -> int:
    return max((sum(trail.count for trail in mine) for mine in trails.values()), default=0)


def _memory(result: CellResult) -> tuple[dict[int, int], dict[int, int]]:
    allocated: dict[int, int] = {}
    peaks: dict[int, int] = {}
    for process in result.per_process.values():
        for device in process.memory:
            allocated[device.device_id] = device.change_bytes
            if device.peak_bytes is not None and device.peak_of == "device":
                peaks[device.device_id] = device.peak_bytes
    return allocated, peaks
