"""Pitfalls: what JAX does without a word, and what to type instead."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

PitfallKind = Literal[
    "jit-of-pmap",
    "device-put",
    "fetch",
    "constant",
    "replicated",
    "recompiled",
    "device-order",
    "explicit-axes",
    "settings",
    "unchecked",
]
"""Each has a page in the documentation, ``docs/pitfalls/<kind>.md``."""

_PAGES = "https://jaxnb.readthedocs.io/en/latest/pitfalls"

PITFALL_KINDS: tuple[PitfallKind, ...] = get_args(PitfallKind)


@dataclass(frozen=True)
class Pitfall:
    """One cause, once: where it is, what it does, and what to type instead.

    Attributes:
        kind: What it is; ``"unchecked"`` says that jaxnb could not look for another kind.
        message: What happens, in a sentence or two.
        advice: What to type instead; it may be empty.
        line: The cell's line, counted as the notebook counts; None if it is in none.
        source: That line's text.
        cause: Equal for what is the same cause; it is said once until a restart.
        processes: The processes that it was seen on.
    """

    kind: PitfallKind
    message: str
    advice: str = ""
    line: int | None = None
    source: str = ""
    cause: str = field(default="", repr=False)
    processes: tuple[int, ...] = ()

    @property
    def page(self) -> str:
        """The address of the documentation's page about it."""
        return f"{_PAGES}/{self.kind}.html"

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        return " ".join(filter(None, [f"{where}{self.message}", self.advice, f"({self.page})"]))
