"""What jaxnb takes from other packages that they do not promise to keep: the form of an entry."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce


@dataclass(frozen=True)
class Use:
    """Names of another package, or what it does of itself, that no document of its promises.

    Attributes:
        package: The package, as its users write it.
        names: The names.
        purpose: What jaxnb does with them.
        lost: What is lost where they are gone, in one sentence.
        probe: Tries them on what is installed; returns why they do not work, empty if they do.
            It may raise too.
    """

    package: str
    names: tuple[str, ...]
    purpose: str
    lost: str
    probe: Callable[[], str]

    def problem(self) -> str:
        """Returns why they do not work with what is installed; empty if they do."""
        try:
            return self.probe()
        except Exception as error:
            return f"{type(error).__name__}: {error}"


def table(uses: tuple[Use, ...]) -> str:
    """Returns the uses as a table in Markdown."""
    rows = ["| package | names | for | without them |", "|---|---|---|---|"]
    for use in uses:
        names = ", ".join(f"`{name}`" for name in use.names)
        rows.append(f"| {use.package} | {names} | {use.purpose} | {use.lost} |")
    return "\n".join(rows) + "\n"


def absent(module: str, *names: str) -> str:
    """Returns which of a module's names are missing, dotted ones of its objects too."""
    found = importlib.import_module(module)
    for name in names:
        try:
            reduce(getattr, name.split("."), found)
        except AttributeError:
            return f"{module} has no {name}"
    return ""
