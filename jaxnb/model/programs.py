"""Programs, as processes show each other what they have compiled."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProgramLine:
    """One operation of a compiled program, or one fact about it.

    Attributes:
        text: As XLA prints it: ``"f32[8]{0} multiply(f32[8]{0} tmp_0, f32[8]{0} tmp_1)"``.
        source: The line of Python that it comes from: ``"<cell 3>:5"``; empty if nobody knows.
    """

    text: str
    source: str = ""


@dataclass(frozen=True)
class ProgramDifference:
    """What differs between two programs that processes dispatched in place of one another.

    Attributes:
        processes: Who dispatched the first, and who the second.
        lines: A short diff, as ``diff -u`` writes it: lines of the first program begin with
            ``"-"``, of the second with ``"+"``, of both with a space.
        left_out: How many lines more differ.
        summary: The first difference, as a sentence.
    """

    processes: tuple[tuple[int, ...], tuple[int, ...]]
    lines: tuple[str, ...]
    left_out: int
    summary: str
