"""What jaxnb takes from other packages that they do not promise to keep: the form of an entry."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from importlib.metadata import PackageNotFoundError, version


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


TESTED: Mapping[str, str] = {
    "JAX": "0.12.0.1",
    "ipykernel": "7.4.0",
    "IPython": "9.18.1",
    "ipyparallel": "9.2.0",
}
"""The newest of each in ``constraints/``."""


@functools.cache
def installed() -> dict[str, str]:
    """Returns the installed versions of those in :data:`TESTED`; none of one that has no record."""
    found = {}
    for name in TESTED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def newer_than_tested(versions: Mapping[str, str]) -> tuple[str, ...]:
    """Returns a sentence for each package that is newer than the newest that is tested.

    Only what comes before the second dot counts: other releases mend faults, and move no names.
    """
    return tuple(
        f"{name} {versions[name]} is newer than {tested}, the newest that jaxnb is tested with."
        for name, tested in TESTED.items()
        if name in versions and _feature_release(versions[name]) > _feature_release(tested)
    )


def _feature_release(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:2]))
