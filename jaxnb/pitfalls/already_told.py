"""Pure: the processes' pitfalls as one list, and which of them have been said before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from jaxnb.labels import processes_label
from jaxnb.model.insight import Pitfall
from jaxnb.options import one_of

_INSTALLED = Path(__file__).parent / "pages"
_CHECKOUT = Path(__file__).parents[2] / "docs" / "pitfalls"

PITFALL_KINDS = (
    "jit-of-pmap",
    "device-put",
    "fetch",
    "constant",
    "recompiled",
    "explicit-axes",
    "eager-shard-map",
    "unbound-axis",
    "unequal-data",
    "other-devices",
    "settings",
    "unchecked",  # jaxnb could not look for another kind
)


def page(name: str) -> str:
    """Returns the text of a page; without a name, of the one that lists them.

    Raises:
        UsageError: There is none of that name.
    """
    place = _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT
    files = {each.stem: each for each in place.glob("*.md")}
    known = tuple(sorted(files.keys() - {"index"}))
    if not name:
        listed = (f"- `%spmd_help {each}`" for each in known)
        return "\n".join(["What JAX does without a word, a page each:", "", *listed])
    return files[one_of("page", name, known, "Nothing was shown.")].read_text()


def merged(by_process: Mapping[int, Iterable[Pitfall]]) -> tuple[Pitfall, ...]:
    """Returns what processes saw, the same cause once, with who saw it; by line.

    Args:
        by_process: Process index to what it saw in a cell.
    """
    found: dict[tuple[str, str], Pitfall] = {}
    for index, pitfalls in sorted(by_process.items()):
        for each in pitfalls:
            key = (each.kind, each.cause)
            # Numbers of a process's own are those of the first that saw it.
            known = found.setdefault(key, replace(each, processes=()))
            if index not in known.processes:
                found[key] = replace(known, processes=(*known.processes, index))
    return tuple(sorted(found.values(), key=lambda each: (each.line or 0, each.kind)))


class Said:
    """What a session has said of pitfalls since the last restart.

    After a recovery the same code runs: nothing of it is said
    again.
    """

    def __init__(self) -> None:
        self._generation = 0
        self._causes: set[tuple[str, str]] = set()

    def new(self, pitfalls: Iterable[Pitfall], generation: int) -> tuple[Pitfall, ...]:
        """Returns those that have not been said, and takes them as said.

        Args:
            pitfalls: What was seen in a cell.
            generation: How often the group has been restarted.
        """
        if generation != self._generation:
            self._generation = generation
            self._causes.clear()
        unsaid = tuple(p for p in pitfalls if (p.kind, p.cause) not in self._causes)
        self._causes.update((p.kind, p.cause) for p in unsaid)
        return unsaid

    def forget_mended(self, kind: str, lasting: Iterable[Pitfall]) -> None:
        """Has what has ended said again when it comes back.

        Args:
            kind: A kind that lasts until somebody mends it.
            lasting: Those of it that there are now.
        """
        now = {p.cause for p in lasting}
        self._causes -= {c for c in self._causes if c[0] == kind and c[1] not in now}


def describe(pitfalls: Iterable[Pitfall], num_processes: int) -> str:
    """Returns pitfalls as sentences, a line each; whose they are, unless all processes'."""
    return "\n".join(
        f"{who(each, num_processes)}: {each}" if who(each, num_processes) else str(each)
        for each in pitfalls
    )


def who(pitfall: Pitfall, num_processes: int) -> str:
    """Returns ``"process 2"``; empty if all processes saw it."""
    seen_by = pitfall.processes
    return processes_label(seen_by) if 0 < len(seen_by) < num_processes else ""
