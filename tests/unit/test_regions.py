"""Indexing an array that is not here takes what NumPy would take, from whatever mesh holds it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jaxnb.arrays.blocks import Index
from jaxnb.arrays.regions import NotBasicIndexError, Piece, Region, as_slice, pieces, view
from jaxnb.model.arrays import ShardInfo

# ---------------------------------------------------------------- regions come together from shards


@dataclass(frozen=True)
class Layout:
    """An array over a mesh, as JAX would lay it out."""

    base: np.ndarray
    shards: list[ShardInfo]

    @property
    def processes(self) -> list[int]:
        return sorted({shard.process_index for shard in self.shards})

    def held(self, shard: ShardInfo) -> np.ndarray:
        return self.base[tuple(slice(*interval) for interval in shard.index)]

    def data(self, piece: Piece) -> np.ndarray:
        return self.held(piece.shard)[(*piece.source, ...)]


def shards_of(
    shape: tuple[int, ...],
    mesh: tuple[int, ...],
    spec: tuple[tuple[int, ...], ...],
    devices_per_process: int,
) -> list[ShardInfo]:
    """Cuts an array over a mesh, whose devices are numbered in row-major order.

    The spec has for each dimension the mesh axes, by number, that divide it; the last parts
    are short or empty where a dimension cannot be divided evenly.
    """
    shards = []
    replicas: dict[Index, int] = {}
    for device, place in enumerate(product(*map(range, mesh))):
        index: Index = ()
        for size, axes in zip(shape, spec, strict=True):
            number = 0
            for axis in axes:
                number = number * mesh[axis] + place[axis]
            each = -(-size // prod(mesh[axis] for axis in axes))
            index += ((min(size, number * each), min(size, (number + 1) * each)),)
        # As JAX does: parts without elements that lie at one place are replicas, too.
        replica = replicas.get(index, 0)
        replicas[index] = replica + 1
        shards.append(ShardInfo(device, device // devices_per_process, index, replica))
    return shards


@st.composite
def layouts(draw: Callable[..., Any], *, even: bool | None = None) -> Layout:
    mesh = tuple(draw(st.lists(st.integers(1, 3), max_size=3), label="mesh"))
    ndim = draw(st.integers(0, 4), label="ndim")
    spec: list[tuple[int, ...]] = [()] * ndim
    for axis in draw(st.permutations(range(len(mesh))), label="order of the axes"):
        dimension = draw(st.integers(-1, ndim - 1), label=f"dimension of axis {axis}")
        if dimension >= 0:
            spec[dimension] += (axis,)
    if draw(st.booleans()) if even is None else even:
        shape = tuple(draw(st.integers(0, 3)) * prod(mesh[axis] for axis in axes) for axes in spec)
    else:
        shape = tuple(draw(st.integers(0, 7)) for _ in spec)
    assume(prod(shape) <= 3000)
    per_process = draw(st.integers(1, 3), label="devices per process")
    base = np.arange(prod(shape)).reshape(shape)
    return Layout(base, shards_of(shape, mesh, tuple(spec), per_process))


def draw_region(data: st.DataObject, base: np.ndarray) -> tuple[Region, np.ndarray]:
    """Indexes a region and the array up to twice alike."""
    region, array = Region.whole(base.shape), base
    for _ in range(data.draw(st.integers(0, 2), label="indexings")):
        index = data.draw(hnp.basic_indices(array.shape))
        region, array = region[index], array[index][...]
    return region, array


def assemble(
    region: Region,
    found: Iterable[Piece],
    data: Callable[[Piece], np.ndarray],
    dtype: np.dtype,
    words: tuple[int, ...] = (),
) -> np.ndarray:
    """Puts a region together of what its pieces give."""
    taken = np.empty(region.taken_shape + words, dtype)
    for piece in found:
        view(taken, piece.target)[...] = data(piece)
    return region.finish(taken, len(words))


@given(st.data(), layouts())
def test_any_region_of_any_layout_is_what_numpy_takes(data: st.DataObject, layout: Layout):
    region, expected = draw_region(data, layout.base)
    found, lost = pieces(region, layout.shards)
    assert lost == []
    result = assemble(region, found, layout.data, layout.base.dtype)
    np.testing.assert_array_equal(result, expected, strict=True)


@given(st.data(), layouts())
def test_each_element_comes_once_and_from_the_lowest_replica(data: st.DataObject, layout: Layout):
    region, expected = draw_region(data, layout.base)
    found, _ = pieces(region, layout.shards)
    count = np.zeros(region.taken_shape, int)
    for piece in found:
        assert prod(piece.shape) > 0
        assert layout.data(piece).shape == piece.shape
        assert all(part.step in (None, 1) for part in piece.target)
        count[piece.target] += 1
        same = [s.replica_id for s in layout.shards if s.index == piece.shard.index]
        assert piece.shard.replica_id == min(same)
    assert (count == 1).all() or expected.size == 0


@given(st.data(), layouts())
def test_what_none_of_the_processes_holds_is_lost(data: st.DataObject, layout: Layout):
    alive = data.draw(st.sets(st.sampled_from(layout.processes)), label="processes")
    region, expected = draw_region(data, layout.base)
    found, lost = pieces(region, layout.shards, alive)
    # Where every element lies that the region takes, told by the elements themselves.
    wanted = set(expected.flat)
    holders: dict[Index, set[int]] = {}
    for shard in layout.shards:
        if wanted & set(layout.held(shard).flat):
            holders.setdefault(shard.index, set()).add(shard.process_index)
    assert sorted(lost) == sorted(index for index, held in holders.items() if not held & alive)
    assert {piece.shard.process_index for piece in found} <= alive
    given_elements = [e for piece in found for e in layout.data(piece).flat]
    gone = {e for index in lost for e in layout.base[tuple(slice(*i) for i in index)].flat}
    assert sorted(given_elements) == sorted(wanted - gone)
    for piece in found:
        able = [s for s in layout.shards
                if s.index == piece.shard.index and s.process_index in alive]  # fmt: skip
        assert piece.shard == min(able, key=lambda s: s.replica_id)


@given(st.data(), layouts(even=True), st.sampled_from([(2,), (1, 3)]))
def test_words_come_along(data: st.DataObject, layout: Layout, words: tuple[int, ...]):
    offsets = np.arange(prod(words)).reshape(words) * 10_000
    region, expected = draw_region(data, layout.base)
    found, _ = pieces(region, layout.shards)

    def with_words(piece: Piece) -> np.ndarray:
        return np.add.outer(layout.data(piece), offsets)

    result = assemble(region, found, with_words, offsets.dtype, words)
    np.testing.assert_array_equal(result, np.add.outer(expected, offsets), strict=True)


def halves() -> Layout:
    """Eight elements over two processes of one device each."""
    return Layout(np.arange(8), shards_of((8,), (2,), ((0,),), 1))


def test_other_dtypes_are_kept():
    layout = Layout(np.arange(8).astype(ml_dtypes.bfloat16), halves().shards)
    region = Region.whole((8,))[1::2]
    result = assemble(region, pieces(region, layout.shards)[0], layout.data, layout.base.dtype)
    assert result.dtype == ml_dtypes.bfloat16
    assert result.astype(int).tolist() == [1, 3, 5, 7]


# ---------------------------------------------------------------------- indices


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
        ((8, 8, 8), np.s_[:4, ::2, 3], "[0:4, ::2, 3]"),
        ((8, 8), np.s_[:, -1], "[:, 7]"),
        ((8,), np.s_[6:1:-2], "[6:1:-2]"),
        ((8,), np.s_[5:5], "[0:0]"),
        ((8,), np.s_[:], ""),
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
