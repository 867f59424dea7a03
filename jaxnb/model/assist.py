"""Help while typing: what a process tells of its names and objects."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Completed:
    """What fits at a place of some code.

    Attributes:
        start: Where in the code the words begin; what is typed from there on is replaced.
        words: The words.
        kinds: What each is: ``"variable"``, ``"attribute"``, ``"path"``, …
        names: The process's variables, whatever was asked for.
    """

    start: int
    words: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inspected:
    """What IPython tells of an object.

    Attributes:
        data: The formats, by MIME type; empty where there is no such object.
    """

    data: dict[str, str] = field(default_factory=dict)
