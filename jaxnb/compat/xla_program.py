"""A compiled program as plain data: computations, and of each what matters here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

COLLECTIVES = frozenset(
    {
        "all-reduce",
        "all-gather",
        "reduce-scatter",
        "all-to-all",
        "ragged-all-to-all",
        "collective-permute",
        "collective-broadcast",
    }
)

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?(?P<name>[\w.$-]+) (?:\(.*\) -> .*)?\{$", re.MULTILINE)

CALLERS = frozenset({"call", "while", "conditional", "fusion", "custom-call", "async-start"})
"""Opcodes that run other computations in which there may be collectives. What is left out calls
one for every element (reduce, sort …), where XLA allows none."""


@dataclass(frozen=True, slots=True)
class Line:
    """One instruction that is a collective, or calls computations.

    Attributes:
        opcode: As XLA's parser says, in the words of its text: ``"all-gather-start"``.
        text: What the instruction prints as. Of what an ``async-start`` wraps: the wrapped one.
        wrapped: It was wrapped in an ``async-start``.
    """

    opcode: str
    text: str
    wrapped: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    """What XLA has compiled.

    Attributes:
        name: Its name.
        entry: The name of the computation that is run first.
        computations: By name, what of them matters.
        header: What its text has before the first computation: the tables of source lines.
    """

    name: str
    entry: str
    computations: dict[str, list[Line]]
    header: str = field(default="", repr=False)

    @property
    def replicas(self) -> int:
        """How many replicas it is compiled for; JAX asks for one."""
        return self._number("replica_count")

    @property
    def partitions(self) -> int:
        """How many parts each replica has: with JAX, one per device."""
        return self._number("num_partitions")

    def _number(self, key: str) -> int:
        found = re.search(rf"\b{key}=(\d+)", self.header.partition("\n")[0])
        return int(found[1]) if found else 1


def kind_of(opcode: str) -> str | None:
    """Returns which collective an opcode is, or begins; None for what is none, or ends one."""
    base = opcode.removesuffix("-start")
    return base if base in COLLECTIVES else None


def matters(opcode: str) -> bool:
    """Whether an instruction is a collective, or calls computations."""
    return opcode in CALLERS or kind_of(opcode) is not None


def header_and_entry(text: str) -> tuple[str, str]:
    """Returns what a program's text has before its first computation, and its entry's name."""
    entry = re.search(r"^ENTRY %?([\w.$-]+)", text, re.MULTILINE)
    first = _COMPUTATION.search(text)
    return text[: first.start()] if first else text, entry[1] if entry else ""


def from_text(text: str) -> Program:
    """Reads a program's text, where XLA's own parser is out of reach.

    An instruction is a line. An async pair of any kind prints what it wraps as if it were an
    opcode of its own: ``reduce-scatter-start``.
    """
    header, entry = header_and_entry(text)
    computations: dict[str, list[Line]] = {}
    current: list[Line] = []
    for line in text[len(header) :].splitlines():
        if found := _COMPUTATION.match(line):
            current = computations.setdefault(found["name"], [])
        elif " = " in line and (opcode := _opcode(line)) and matters(opcode):
            current.append(Line(opcode, line.strip()))
    name = re.match(r"HloModule ([\w.$-]+)", header)
    return Program(name[1] if name else "", entry, computations, header)


def _opcode(line: str) -> str:
    """Returns an instruction's opcode: the first word before a bracket that no `=` precedes."""
    right = re.sub(r"/\*.*?\*/", "", line.partition(" = ")[2])
    depth = 0
    for place, character in enumerate(right):
        if character in "([{":
            before = right[:place].rpartition(" ")[2]
            if depth == 0 and character == "(" and re.fullmatch(r"[a-z][a-z0-9-]*", before):
                return before
            depth += 1
        elif character in ")]}":
            depth -= 1
    return ""


@dataclass(frozen=True, slots=True)
class Times:
    """How often something is run.

    Attributes:
        count: How often; None if it is not known.
        at_most: It is an upper bound.
    """

    count: int | None
    at_most: bool = False

    def times(self, factor: int | None) -> Times:
        """Returns this, so many times."""
        known = self.count is not None and factor is not None
        return Times(self.count * factor if known else None, self.at_most)  # type: ignore[operator]

    def plus(self, other: Times) -> Times:
        """Returns this and another, one after the other."""
        known = self.count is not None and other.count is not None
        total = self.count + other.count if known else None  # type: ignore[operator]
        return Times(total, self.at_most or other.at_most)


Calls = Callable[[Line], Iterator[tuple[str, Times]]]
"""Tells which computations a line calls, and how often each time."""


def executions(program: Program, calls: Calls) -> dict[str, Times]:
    """Returns how often each computation is run that the entry reaches."""
    found: dict[str, Times] = {}

    def visit(name: str, times: Times) -> None:
        found[name] = found[name].plus(times) if name in found else times
        for line in program.computations.get(name, ()):
            for called, each in calls(line):
                visit(called, Times(times.times(each.count).count, times.at_most or each.at_most))

    visit(program.entry, Times(1))
    return found
