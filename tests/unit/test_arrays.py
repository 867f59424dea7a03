"""Shard descriptions become pictures of arrays."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnb.arrays.blocks import (
    blocks,
    boundaries,
    bytes_per_device,
    corner_edges,
    elements_bytes,
    preview,
    total_bytes,
)
from jaxnb.model.arrays import ArrayInfo, ShardInfo


def shard(device: int, *index: tuple[int, int], replica: int = 0, digest: bytes = b"") -> ShardInfo:
    return ShardInfo(device, device // 2, tuple(index), replica, digest)


def array_of(*shards: ShardInfo, shape: tuple[int, ...], bits: int = 32) -> ArrayInfo:
    return ArrayInfo(shape, "float32", bits, "", None, None, None, False, False, shards)


def corner_of(values: np.ndarray) -> list[tuple[tuple[int, ...], str]]:
    places = product(*corner_edges(values.shape))
    return [(place, str(values[place])) for place in places]


def test_blocks_group_replicas_and_put_the_first_replica_first():
    left, right = ((0, 2), (0, 3)), ((0, 2), (3, 6))
    found = blocks(
        [
            shard(3, *right, replica=1),
            shard(0, *left, replica=1),
            shard(1, *right),
            shard(2, *left),
        ]
    )
    assert [block.index for block in found] == [left, right]
    assert [s.device_id for s in found[0].shards] == [2, 0]
    assert found[0].device_ids == (0, 2)
    assert found[0].processes == (0, 1)
    assert found[0].shape == (2, 3)
    assert boundaries(found, 2) == (((0, 2),), ((0, 3), (3, 6)))


def test_replicas_are_grouped_by_their_bytes():
    whole = (0, 4)
    (block,) = blocks(
        [
            shard(0, whole, digest=b"a"),
            shard(2, whole, replica=1, digest=b"b"),
            shard(4, whole, replica=2, digest=b"a"),
            shard(6, whole, replica=3),
        ]
    )
    assert block.by_digest() == [(0, 2), (1,)]


def test_scalar_has_one_block():
    (block,) = blocks([shard(0), shard(1, replica=1)])
    assert block.index == ()
    assert block.device_ids == (0, 1)
    assert boundaries([block], 0) == ()


def test_bytes():
    array = array_of(shard(0, (0, 4)), shard(1, (4, 7)), shape=(7,))
    assert bytes_per_device(array) == {0: 16, 1: 12}
    assert total_bytes(array) == 28
    assert total_bytes(replace(array, itemsize_bits=4)) == 4
    assert elements_bytes(0, 32) == 0
    assert total_bytes(array_of(shard(0), shape=())) == 4


@pytest.mark.parametrize(
    ("shape", "rows"),
    [
        ((), (("0",),)),
        ((3,), (("0", "1", "2"),)),
        ((9,), (("0", "1", "2", "…", "6", "7", "8"),)),
        ((2, 2), (("0", "1"), ("2", "3"))),
    ],
)
def test_preview_of_small_arrays(shape: tuple[int, ...], rows: tuple[tuple[str, ...], ...]):
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    assert preview(shape, corner_of(values)) == list(rows)


def test_preview_leaves_out_the_middle_of_rows_and_columns():
    values = np.arange(100).reshape(10, 10)
    rows = preview((10, 10), corner_of(values))
    assert len(rows) == 7
    assert rows[0] == ("0", "1", "2", "…", "7", "8", "9")
    assert rows[3] == ("…",) * 7
    assert rows[6][-1] == "99"


def test_preview_shows_the_first_slice_of_more_dimensions():
    values = np.arange(2 * 8 * 2 * 2).reshape(2, 8, 2, 2)
    assert preview(values.shape, corner_of(values)) == [("0", "1"), ("2", "3")]


def test_preview_marks_what_nobody_told():
    assert preview((2,), [((0,), "1.5")]) == [("1.5", "?")]
    assert preview((2,), []) == []
    assert preview((0, 4), [((0, 0), "1")]) == []


@given(st.lists(st.integers(1, 9), max_size=4))
def test_preview_shows_only_elements_where_they_are(shape: list[int]):
    values = np.arange(int(np.prod(shape))).reshape(shape)
    part = np.atleast_2d(values[(0,) * len(shape[:-2])])
    rows = [r for r in preview(shape, corner_of(values)) if r[0] != "…"]
    along, across = corner_edges(part.shape)
    assert len(rows) == len(along)
    for r, row in zip(along, rows, strict=True):
        assert [cell for cell in row if cell != "…"] == [str(part[r, c]) for c in across]
