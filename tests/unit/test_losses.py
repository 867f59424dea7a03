"""What is said of arrays that were lost, or are of different steps, after a reconnect."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from jaxnb.display._losses import MENDS, loss_text
from jaxnb.labels import paths_label
from jaxnb.model import Recovered, Reformed
from jaxnb.model.origins import Argument, Difference, Made
from jaxnb.model.recovery import UnkeptArray
from jaxnb.outcome import recovered_text
from jaxnb.provenance import arguments_text, names_text, unequal_names_text

BROKEN = "its computation was broken off"
LEAVES = ("loss", "params[0]['b']", "params[0]['w']")


def reformed(index: int, names: Sequence[str] = ()) -> Reformed:
    unkept = tuple(UnkeptArray(name, "float32[2]", BROKEN) for name in names)
    return Reformed(index, 9, 4, (), (), True, 0.1, unkept=unkept)


def step(number: int, cell: int, place: int = 0) -> Argument:
    made = Made(100 * number, "dispatch", "jit(step)", cell, number, 3)
    return Argument(-1, "", made.base + place, made)


def apart(name: str, place: int) -> Difference:
    return Difference(name, (((0, 1, 3), step(1, 10, place)), ((2,), step(22, 4, place))))


APART = [apart(name, i) for i, name in enumerate(LEAVES)]


@pytest.mark.parametrize(
    ("paths", "label"),
    [
        (["x"], "`x`"),
        (["params[0]['b']"], "`params[0]['b']`"),
        (LEAVES, "`loss` and `params` (2 arrays)"),
        (["a", "model.w", "model.b", "c"], "`a`, `model` (2 arrays) and `c`"),
        (["a", "b", "c"], "`a`, `b` and `c`"),
        ([f"v{i}" for i in range(10)], "`v0`, `v1`, `v2`, `v3`, `v4`, `v5`, `v6`, `v7` and 2 more "
         "variables"),
    ],
)  # fmt: skip
def test_arrays_are_named_by_their_variables(paths: Sequence[str], label: str) -> None:
    assert paths_label(paths) == label


def test_what_a_mistake_cost_is_one_paragraph_with_each_thing_once() -> None:
    group = Recovered(tuple(reformed(i, () if i == 2 else LEAVES) for i in range(4)))
    text = recovered_text(group, APART, partial(unequal_names_text, 10))
    assert text == (
        "`loss` and `params` (2 arrays) are lost on processes 0-1,3: their computation was broken "
        "off. Process 2 still has results of jit(step), dispatch 22 of cell [4], line 3. Using one "
        f"raises ArrayGoneError. {MENDS} Other variables were kept: the group was formed anew in "
        "0.10 s; functions are compiled anew when they are called."
    )
    all_lost = Recovered(tuple(reformed(i, LEAVES) for i in range(4)))
    told = recovered_text(all_lost, APART, partial(unequal_names_text, 10))
    assert told.startswith("`loss` and `params` (2 arrays) are lost on all processes: their ")
    assert "still" not in told


def test_names_of_different_steps_that_are_not_lost_are_told_too() -> None:
    group = Recovered((reformed(0, ["loss"]), reformed(1), reformed(2), reformed(3)))
    text = recovered_text(group, APART, partial(unequal_names_text, 10))
    assert text.startswith("`loss` is lost on process 0: its computation was broken off. ")
    assert "Processes 1,3 still have results of jit(step), dispatch 1 of cell [10]" in text
    assert "Cell [10] did not end alike on all processes" in text
    assert text.count("`params` (2 arrays): on processes 0-1,3 results of jit(step)") == 1


def test_where_nothing_is_lost_that_is_said() -> None:
    group = Recovered((reformed(0), reformed(1)))
    assert recovered_text(group) == (
        "the group was formed anew in 0.10 s, and all variables were kept; functions are compiled "
        "anew when they are called."
    )
    assert loss_text(group) == ""


def test_arrays_without_a_name_are_counted() -> None:
    text = loss_text(Recovered((reformed(0, ["", ""]), reformed(1))))
    assert text == (
        "2 arrays that no name leads to (float32[2]) are lost on process 0: their computation was "
        "broken off. Using one raises ArrayGoneError."
    )


def test_names_that_differ_alike_are_told_together() -> None:
    said = (
        "on processes 0-1,3 results of jit(step), dispatch 1 of cell [10], line 3, on process 2 "
        "results of jit(step), dispatch 22 of cell [4], line 3."
    )
    assert names_text(APART) == f"`loss` and `params` (2 arrays): {said}"
    one: Any = names_text(APART[1:2])
    assert one.startswith("`params[0]['b']`: on processes 0-1,3 result 1 of jit(step), dispatch 1 ")


def test_arrays_of_one_line_that_differ_in_shape_are_said_to() -> None:
    """The same words for both sides would tell nobody anything."""
    sides = tuple(
        ((i,), Argument(0, "xs", base, Made(base, "created", "device_put", 3, 1, 4)))
        for i, base in enumerate((71, 72))
    )
    text = "made at line 4 of cell [3] by device_put, with other shapes, dtypes or processes on "
    who = "process 0 / process 1."
    assert names_text([Difference("xs", sides)]) == f"`xs`: {text}{who}"
    assert arguments_text([Difference("argument 1", sides)]) == f"Argument 1: `xs` {text}{who}"
