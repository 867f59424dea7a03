"""What becomes of an instruction's result in a compiled program of XLA."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from jaxnb.compat.protobuf import Message

SAME = frozenset({"bitcast", "copy", "convert", "reshape", "transpose", "all-reduce-done"})
"""Opcodes whose result has the elements of their operand."""

INSIDE = frozenset({"fusion", "call"})
"""Opcodes whose operands are the parameters of the computation that they run."""

_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": lambda a, b: a // np.where(b, b, 1),
    "remainder": lambda a, b: a % np.where(b, b, 1),
    "minimum": np.minimum,
    "maximum": np.maximum,
    "clamp": lambda least, value, most: np.clip(value, least, most),
    "and": np.bitwise_and,
    "select": np.where,
}
"""What indices are computed by, of numbers that are not negative."""

_COMPARED = {"LT": np.less, "GT": np.greater, "LE": np.less_equal, "GE": np.greater_equal,
             "EQ": np.equal, "NE": np.not_equal}  # fmt: skip

_TUPLE = 13
"""The number of XLA's type of tuples."""

Numbers = np.ndarray[Any, Any]
"""A number for each partition: one for each device."""


class Taken(NamedTuple):
    """What devices take of an array for themselves.

    Attributes:
        elements: How many each takes.
        parts: By partition which part that is, if the array is cut into parts of that size.
    """

    elements: int
    parts: tuple[tuple[int, ...], ...]


class Use(NamedTuple):
    """An instruction that takes a value, as which of its operands, and who runs it."""

    by: Message
    operand: int
    within: Within


class Within(NamedTuple):
    """A computation as it is run: by an instruction of another one, or as the first."""

    number: int
    caller: Message | None = None
    outer: Within | None = None


