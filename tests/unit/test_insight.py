"""Compiled programs to tables: groups, axes, bytes, trip counts, source lines; no jax."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnb.compat.xla import Frames, participants
from jaxnb.compiled.collectives import Along, axes_of_groups, axes_of_pairs, sent_bytes
from jaxnb.compiled.compiling import parse_call, taken_apart
from jaxnb.errors import UsageError
from jaxnb.model.arrays import MeshInfo
from jaxnb.model.compiled import SourceLine


def mesh(device_ids: list[int] | None = None, **sizes: int) -> MeshInfo:
    shape = tuple(sizes.values())
    ids = device_ids or list(range(math.prod(shape)))
    return MeshInfo(tuple(sizes), shape, ("Auto",) * len(shape), tuple(ids))


# ---------------------------------------------------------------------- replica groups


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_groups_along_any_axes_of_any_mesh_are_found_again(
    sizes: list[int], data: st.DataObject
) -> None:
    """Whatever order the devices are in."""
    names = [f"a{i}" for i in range(len(sizes))]
    over = [i for i in range(len(sizes)) if data.draw(st.booleans())]
    rest = [i for i in range(len(sizes)) if i not in over]
    count = math.prod(sizes)
    ids = data.draw(st.permutations(range(100, 100 + count)))
    assignment = data.draw(st.permutations(ids))
    places = np.array([assignment.index(device) for device in ids]).reshape(sizes)
    width = math.prod(sizes[i] for i in over)
    rows = places.transpose(rest + over).reshape(-1, width).tolist()
    groups = tuple(map(tuple, rows))
    named_sizes = dict(zip(names, sizes, strict=True))
    found = axes_of_groups(groups, assignment, [mesh(list(ids), **named_sizes)])
    assert found == Along(tuple(names[i] for i in over if sizes[i] > 1))


def test_groups_that_go_along_no_axis_or_a_part_of_one() -> None:
    both = mesh(data=2, model=4)
    everywhere = range(8)
    assert axes_of_groups(((0, 5), (1, 4), (2, 7), (3, 6)), everywhere, [both]) is None
    assert axes_of_groups(((0, 1), (2, 3), (4, 5), (6, 7)), everywhere, [both]) == Along(
        ("model",), whole=False
    )
    assert axes_of_groups(((0, 1), (2, 3, 4, 5, 6, 7)), everywhere, [both]) is None
    assert axes_of_groups(((0,), (1,)), everywhere, [both]) == Along(())
    assert axes_of_groups(((0, 1, 2, 3), (4, 5, 6, 7)), everywhere, []) is None
    # The first mesh does not explain them, the second does; a mesh of other devices is passed by.
    half = ((0, 1), (2, 3), (4, 5), (6, 7))
    third = mesh(x=2, y=2, z=2)
    assert axes_of_groups(half, everywhere, [mesh([20, 21], w=2), both, third]) == Along(("z",))


def test_axes_of_a_permute() -> None:
    ring = [(i, (i + 1) % 4) for i in range(4)] + [(4 + i, 4 + (i + 1) % 4) for i in range(4)]
    both = mesh(data=2, model=4)
    assert axes_of_pairs(ring, range(8), [both]) == Along(("model",))
    assert axes_of_pairs([(i, (i + 1) % 8) for i in range(8)], range(8), [both]) == Along(
        ("data", "model")
    )
    assert axes_of_pairs([(3, 3)], range(8), [both]) == Along(())
    assert axes_of_pairs([(0, 1)], range(8), []) is None


def test_who_takes_part_by_channel_and_global_ids() -> None:
    def who(*groups: tuple[int, ...], **settings: bool) -> object:
        return participants(groups, replicas=2, partitions=3, **settings)

    yes, no = True, False
    flat = who((0, 5), has_channel=yes, global_ids=yes, is_reduction=yes)
    assert flat == ((0, 5),)
    # Without a channel: replicas, for each partition.
    replicas = who((0, 1), has_channel=no, global_ids=no, is_reduction=yes)
    assert replicas == ((0, 3), (1, 4), (2, 5))
    # With a channel, and not global: replicas with all of their partitions; others: partitions.
    across = who((0,), (1,), has_channel=yes, global_ids=no, is_reduction=yes)
    assert across == ((0, 1, 2), (3, 4, 5))
    partitions = who((0, 2), has_channel=yes, global_ids=no, is_reduction=no)
    assert partitions == ((0, 2), (3, 5))


# ---------------------------------------------------------------------- bytes


def ring_bytes(kind: str, elements: int, n: int) -> int:
    """Bytes that one device sends, by going through the steps; an element has one byte."""
    chunk = elements // n
    steps = {"all-reduce": 2 * (n - 1), "all-gather": n - 1, "all-to-all": n - 1}
    return steps[kind] * chunk


@given(st.integers(2, 64), st.integers(0, 1000))
def test_bytes_by_the_steps_of_the_algorithms(n: int, chunk: int) -> None:
    for kind in ("all-reduce", "all-gather", "all-to-all"):
        assert sent_bytes(kind, n * chunk, n) == ring_bytes(kind, n * chunk, n)  # type: ignore[arg-type]
    assert sent_bytes("reduce-scatter", chunk, n) == (n - 1) * chunk
    # An all-reduce is a reduce-scatter and an all-gather.
    assert sent_bytes("all-reduce", n * chunk, n) == sent_bytes(
        "reduce-scatter", chunk, n
    ) + sent_bytes("all-gather", n * chunk, n)
    assert sent_bytes("collective-permute", chunk, n) == chunk


def test_a_group_of_one_sends_nothing_and_odd_sizes_are_rounded_up() -> None:
    assert sent_bytes("all-reduce", 1000, 1) == 0
    assert sent_bytes("all-reduce", 10, 3) == 14  # 2 × 2/3 × 10 = 13.3


# ---------------------------------------------------------------------- source lines

CELL, FLAX = "<cell 7>", "/lib/site-packages/flax/core.py"


def test_the_line_of_the_innermost_frame_that_says_something() -> None:
    module, step = SourceLine(CELL, 9, "<module>"), SourceLine(CELL, 3, "f")
    dense = SourceLine(FLAX, 55, "dense")
    frames = Frames({1: (module, 0), 2: (step, 1), 3: (dense, 2)})
    assert frames.line(3) == step
    assert frames.line(1) == module
    assert frames.line(0) is None
    assert str(Frames({1: (dense, 0)}).line(1)) == "core.py:55"
    assert Frames({1: (dense, 2), 2: (dense, 1)}).line(2) == dense
    assert str(Frames({}).line(0, "/home/me/train.py", 4)) == "train.py:4"
    for file in ("/lib/site-packages/ipykernel/kernelbase.py", "<frozen runpy>"):  # runs the cell
        assert Frames({}).line(0, file, 508) is None
        assert Frames({1: (SourceLine(file, 55), 0)}).line(1) is None
    own = "/home/me/asyncio/tornado/train.py"  # in folders of such names
    assert str(Frames({}).line(0, own, 4)) == "train.py:4"
    assert str(SourceLine("<cell 7>", 3)) == "cell [7] line 3"


def test_all_axes_at_once_and_in_every_order() -> None:
    sizes = {"a": 2, "b": 2, "c": 2}
    for names in itertools.permutations(sizes):
        one = mesh(**{name: sizes[name] for name in names})
        assert axes_of_groups((tuple(range(8)),), range(8), [one]) == Along(names)


# ---------------------------------------------------------------------- calls


def test_a_call_is_taken_apart() -> None:
    namespace = {"f": len, "x": 3, "rest": (4, 5), "more": {"c": 7}}
    call = parse_call(" f(x, *rest, b=6, **more) ")
    parts = eval(compile(taken_apart(call), "<test>", "eval"), namespace)
    assert parts == (len, (3, 4, 5), {"b": 6, "c": 7})


@pytest.mark.parametrize("code", ["", "f", "f.g", "f(", "x = f()", "f(); g()", "a + f()", "\0"])
def test_what_is_no_call(code: str) -> None:
    with pytest.raises(UsageError, match="Nothing was run"):
        parse_call(code)
