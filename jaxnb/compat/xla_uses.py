"""What becomes of an instruction's result in a compiled program of XLA."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from typing import NamedTuple

from jaxnb.compat.protobuf import Message

SAME = frozenset({"bitcast", "copy", "convert", "reshape", "transpose", "all-reduce-done"})
"""Opcodes whose result has the elements of their operand."""

INSIDE = frozenset({"fusion", "call"})
"""Opcodes whose operands are the parameters of the computation that they run."""


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
    """

    def __init__(self, computations: Mapping[int, Message]) -> None:
        self._computations = computations
        self._known = cache(self._read)
        self._takers = cache(self._read_takers)

    def _read(self, number: int) -> dict[int, Message]:
        return {each.number(35): each for each in self._computations[number].messages(2)}

    def _read_takers(self, number: int) -> dict[int, list[tuple[Message, int]]]:
        """Returns by an instruction's number who takes its result, and as which operand."""
        found: dict[int, list[tuple[Message, int]]] = defaultdict(list)
        for each in self._known(number).values():
            for operand, of in enumerate(each.numbers(36)):
                found[of].append((each, operand))
        return found

    def part_of_each(self, computation: int, instruction: Message) -> tuple[int, ...]:
        """Returns how many elements of a result each device takes for itself, by its number.

        Args:
            computation: The number of the instruction's computation.
            instruction: It; it results in an array or in a tuple of arrays.

        Returns:
            For each array; 0 where a device takes all, or what does not depend on its number.
        """
        within, number = Within(computation), instruction.number(35)
        if instruction.message(3).number(2) != _TUPLE:
            return (self._taken(number, within),)
        places = range(len(list(instruction.message(3).messages(4))))
        found: dict[int, list[int]] = {i: [] for i in places}
        for use in self._uses(number, within):
            if use.by.text(2) != "get-tuple-element":
                return (0,) * len(places)
            found[use.by.number(13)].append(self._taken(use.by.number(35), within))
        return tuple(max(each) if each and all(each) else 0 for each in found.values())

    def _taken(self, number: int, within: Within) -> int:
        most = 0
        if self._computations[within.number].number(6) == number:
            # It is what the computation results in, and a fusion with it.
            if within.caller is None or within.outer is None:
                return 0
            most = self._taken(within.caller.number(35), within.outer)
            if not most:
                return 0
        for use in self._uses(number, within):
            opcode = use.by.text(2)
            if opcode == "dynamic-slice" and use.operand == 0:
                starts = use.by.numbers(36)[1:]
                is_own = any(self._is_by_device(start, use.within) for start in starts)
                taken = math.prod(use.by.message(3).numbers(3)) if is_own else 0
            elif opcode in SAME:
                taken = self._taken(use.by.number(35), use.within)
            elif opcode in INSIDE:
                inner = Within(use.by.numbers(38)[0], use.by, use.within)
                taken = self._taken(self._parameter(inner.number, use.operand), inner)
            else:
                taken = 0
            if not taken:
                return 0
            most = max(most, taken)
        return most

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

    def _is_by_device(self, number: int, within: Within) -> bool:
        """Whether a value depends on which device computes it."""
        waiting, seen = [(number, within)], set[tuple[int, int]]()
        while waiting:
            number, within = waiting.pop()
            if (number, within.number) in seen:
                continue
            seen.add((number, within.number))
            each = self._known(within.number)[number]
            opcode = each.text(2)
            if opcode in ("partition-id", "replica-id"):
                return True
            if opcode == "get-tuple-element" and (before := self._before_loop(each, within)):
                waiting.append(before)
                continue
            if opcode == "parameter" and within.caller is not None and within.outer is not None:
                waiting.append((within.caller.numbers(36)[each.number(9)], within.outer))
            if opcode in INSIDE:
                inner = each.numbers(38)[0]
                root = self._computations[inner].number(6)
                waiting.append((root, Within(inner, each, within)))
            else:
                waiting += [(operand, within) for operand in each.numbers(36)]
        return False

    def _before_loop(self, element: Message, within: Within) -> tuple[int, Within] | None:
        """Returns what an element of a loop's state was before the loop; XLA moves much there."""
        of = self._known(within.number)[element.numbers(36)[0]]
        if of.text(2) != "parameter" or within.number not in self._loops:
            return None
        loop, outside = self._loops[within.number]
        state = self._known(outside)[loop.numbers(36)[0]]
        if state.text(2) != "tuple":
            return None
        return state.numbers(36)[element.number(13)], Within(outside)

    @cached_property
    def _loops(self) -> dict[int, tuple[Message, int]]:
        """By the number of its body, a loop and the number of its computation."""
        return {
            each.numbers(38)[0]: (each, number)
            for number in self._computations
            for each in self._known(number).values()
            if each.text(2) == "while"
        }


_TUPLE = 13
"""The number of XLA's type of tuples."""
