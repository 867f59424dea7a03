"""Indexing an array that is not here takes what NumPy would take."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jaxnb.arrays.regions import NotBasicIndexError, Region, as_slice

SHAPES = hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=5)


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(int(np.prod(shape, dtype=int))).reshape(shape)


def index_of(text: str) -> Any:
    """The index that a text like ``[0:4, ::2]`` spells."""
    return eval(f"np.s_{text}", {"np": np})


def taken_by(region: Region, base: np.ndarray) -> np.ndarray:
    """The elements at a region's ranges, picked one by one."""
    places = np.ix_(*(np.array(positions, dtype=int) for positions in region.ranges))
    return np.asarray(base[places])


def draw_chain(data: st.DataObject, base: np.ndarray) -> tuple[Region, np.ndarray]:
    """Indexes a region and the array a few times alike."""
    region, array = Region.whole(base.shape), base
    for _ in range(data.draw(st.integers(1, 3), label="indexings")):
        # basic_indices takes dimensions without elements only whole.
        sliced = tuple(st.slices(max(size, 1)) for size in array.shape)
        indices = hnp.basic_indices(array.shape)
        index = data.draw(indices | st.tuples(*sliced), label="index")
        region, array = region[index], array[index][...]
    return region, array


@given(st.data(), SHAPES)
def test_a_chain_of_indices_takes_what_numpy_takes(data: st.DataObject, shape: tuple[int, ...]):
    base = numbered(shape)
    region, expected = draw_chain(data, base)
    assert region.shape == shape
    assert region.result_shape == expected.shape
    taken = taken_by(region, base)
    assert region.taken_shape == taken.shape
    np.testing.assert_array_equal(region.finish(taken), expected, strict=True)


@given(st.data(), SHAPES)
def test_the_text_is_an_index_that_takes_the_same(data: st.DataObject, shape: tuple[int, ...]):
    base = numbered(shape)
    region, expected = draw_chain(data, base)
    text = str(region)
    assert region.is_whole == (text == "")
    again, array = Region.whole(shape), base
    for index in re.findall(r"\[.*?\]", text):
        again, array = again[index_of(index)], array[index_of(index)]
    assert again == region
    np.testing.assert_array_equal(array, expected, strict=True)


@given(st.data(), SHAPES, st.lists(st.integers(0, 3), max_size=2))
def test_words_are_not_indexed(data: st.DataObject, shape: tuple[int, ...], words: list[int]):
    base = numbered((*shape, *words))
    region, _ = draw_chain(data, numbered(shape))
    taken = np.empty(region.taken_shape + tuple(words), int)
    for place in np.ndindex(region.taken_shape):
        taken[place] = base[tuple(r[k] for r, k in zip(region.ranges, place, strict=True))]
    finished = region.finish(taken, len(words))
    assert finished.shape == region.result_shape + tuple(words)
    for word in np.ndindex(*words):
        part = base[(..., *word)]
        expected = region.finish(taken_by(region, part))
        np.testing.assert_array_equal(finished[(..., *word)], expected, strict=True)


@given(st.data(), SHAPES)
def test_finish_gives_a_view(data: st.DataObject, shape: tuple[int, ...]):
    base = numbered(shape)
    region, expected = draw_chain(data, base)
    taken = taken_by(region, base)
    finished = region.finish(taken)
    assert isinstance(finished, np.ndarray)
    assert np.shares_memory(finished, taken) == (expected.size > 0)


def test_finish_refuses_another_shape():
    with pytest.raises(ValueError, match=r"expected shape \(2,\), got \(3,\)"):
        Region.whole((3,))[:2].finish(np.zeros(3))
    with pytest.raises(ValueError, match="expected shape"):
        Region.whole((3,)).finish(np.zeros(3), word_ndim=1)


@given(st.integers(1, 9), st.data())
def test_as_slice_takes_the_positions(size: int, data: st.DataObject):
    positions = range(size)[data.draw(st.slices(size))][data.draw(st.slices(size))]
    assert range(size)[as_slice(positions)] == positions


@pytest.mark.parametrize(
    ("shape", "index", "text"),
    [
        ((8,), np.s_[0:4], "[0:4]"),
        ((8, 8, 8), np.s_[:4, ::2, 3], "[0:4, ::2, 3]"),
        ((8, 8), np.s_[:, -1], "[:, 7]"),
        ((8, 8), np.s_[-1], "[7]"),
        ((8, 8), np.s_[2:, ...], "[2:8]"),
        ((8,), np.s_[1:6:2], "[1:6:2]"),
        ((8,), np.s_[::-1], "[::-1]"),
        ((8,), np.s_[6:1:-2], "[6:1:-2]"),
        ((8,), np.s_[5:5], "[0:0]"),
        ((8,), np.s_[:], ""),
        ((), np.s_[...], ""),
        ((1,), np.s_[::-1], ""),
    ],
)
def test_texts(shape: tuple[int, ...], index: Any, text: str):
    region = Region.whole(shape)[index]
    assert str(region) == text
    assert region.is_whole == (not text)


class Two:
    def __index__(self) -> int:
        return 2


@pytest.mark.parametrize("two", [2, np.int8(2), np.uint64(2), Two()])
def test_integers_of_every_type_are_indices(two: Any):
    assert Region.whole((5, 4))[two] == Region.whole((5, 4))[2]
    assert Region.whole((5, 4))[:two] == Region.whole((5, 4))[:2]


@pytest.mark.parametrize(
    "index",
    [
        3, -4, (0, 4), (..., 4),
        (0, 0, 0), (..., 0, 0, 0), (slice(None),) * 3,
        (..., ...), (..., 0, ...), slice(None, None, 0), slice(1.5),
    ],
)  # fmt: skip
def test_errors_are_numpys(index: Any):
    with pytest.raises((IndexError, ValueError, TypeError)) as numpys:
        np.zeros((3, 4))[index]
    with pytest.raises(numpys.type) as ours:
        Region.whole((3, 4))[index]
    assert str(ours.value) == str(numpys.value)


@pytest.mark.parametrize("index", [1.0, "a", b"a", np.float32(1), {0}, object()])
def test_what_is_no_index_at_all_is_an_index_error(index: Any):
    with pytest.raises(IndexError, match="only integers, slices"):
        Region.whole((3, 4))[0, index]


@pytest.mark.parametrize(
    "index",
    [
        None,
        True,
        np.True_,
        [0, 1],
        ((0, 1),),
        range(2),
        np.array([0]),
        np.array(1),
        np.zeros(3, bool),
    ],
    ids=repr,
)
def test_indices_that_need_the_whole_array(index: Any):
    for entry in (index, (..., index)):
        with pytest.raises(NotBasicIndexError, match="needs the whole array"):
            Region.whole((3, 4))[entry]
    assert issubclass(NotBasicIndexError, TypeError)