class Uses:
    """Follows values from the instruction that makes them to those that take them.

    Args:
        computations: Those of a module, by number.
        partitions: How many devices run it.
    """

    def __init__(self, computations: Mapping[int, Message], partitions: int) -> None:
        self._computations, self._partitions = computations, partitions
        self._known = cache(self._read)
        self._takers = cache(self._read_takers)
        self._value = cache(self._read_value)

    def _read(self, number: int) -> dict[int, Message]:
        return {each.number(35): each for each in self._computations[number].messages(2)}

    def _read_takers(self, number: int) -> dict[int, list[tuple[Message, int]]]:
        """Returns by an instruction's number who takes its result, and as which operand."""
        found: dict[int, list[tuple[Message, int]]] = defaultdict(list)
        for each in self._known(number).values():
            for operand, of in enumerate(each.numbers(36)):
                found[of].append((each, operand))
        return found

    def taken(self, computation: int, instruction: Message) -> tuple[Taken | None, ...]:
        """Returns what each device takes for itself of an instruction's result.

        Args:
            computation: The number of the instruction's computation.
            instruction: It; it results in an array or in a tuple of arrays.

        Returns:
            For each array; None where a device takes more than one part, or takes it otherwise
            than by a slice whose place is computed of its number.
        """
        within, number = Within(computation), instruction.number(35)
        if instruction.message(3).number(2) != _TUPLE:
            return (self._taken(number, within),)
        places = range(len(list(instruction.message(3).messages(4))))
        found: dict[int, set[Taken | None]] = {i: set() for i in places}
        for use in self._uses(number, within):
            if use.by.text(2) != "get-tuple-element":
                return (None,) * len(places)
            found[use.by.number(13)].add(self._taken(use.by.number(35), within))
        return tuple(each.pop() if len(each) == 1 else None for each in found.values())

    def _taken(self, number: int, within: Within) -> Taken | None:
        found: set[Taken | None] = set()
        if self._computations[within.number].number(6) == number:
            # It is what the computation results in, and a fusion with it.
            if within.caller is None or within.outer is None:
                return None
            found.add(self._taken(within.caller.number(35), within.outer))
        for use in self._uses(number, within):
            opcode = use.by.text(2)
            if opcode == "dynamic-slice" and use.operand == 0:
                found.add(self._slice(use))
            elif opcode in SAME:
                found.add(self._taken(use.by.number(35), use.within))
            elif opcode in INSIDE:
                inner = Within(use.by.numbers(38)[0], use.by, use.within)
                found.add(self._taken(self._parameter(inner.number, use.operand), inner))
            else:
                return None
        return found.pop() if len(found) == 1 else None

    def _slice(self, use: Use) -> Taken | None:
        sizes = np.array(use.by.message(3).numbers(3))
        starts = [self._value(each, use.within) for each in use.by.numbers(36)[1:]]
        if any(each is None for each in starts):
            return None
        places = np.stack([np.asarray(each) for each in starts], axis=1)
        if (places % sizes).any():
            return None
        parts = tuple(tuple(map(int, each)) for each in places // sizes)
        return Taken(math.prod(map(int, sizes)), parts)

    def _uses(self, number: int, within: Within) -> Iterator[Use]:
        for each, operand in self._takers(within.number).get(number, ()):
            yield Use(each, operand, within)

    def _parameter(self, computation: int, operand: int) -> int:
        known = self._known(computation).items()
        return next(
            number
            for number, each in known
            if each.text(2) == "parameter" and each.number(9) == operand
        )

    def _read_value(self, number: int, within: Within) -> Numbers | None:
        """Returns a whole number as each partition has it; None if it is not known."""
        each = self._known(within.number)[number]
        opcode, operands = each.text(2), each.numbers(36)
        if opcode == "partition-id":
            return np.arange(self._partitions)
        if opcode == "constant":
            found = _literal(each)
            return np.full(self._partitions, found[0]) if len(found) == 1 else None
        if opcode == "get-tuple-element":
            before = self._before_loop(each, within)
            return self._value(*before) if before else None
        if opcode == "parameter":
            if within.caller is None or within.outer is None:
                return None
            return self._value(within.caller.numbers(36)[each.number(9)], within.outer)
        if opcode in INSIDE:
            inner = each.numbers(38)[0]
            return self._value(self._computations[inner].number(6), Within(inner, each, within))
        if opcode in SAME or opcode == "broadcast":
            return self._value(operands[0], within)
        if opcode == "dynamic-slice" and len(operands) == 2:  # of a table
            table, at = self._table(operands[0], within), self._value(operands[1], within)
            known = len(table) and at is not None
            return table[np.clip(at, 0, len(table) - 1)] if known else None
        compute = _ARITHMETIC.get(opcode) or _COMPARED.get(each.text(63))
        values = [self._value(operand, within) for operand in operands] if compute else [None]
        return None if any(v is None for v in values) or not compute else compute(*values)

    def _table(self, number: int, within: Within) -> Numbers:
        """Returns the numbers of a constant; none if it is something else."""
        each = self._known(within.number)[number]
        if each.text(2) == "parameter" and within.caller is not None and within.outer is not None:
            return self._table(within.caller.numbers(36)[each.number(9)], within.outer)
        return _literal(each) if each.text(2) == "constant" else np.array([], np.int64)

    def _before_loop(self, element: Message, within: Within) -> tuple[int, Within] | None:
        """Returns what an element of a loop's state was before the loop, if that leaves it so."""
        known = self._known(within.number)
        of = known[element.numbers(36)[0]]
        if of.text(2) != "parameter" or within.number not in self._loops:
            return None
        loop, outside = self._loops[within.number]
        state = self._known(outside)[loop.numbers(36)[0]]
        place, root = element.number(13), known[self._computations[within.number].number(6)]
        if state.text(2) != "tuple" or root.text(2) != "tuple":
            return None
        after = known[root.numbers(36)[place]]
        is_left = after.text(2) == "get-tuple-element" and after.number(13) == place
        if not is_left or after.numbers(36)[0] != of.number(35):
            return None
        return state.numbers(36)[place], Within(outside)

    @cached_property
    def _loops(self) -> dict[int, tuple[Message, int]]:
        """By the number of its body, a loop and the number of its computation."""
        return {
            each.numbers(38)[0]: (each, number)
            for number in self._computations
            for each in self._known(number).values()
            if each.text(2) == "while"
        }


def _literal(constant: Message) -> Numbers:
    """Returns the whole numbers of a constant; none if it has others."""
    literal = constant.message(8)
    for field in (4, 5, 6, 7):  # of 32 and 64 bits, with and without a sign
        if numbers := literal.numbers(field):
            return np.array(numbers)
    return np.array([], np.int64)
