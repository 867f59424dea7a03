"""What the processes' descriptions of one array say together."""

from __future__ import annotations

from dataclasses import replace

from jaxnb.arrays.blocks import differing, lying, merged
from jaxnb.model.arrays import ArrayInfo, ShardInfo

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


def test_of_some_processes_the_other_digests_are_missing() -> None:
    whole = merged([told(2, [b"a", b"b", b"c", b"d"])])
    assert [shard.digest for shard in whole.shards] == [b"", b"", b"c", b""]
    assert differing(whole) == []


def test_parts_that_differ() -> None:
    assert differing(array(b"a", b"a", b"b", b"b")) == []
    (part,) = differing(array(b"a", b"a", b"b", b"c"))
    assert (part.index, part.processes, part.by_digest()) == (((4, 8),), (2, 3), [(2,), (3,)])
    assert [p.index for p in differing(array(b"a", b"b", b"c", b"d"))] == [((0, 4),), ((4, 8),)]


def test_what_was_not_compared_does_not_differ() -> None:
    assert differing(array(b"", b"a", b"", b"")) == []
    assert differing(array(b"", b"", b"", b"")) == []
    assert differing(replace(array(b"a", b"b", b"", b""), shards=())) == []
