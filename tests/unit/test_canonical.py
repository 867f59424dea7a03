"""Values whose sets were filled in other orders have one pickle; others keep theirs."""

from __future__ import annotations

import pickle
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnb.arrays.process_canonical import MAX_VISITED, TooManyError, in_one_order


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Box:
    content: Any


COLLIDING = [k * 64 for k in range(20)]
"""As integers hash to themselves, these fall into one place of a small table."""


def filled(elements: list[Any]) -> set[Any]:
    found = set()
    for element in elements:
        found.add(element)
    return found


def dumped(value: Any) -> bytes:
    return pickle.dumps(in_one_order(value))


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda s: s,
        frozenset,
        lambda s: {"vocabulary": s},
        lambda s: [1, (s, 2)],
        lambda s: {frozenset(s): 1},
        lambda s: {(frozenset(s), 1), (frozenset(), 2)},
        lambda s: Pair(s, 1),
        lambda s: OrderedDict(a=s),
        lambda s: defaultdict(set, a=s),
    ],
)
def test_the_order_in_which_a_set_was_filled_does_not_count(wrapped: Any) -> None:
    one, other = filled(COLLIDING), filled(COLLIDING[::-1])
    assert pickle.dumps(one) != pickle.dumps(other)
    assert dumped(wrapped(one)) == dumped(wrapped(other))
    other.add(5)
    assert dumped(wrapped(one)) != dumped(wrapped(other))


SETS = st.frozensets(st.integers(0, 300).map(lambda n: n * 64))
ELEMENTS = st.lists(
    st.one_of(
        st.integers(),
        st.text(),
        st.binary(),
        st.tuples(st.integers(), st.text()),
        SETS,
        st.none(),
        st.floats(0.1, 0.9),
    )
)


@given(elements=ELEMENTS, other=ELEMENTS, data=st.data())
def test_any_elements(elements: list[Any], other: list[Any], data: Any) -> None:
    shuffled = data.draw(st.permutations(elements))
    assert dumped(filled(elements)) == dumped(filled(shuffled))
    assert (dumped(set(elements)) == dumped(set(other))) is (set(elements) == set(other))


@pytest.mark.parametrize(
    "value", [[1, 2], {"b": 1, "a": 2}, {1}, set(), "text", Box({1, 2}), [[], {}]]
)
def test_what_has_no_set_of_several_is_itself(value: Any) -> None:
    assert in_one_order(value) is value


def test_dicts_keep_their_order() -> None:
    assert dumped({"b": {1, 2}, "a": 1}) != dumped({"a": 1, "b": {1, 2}})


def test_what_holds_itself_is_left_as_it_is() -> None:
    value: list[Any] = [{1, 2}]
    value.append(value)
    assert in_one_order(value) is value


def test_what_has_many_parts_is_not_sorted() -> None:
    many = list(range(MAX_VISITED + 1))
    assert in_one_order(many) is many
    with pytest.raises(TooManyError):
        in_one_order(set(many))
    with pytest.raises(TooManyError):
        in_one_order([{1, 2}, many])
    assert in_one_order(set(many[:-2])) is not None
