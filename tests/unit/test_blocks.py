"""Descriptions of shards become pictures; replicas are compared; specs are read."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnb.arrays.blocks import (
    blocks,
    boundaries,
    bytes_per_device,
    corner_edges,
    differing,
    elements_bytes,
    is_spec,
    lying,
    merged,
    preview,
    spec_text,
    total_bytes,
)
from jaxnb.arrays.blocks import normalize as normalize_spec
from jaxnb.arrays.blocks import parse as parse_spec
from jaxnb.errors import UsageError
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
    copies = [shard(3, *right, replica=1), shard(0, *left, replica=1)]
    found = blocks([*copies, shard(1, *right), shard(2, *left)])
    assert [block.index for block in found] == [left, right]
    assert [s.device_id for s in found[0].shards] == [2, 0]
    assert found[0].device_ids == (0, 2)
    assert found[0].processes == (0, 1)
    assert found[0].shape == (2, 3)
    assert boundaries(found, 2) == (((0, 2),), ((0, 3), (3, 6)))


def test_replicas_are_grouped_by_their_bytes():
    whole = (0, 4)
    digests = [b"a", b"b", b"a", b""]
    (block,) = blocks(
        [shard(2 * i, whole, replica=i, digest=each) for i, each in enumerate(digests)]
    )
    assert block.by_digest() == [(0, 2), (1,)]


def test_bytes():
    array = array_of(shard(0, (0, 4)), shard(1, (4, 7)), shape=(7,))
    assert bytes_per_device(array) == {0: 16, 1: 12}
    assert total_bytes(array) == 28
    assert total_bytes(replace(array, itemsize_bits=4)) == 4
    assert elements_bytes(0, 32) == 0
    assert total_bytes(array_of(shard(0), shape=())) == 4


def test_preview_leaves_out_the_middle_of_rows_and_columns():
    values = np.arange(100).reshape(10, 10)
    rows = preview((10, 10), corner_of(values))
    assert len(rows) == 7
    assert rows[0] == ("0", "1", "2", "…", "7", "8", "9")
    assert rows[3] == ("…",) * 7
    assert rows[6][-1] == "99"


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


# ---------------------------------------------------------------------- replicas


PARTS = [((0, 4),), ((0, 4),), ((4, 8),), ((4, 8),)]


def told(process: int, digests: list[bytes], corner: tuple = ()) -> ArrayInfo:
    """What one of four processes, of one device each, says of an array in two parts."""
    shards = tuple(
        ShardInfo(device, device, part, device % 2, digests[device] if device == process else b"")
        for device, part in enumerate(PARTS)
    )
    return ArrayInfo((8,), "float32", 32, "", "P('x')", None, None, False, False, shards, corner)


def array(*digests: bytes) -> ArrayInfo:
    return merged([told(process, list(digests)) for process in range(4)])


def test_how_a_sharding_is_written_does_not_tell_where_an_array_lies() -> None:
    one = array(b"a", b"a", b"b", b"b")
    assert lying(one) == lying(replace(one, sharding="NamedSharding(P(None))", spec="P(None)"))
    assert lying(one) != lying(replace(one, unreduced=("x",)))
    assert lying(one) != lying(replace(one, shards=one.shards[::-1]))


def test_digests_and_corners_come_together() -> None:
    corners = [((((0,), "1")),), (), ((((7,), "8")), (((4,), "5"))), ()]
    digests = [b"a", b"a", b"b", b"b"]
    whole = merged([told(i, digests, corner) for i, corner in enumerate(corners)])
    assert [shard.digest for shard in whole.shards] == digests
    assert whole.corner == (((0,), "1"), ((4,), "5"), ((7,), "8"))
    assert whole.shape == (8,)


def test_parts_that_differ() -> None:
    assert differing(array(b"a", b"a", b"b", b"b")) == []
    (part,) = differing(array(b"a", b"a", b"b", b"c"))
    assert (part.index, part.processes, part.by_digest()) == (((4, 8),), (2, 3), [(2,), (3,)])
    assert [p.index for p in differing(array(b"a", b"b", b"c", b"d"))] == [((0, 4),), ((4, 8),)]


def test_what_was_not_compared_does_not_differ() -> None:
    assert differing(array(b"", b"a", b"", b"")) == []
    assert differing(array(b"", b"", b"", b"")) == []
    assert differing(replace(array(b"a", b"b", b"", b""), shards=())) == []


# ---------------------------------------------------------------------- specs


NAMES = st.sampled_from(["data", "model", "x", "it's"]) | st.text(max_size=4)

entries = st.none() | NAMES | st.lists(NAMES, min_size=2, max_size=3, unique=True).map(tuple)
specs = st.lists(entries, max_size=4).map(tuple)
containers = st.recursive(
    specs,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
    ),
    max_leaves=6,
)


class PartitionSpec:
    """As much of JAX's as jaxnb relies on."""

    def __init__(self, *entries: Any, unreduced: bool = False) -> None:
        self.entries = entries
        self.unreduced = unreduced

    def __iter__(self) -> Any:
        if self.unreduced:
            raise ValueError("Using *pspec is dangerous")
        return iter(self.entries)

    def __repr__(self) -> str:
        return spec_text(self.entries)


