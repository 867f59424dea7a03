"""Pitfalls and first NaNs that processes saw, each as one list, and which have been reported."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxnb.labels import processes_label
from jaxnb.model.insight import NanFound, NanPlace, Pitfall
from jaxnb.model.scripts import cell_label, the_cell


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


_PRINTED = re.compile(r"\bArray\(shape=\([\d, ]+\), dtype=\w+\)")


def of_printed(text: str) -> tuple[Pitfall, ...]:
    """Returns what is said of printed arrays that are spread over processes; nothing of others."""
    # A search for the pattern alone takes 17 ns a character, of floods too.
    if "Array(shape=(" not in text or not _PRINTED.search(text):
        return ()
    message = (
        "Of an array that is spread over processes, Python prints the shape and the dtype only: no "
        "process holds it whole. One that was deleted (donated to a computation) looks the same."
    )
    return (Pitfall("fetch", message, "`%spmd_pull x`, or x alone as the last line, shows it."),)


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
        unsaid = tuple(
            p for p in pitfalls if p.is_of_error or (p.kind, p.cause) not in self._causes
        )
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


@dataclass(frozen=True, slots=True)
class FirstNan:
    """Where NaN or Inf appeared first in a cell.

    Attributes:
        cell: The cell's number.
        found: What the processes saw that saw it first, by process index: at the same dispatch, or
            each in a computation of its own.
        later: What others saw, in later computations.
    """

    cell: int
    found: Mapping[int, NanFound]
    later: Mapping[int, NanFound]

    @property
    def processes(self) -> tuple[int, ...]:
        """The processes that saw it first."""
        return tuple(self.found)

    @property
    def line(self) -> int | None:
        """The cell's line; None outside of its code."""
        return next(iter(self.found.values())).line

    def __str__(self) -> str:
        return describe_nan(self)


def first_of(cell: int, seen: Iterable[NanFound]) -> FirstNan | None:
    """Returns where the first NaN appeared; None if no process saw one.

    Computations over several processes come in the order of their dispatches. Those of a process
    alone come after the dispatch before them; between two of those, of different processes, nothing
    says which was first: both are told.
    """
    ordered = sorted(seen, key=lambda each: (_when(each), each.process_index))
    if not ordered:
        return None
    first = _when(ordered[0])
    found = {each.process_index: each for each in ordered if _when(each) == first}
    later = {each.process_index: each for each in ordered if _when(each) != first}
    return FirstNan(cell, found, later)


def _when(found: NanFound) -> tuple[int, bool]:
    return found.after, len(found.processes) > 1


def describe_nan(first: FirstNan) -> str:
    """Returns where it appeared, on which processes, and whether it came from before."""
    computations: dict[str, dict[object, list[NanFound]]] = {}
    for found in first.found.values():
        sides = computations.setdefault(_computation(found), {})
        which = [(e.name or e.place, e.type) for e in (*found.outputs, *found.inputs)]
        sides.setdefault((*which, len(found.inputs)), []).append(found)
    parts = [
        f"{computation}: {'; '.join(map(_arrays, sides.values()))}"
        for computation, sides in computations.items()
    ]
    what = sorted({place.what for found in first.found.values() for place in found.outputs})
    origin = (
        "It was in an argument already: it came from host data or from an earlier cell."
        if any(found.inputs for found in first.found.values())
        else "No argument had one: that computation made it."
    )
    later = f" Later also on {processes_label(first.later)}." if first.later else ""
    where = ". And of ".join(parts)
    return (
        f"The first {' or '.join(what)} of {cell_label(first.cell)} came out of {where}. "
        f"{origin}{later} By itself it does not stop {the_cell()}."
    )


_COPYING = {
    "jit(_device_put_reshard)": "`jax.device_put`",
    "jit(_identity_fn)": "`jax.device_put` or a gather",
}
"""What the user has called, for computations of JAX's own."""


def _computation(found: NanFound) -> str:
    called = _COPYING.get(found.name)
    name = f"{called}, {found.name}," if called else found.name
    line = f" at line {found.line}" if found.line is not None else ""
    if len(found.processes) < 2:
        return f"{name}{line} (of {processes_label(found.processes)} alone)"
    number = f"dispatch {found.number} " if found.number else ""
    return f"{name}{line} ({number}over {processes_label(found.processes)})"


def _arrays(those: Sequence[NanFound]) -> str:
    """Returns the arrays that some processes saw it in, and the processes."""
    text = _places("output", [each.outputs for each in those])
    if those[0].inputs:
        text += f", from {_places('argument', [each.inputs for each in those])}"
    return f"{text} on {processes_label([each.process_index for each in those])}"


def _places(kind: str, places: Iterable[Sequence[NanPlace]]) -> str:
    return " and ".join(_place(kind, each) for each in zip(*places, strict=True))


def _place(kind: str, of_each: Sequence[NanPlace]) -> str:
    place = min(of_each, key=lambda each: each.index)
    name = f"`{place.name}`" if place.name else f"{kind} {place.place + 1}"
    at = f" at [{', '.join(map(str, place.index))}]" if place.index else ""
    if len({(each.index, each.count) for each in of_each}) > 1:
        return f"{name} {place.type} first{at}"
    more = f" and {place.count - 1} more" if place.index and place.count > 1 else ""
    return f"{name} {place.type}{at}{more}"
