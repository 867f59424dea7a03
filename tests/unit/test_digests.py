"""Which values of processes are equal: digests of arrays, and pickles in one order."""

from __future__ import annotations

import pickle
from collections import defaultdict
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnb.arrays.process_canonical import MAX_VISITED, TooManyError, in_one_order
from jaxnb.arrays.process_replicas import UncheckedResults
from jaxnb.lockstep.process_inputs import MAX_COPY_BYTES, digest
from jaxnb.lockstep.process_recorded import Entry, Known

DTYPES = [
    np.bool_, np.int8, np.uint32, np.float16, np.float64, np.complex64,
    ml_dtypes.bfloat16, ml_dtypes.int4, ml_dtypes.float8_e4m3fn,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (5, 7)], ids=str)
def test_equal_elements_have_equal_digests_and_others_not(dtype: Any, shape: Any) -> None:
    array = np.ones(shape, dtype)
    assert digest(array) == digest(array.copy())
    assert len(digest(array)) == 16
    if array.size:
        other = array.copy()
        other[(-1,) * other.ndim] = dtype(0)
        assert digest(other) != digest(array)


def test_an_array_that_is_not_contiguous_has_the_digest_of_its_copy() -> None:
    whole = np.arange(24 * 10, dtype=np.int16).reshape(24, 10)
    for view in (whole.T, whole[::2], whole[:, 3:5], whole[::-1, ::-3], whole[5]):
        assert digest(view) == digest(np.ascontiguousarray(view))


def test_a_large_one_is_copied_in_pieces() -> None:
    whole = np.arange(3 * MAX_COPY_BYTES // 8 + 3, dtype=np.int64)
    for view in (whole[::2], whole[::2][None], np.stack([whole, whole]).T):
        assert view.nbytes > MAX_COPY_BYTES
        assert digest(view) == digest(np.ascontiguousarray(view))


def test_bits_count_and_not_values() -> None:
    assert digest(np.array([0.0])) != digest(np.array([-0.0]))
    assert digest(np.array([np.nan])) == digest(np.array([np.nan]))


# ---------------------------------------------------------------------- sets have one order


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
        lambda s: {"vocabulary": s},
        lambda s: {frozenset(s): 1},
        lambda s: {(frozenset(s), 1), (frozenset(), 2)},
        lambda s: Pair(s, 1),
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
    st.integers() | st.text() | st.binary() | st.tuples(st.integers(), st.text()) | SETS | st.none()
    | st.floats(0.1, 0.9)
)  # fmt: skip


@given(elements=ELEMENTS, other=ELEMENTS, data=st.data())
def test_any_elements(elements: list[Any], other: list[Any], data: Any) -> None:
    shuffled = data.draw(st.permutations(elements))
    assert dumped(filled(elements)) == dumped(filled(shuffled))
    assert (dumped(set(elements)) == dumped(set(other))) is (set(elements) == set(other))


ITSELF: list[Any] = [{1, 2}]
ITSELF.append(ITSELF)


@pytest.mark.parametrize(
    "value", [[1, 2], {"b": 1, "a": 2}, {1}, set(), "text", Box({1, 2}), [[], {}], ITSELF]
)
def test_what_has_no_set_of_several_is_itself(value: Any) -> None:
    assert in_one_order(value) is value
    assert dumped({"b": {1, 2}, "a": 1}) != dumped({"a": 1, "b": {1, 2}})  # dicts have an order


def test_what_has_many_parts_is_not_sorted() -> None:
    many = list(range(MAX_VISITED + 1))
    assert in_one_order(many) is many
    with pytest.raises(TooManyError):
        in_one_order(set(many))
    with pytest.raises(TooManyError):
        in_one_order([{1, 2}, many])
    assert in_one_order(set(many[:-2])) is not None


# --------------------------------------------------------- results are digested when they are there


class Result:
    """An array that is there when the test says so."""

    def __init__(self, name: str, *, is_there: bool = False) -> None:
        self.name, self.is_there, self.is_given_away = name, is_there, False
        self.sharding = SimpleNamespace(addressable_devices=(0,))

    def is_ready(self) -> bool:
        return self.is_there

    def is_deleted(self) -> bool:
        return self.is_given_away


class Process:
    """Digests of results as one process makes them: names and numbers of dispatches."""

    def __init__(self) -> None:
        self.digested: list[tuple[str, int]] = []
        self.results = UncheckedResults(lambda value: value, self._digest)
        self.number = 0

    def _digest(self, _: int, array: Any, axes: tuple[str, ...], dispatch: Any) -> None:
        self.digested.append((array.name, dispatch[1]))

    def dispatches(self, *results: Result, name: str = "step", axes: tuple[str, ...] = ()) -> None:
        self.number += 1
        known = Known(name, (0, 1), hash(name), axes=axes)
        self.results.made(Entry(self.number, known, 3, 0.0, 0, 0), results)


def test_results_are_digested_after_a_later_dispatch_though_nobody_holds_them_any_more() -> None:
    process = Process()
    first = [Result("w")]
    process.dispatches(*first, axes=("d",))
    process.dispatches(Result("loss"), name="loss")
    assert process.digested == []
    first.pop().is_there = True
    process.dispatches(Result("x"), name="loss")
    process.dispatches(Result("w"), axes=("d",))
    process.results.look()
    assert process.digested == [("w", 1)]  # of the first run only


def test_what_is_not_there_as_the_cell_ends_is_digested_as_the_next_one_begins() -> None:
    process = Process()
    late = Result("w")
    process.dispatches(late, axes=("d",))
    process.results.look()
    assert process.digested == []
    late.is_there = True
    process.results.begin()
    assert process.digested == [("w", 1)]
    process.results.begin()
    assert process.digested == [("w", 1)]


def test_whose_memory_is_given_away_is_followed_whenever_it_was_there() -> None:
    for was_there in (False, True):
        process = Process()
        held = Result("w1", is_there=was_there)
        process.dispatches(held, axes=("d",))
        process.dispatches(Result("loss", is_there=True), name="loss")  # which is not followed
        for turn in range(2, 5):
            given, held = held, Result(f"w{turn}", is_there=True)
            given.is_given_away = True
            process.dispatches(held, axes=("d",))
        process.results.look()
        assert process.digested[-1:] == [("w4", 5)]  # the same one on all processes
        assert process.digested[:-1] == [("w1", 1)] * was_there
