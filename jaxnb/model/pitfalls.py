"""Pitfalls: what JAX does without a word, and what to type instead."""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxnb.model.scripts import in_notebook


@dataclass(frozen=True)
class Pitfall:
    """One cause, once: where it is, what it does, and what to type instead.

    Attributes:
        kind: What it is, one of ``pitfalls.kinds``; it names a page.
        message: What happens, in a sentence or two.
        advice: What to type instead; it may be empty.
        line: The cell's line, counted as the notebook counts; None if it is in none.
        source: That line's text.
        cause: Equal for what is the same cause; it is said once until a restart.
        processes: The processes that it was seen on.
    """

    kind: str
    message: str
    advice: str = ""
    line: int | None = None
    source: str = ""
    cause: str = field(default="", repr=False)
    processes: tuple[int, ...] = ()

    @property
    def page(self) -> str:
        """What shows the page about it, in a notebook."""
        return f"%spmd_help {self.kind}"

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        shown_by = in_notebook(f"(`{self.page}`)")
        return " ".join(filter(None, [f"{where}{self.message}", self.advice, shown_by]))
