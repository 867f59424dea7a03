"""Compiled programs to tables and cards."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnb.compat.xla import Frames, participants
from jaxnb.compiled.card_collectives import collectives_card
from jaxnb.compiled.collectives import Along, axes_of_groups, axes_of_pairs, sent_bytes
from jaxnb.compiled.compiling import parse_call, taken_apart
from jaxnb.model.arrays import MeshInfo
from jaxnb.model.compiled import Collective, CompiledReport, Memory, Part
from jaxnb.model.scripts import SourceLine


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


@given(st.integers(2, 64), st.integers(0, 1000))
def test_bytes_by_the_steps_of_the_algorithms(n: int, chunk: int) -> None:
    """One device sends a chunk in each step; an element has one byte."""
    assert sent_bytes("all-reduce", n * chunk, n) == 2 * (n - 1) * chunk
    assert sent_bytes("all-gather", n * chunk, n) == (n - 1) * chunk
    assert sent_bytes("all-to-all", n * chunk, n) == (n - 1) * chunk
    assert sent_bytes("reduce-scatter", chunk, n) == (n - 1) * chunk
    assert sent_bytes("collective-permute", chunk, n) == chunk
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


# ---------------------------------------------------------------------- calls


def test_a_call_is_taken_apart() -> None:
    namespace = {"f": len, "x": 3, "rest": (4, 5), "more": {"c": 7}}
    call = parse_call(" f(x, *rest, b=6, **more) ")
    parts = eval(compile(taken_apart(call), "<test>", "eval"), namespace)
    assert parts == (len, (3, 4, 5), {"b": 6, "c": 7})


# ---------------------------------------------------------------------- the card


MESH = MeshInfo(("data", "model"), (2, 4), ("Auto", "Auto"), tuple(range(8)))
ONE = Collective(
    kind="all-reduce", axes=("model",), whole_axes=True, groups=((0, 1, 2, 3), (4, 5, 6, 7)),
    parts=(Part("float32", (8, 64), 2048),), bytes=3072, scatter_bytes=3072, count=1,
    source=SourceLine("<cell 3>", 5), operation="jit(mlp)/dot_general",
)  # fmt: skip
REPORT = CompiledReport(
    "jit(mlp)", "cpu", 8, (MESH,), (ONE,), 66048.0, 28672.0, Memory(18432, 2048, 2048, 0)
)

TEXT = """\
jit(mlp) · 8 devices · mesh data 2 × model 4 · 1 collective · compiled, not run
  collective  over   group  result        sends  times  line
  all-reduce  model      4  f32[8,64]  3.00 KiB      1  cell [3] line 5
each device sends in one call:
  model  3.00 KiB  1 execution
each device's memory: arguments 18.0 KiB · outputs 2.00 KiB · temporary 2.00 KiB
each device's work: 66 048 FLOPs · 28.0 KiB read and written
From XLA's CPU compiler: that of a GPU combines collectives, starts them early,
and uses reduce-scatters."""


def test_the_card() -> None:
    card = collectives_card(REPORT)
    assert card.text == TEXT
    for said in ("<b>jit(mlp)</b> · 8 devices", ">f32[8,64]</td>", 'title="jit(mlp)/dot_general"'):
        assert said in card.html


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"count": None}, ["      ?  cell", "model  ≥ 3.00 KiB", "?: in a loop"]),
        ({"at_most": True}, ["≤ 1  cell", "model  ≤ 3.00 KiB", "≤: in a branch"]),
        ({"axes": (), "whole_axes": False}, ["all-reduce  no axis", "\n  no axis  3.00 KiB"]),
        ({"whole_axes": False}, ["all-reduce  model (part)", "(part): groups"]),
        ({"axes": (), "bytes": 0}, ["all-reduce  itself"]),
        ({"parts": (*ONE.parts, Part("bfloat16", (3,), 6))}, ["f32[8,64] + 1 more"]),
    ],
)
def test_what_else_there_may_be(change: dict[str, object], said: list[str]) -> None:
    text = collectives_card(replace(REPORT, collectives=(replace(ONE, **change),))).text
    for each in said:
        assert each in text, text
    assert max(map(len, text.splitlines())) <= 80


def test_those_that_are_alike_share_a_row_and_a_long_list_is_cut() -> None:
    assert "\n  all-reduce  model      4  f32[8,64]  3.00 KiB      6  cell" in (
        collectives_card(replace(REPORT, collectives=(ONE, replace(ONE, count=5)))).text
    )
    unknown = replace(ONE, count=None)
    assert "2 × ?" in collectives_card(replace(REPORT, collectives=(unknown,) * 2)).text
    many = tuple(replace(ONE, source=SourceLine("<cell 3>", i)) for i in range(100))
    card = collectives_card(replace(REPORT, collectives=many))
    assert "… 40 more rows" in card.text
    assert "… 40 more rows" in card.html
    assert "model  300 KiB  100 executions" in card.text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"has_loops": True}, "XLA counts the body of a loop once"),
        ({"widened": True}, "XLA moves bfloat16 as float32"),
        ({"memory": Memory(1, 2, 3, 2)}, "outputs 2 B (2 B donated)"),
    ],
)
def test_what_is_said_of_a_program(change: dict[str, Any], said: str) -> None:
    assert said in " ".join(collectives_card(replace(REPORT, **change)).text.split())


def test_a_program_without_collectives_and_one_that_is_planned() -> None:
    text = collectives_card(CompiledReport("jit(f)", "gpu", 1, (), ())).text
    assert text == "jit(f) · 1 device · no collectives · compiled, not run"
    planned = collectives_card(replace(REPORT, num_devices=256), planned=True).text
    assert planned.startswith("jit(mlp) · planned for 256 devices · mesh data 2 × model 4")
    assert "From XLA's CPU" not in collectives_card(replace(REPORT, platform="gpu")).text


def test_what_the_user_names_is_escaped() -> None:
    bad = "<script>alert(1)</script>"
    one = replace(ONE, axes=(bad,), operation=bad, source=SourceLine(bad, 1))
    mesh = MeshInfo((bad,), (8,), ("Auto",), tuple(range(8)))
    html = collectives_card(CompiledReport(bad, "cpu", 8, (mesh,), (one,))).html
    assert "<script" not in html
    assert "&lt;script" in html