class P(PartitionSpec):
    pass


def written(value: Any) -> str:
    """Specs, and containers of them, as source."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{k!r}: {written(v)}' for k, v in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    return spec_text(value)


@pytest.mark.parametrize(
    ("given_spec", "normal"),
    [
        (None, ()),
        ("data", ("data",)),
        ((("a", "b"), None), (("a", "b"), None)),
        ((["a", "b"], "c"), (("a", "b"), "c")),
        ((("a",), (), []), ("a", None, None)),
        (PartitionSpec(("a", "b")), (("a", "b"),)),
    ],
)
def test_normalize(given_spec: Any, normal: Any):
    assert is_spec(given_spec)
    assert normalize_spec(given_spec) == normal


@given(specs)
def test_normalizing_again_changes_nothing(spec: Any):
    assert normalize_spec(spec) == spec
    assert normalize_spec(PartitionSpec(*spec)) == spec


@pytest.mark.parametrize(
    "value",
    [3, ["data"], {"w": "data"}, {"data"}, (3,), (("a", None),), (("a", ("b",)),),
     (P("data"), P()), P(object()), P("a", unreduced=True), True, b"data"],
    ids=lambda value: repr(value).partition(" at 0x")[0],
)  # fmt: skip
def test_what_is_no_spec_is_refused(value: Any):
    with pytest.raises(UsageError) as caught:
        normalize_spec(value)
    assert str(caught.value).startswith(f"{value!r} is not a partition spec")
    assert "P('data', None)" in str(caught.value)
    assert "Nothing was moved." in str(caught.value)


def test_containers_are_no_specs():
    pair = namedtuple("pair", "w b")
    for value in ([], ["data"], {}, {"w": P()}, pair("data", None), 3, object()):
        assert not is_spec(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('P("data")', ("data",)),
        ("P(['a','b'])", (("a", "b"),)),
        ("jax.P('data')", ("data",)),
        ("jax.sharding.PartitionSpec('data')", ("data",)),
        ("'data', None", ("data", None)),
        ("('data',)", ("data",)),
        ("  P('data')\n", ("data",)),
        ("[{'w': P('data')}, 'data', None]", [{"w": ("data",)}, ("data",), ()]),
        ("{0: P(), 'a': {'b': ('x', None)}}", {0: (), "a": {"b": ("x", None)}}),
    ],
)
def test_parse(text: str, value: Any):
    assert parse_spec(text) == value


@given(containers)
def test_what_is_written_is_read(value: Any):
    assert parse_spec(written(value)) == value


@pytest.mark.parametrize(
    "text",
    [
        "", "data", "P(", "P(data)", "P('data'", "3", "P(3)", "P(P('data'))", "Q('data')",
        "x.P('data')", "P(*['data'])", "P('data', unreduced={'x'})", "P('a' + 'b')", "P(f'{x}')",
        "(P('data'), P())", "{**{}}", "{x: P()}", "{[]: P()}", "{'w': 1}", "{'data'}",
        "__import__('os').system('true')", "P(__import__('os').getpid())", "[P() for _ in 'ab']",
        "P() if 1 else P()", "lambda: 0", "P('a'); P('b')", "x = P()", "\0", "(" * 5000,
        "-" * 5000 + "1", "P.__class__", "P()()", "P('data').entries", "1 .P('data')",
    ],
)  # fmt: skip
def test_what_is_not_spelled_as_specs_is_refused(text: str):
    with pytest.raises(UsageError) as caught:
        parse_spec(text)
    assert "is not a partition spec" in str(caught.value)
    assert "P('data'" in str(caught.value)
    assert "Nothing was moved." in str(caught.value)


@given(st.text(alphabet="P()[]{}'\",:ab*. \\0None") | st.text())
def test_no_text_does_anything_else(text: str):
    try:
        value = parse_spec(text)
    except UsageError:
        return
    assert parse_spec(written(value)) == value
