"""The versions of other packages that jaxnb is tested with."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

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
