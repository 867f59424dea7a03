"""Compiled programs to tables: groups, axes, bytes, trip counts, source lines; no jax."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnb.compat.xla_frames import Frames
from jaxnb.compat.xla_groups import participants, read_groups, read_pairs
from jaxnb.compat.xla_instructions import arrays, dtype_name, read
from jaxnb.compat.xla_program import from_text
from jaxnb.compiled import table
from jaxnb.compiled.axes import Along, axes_of_groups, axes_of_pairs
from jaxnb.compiled.calls import parse_call, taken_apart
from jaxnb.compiled.sent import sent_bytes
from jaxnb.errors import UsageError
from jaxnb.model.collectives import SourceLine
from jaxnb.model.layout import MeshInfo
from jaxnb_programs import GPU_TEXT


def mesh(device_ids: list[int] | None = None, **sizes: int) -> MeshInfo:
    shape = tuple(sizes.values())
    ids = device_ids or list(range(math.prod(shape)))
    return MeshInfo(tuple(sizes), shape, ("Auto",) * len(shape), tuple(ids))


# ---------------------------------------------------------------------- replica groups


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("{}", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("{{0,1},{2,3},{4,5,6,7}}", ((0, 1), (2, 3), (4, 5, 6, 7))),
        ("[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("[2,2,2]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['a'=2,'b'=4] {'b'}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['a'=2,'b'=4] {'a'}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['a'=2,'b'=4] {'a','b'}", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        # Parts of an axis of 8 = 2 × 2 × 2: the middle one, then the first.
        ("mesh['a'=8] {'a':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['a'=2,'b'=4] {'b':(1)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['a'=2,'b'=4], device_ids=(0,2,4,6,1,3,5,7) {'b'}", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("mesh['a'=2,'b'=4] {'c'}", None),
        ("something new", None),
    ],
)
def test_groups_as_xla_prints_them(text: str, groups: object) -> None:
    assert read_groups(text, 8) == groups


SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@given(SIZES, st.data())
def test_groups_along_any_axes_of_any_mesh_are_found_again(
    sizes: list[int], data: st.DataObject
) -> None:
    """Whatever the notation, and whatever order the devices are in."""
    names = [f"a{i}" for i in range(len(sizes))]
    over = [i for i in range(len(sizes)) if data.draw(st.booleans())]
    rest = [i for i in range(len(sizes)) if i not in over]
    count = math.prod(sizes)
    ids = data.draw(st.permutations(range(100, 100 + count)))
    assignment = data.draw(st.permutations(ids))
    places = np.array([assignment.index(device) for device in ids]).reshape(sizes)
    width = math.prod(sizes[i] for i in over)
    rows = places.transpose(rest + over).reshape(-1, width).tolist()
    listed = "{" + ",".join("{" + ",".join(map(str, row)) + "}" for row in rows) + "}"
    axes = ",".join(f"'{name}'={size}" for name, size in zip(names, sizes, strict=True))
    numbers = ",".join(map(str, places.reshape(-1).tolist()))
    along = ",".join(f"'{names[i]}'" for i in over)
    named = f"mesh[{axes}], device_ids=({numbers}) {{{along}}}"
    expected = Along(tuple(names[i] for i in over if sizes[i] > 1))
    for text in (listed, named):
        groups = read_groups(text, count)
        assert groups is not None
        assert sorted(map(sorted, groups)) == sorted(map(sorted, rows))
        named_sizes = dict(zip(names, sizes, strict=True))
        found = axes_of_groups(groups, assignment, [mesh(list(ids), **named_sizes)])
        assert found == expected


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
    assert read_pairs("{{0,1},{7,0}}") == ((0, 1), (7, 0))


def test_who_takes_part_by_channel_and_global_ids() -> None:
    def who(groups: str, **settings: bool) -> object:
        listed = read_groups(groups, 2)
        assert listed is not None
        return participants(listed, replicas=2, partitions=3, **settings)

    yes, no = True, False
    flat = who("{{0,5}}", has_channel=yes, global_ids=yes, is_reduction=yes)
    assert flat == ((0, 5),)
    # Without a channel: replicas, for each partition.
    replicas = who("{{0,1}}", has_channel=no, global_ids=no, is_reduction=yes)
    assert replicas == ((0, 3), (1, 4), (2, 5))
    # With a channel, and not global: replicas with all of their partitions; others: partitions.
    across = who("{{0},{1}}", has_channel=yes, global_ids=no, is_reduction=yes)
    assert across == ((0, 1, 2), (3, 4, 5))
    partitions = who("{{0,2}}", has_channel=yes, global_ids=no, is_reduction=no)
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


# ---------------------------------------------------------------------- instructions


def test_an_instruction_is_taken_apart() -> None:
    text = (
        '  ROOT %a.1 = (bf16[4,8]{1,0:T(8)}, /*index=1*/(s32[], pred[3])) custom-call(%b, "x,(y"), '
        "custom_call_target=\"a,b\", called_computations={%c, %d.2}, replica_groups=mesh['a'=2], "
        'device_ids=([2]T(0)) {\'a\'}, metadata={op_name="jit(f)/a[b=\\"c\\"]" source_line=7}'
    )
    found = read(text)
    assert found is not None
    assert (found.name, found.opcode) == ("a.1", "custom-call")
    assert [str(part) for part in arrays(found.shape)] == ["bfloat16[4, 8]", "int32[]", "bool[3]"]
    assert [part.nbytes for part in arrays(found.shape)] == [64, 4, 3]
    assert found.called == ("c", "d.2")
    assert found.attributes["replica_groups"] == "mesh['a'=2], device_ids=([2]T(0)) {'a'}"
    assert found.metadata == {"op_name": 'jit(f)/a[b="c"]', "source_line": "7"}
    assert found.trip_count is None
    loop = '%w = s32[] while(%t), body=%b, backend_config={"known_trip_count":{"n":"8"}}'
    assert read(loop).trip_count == 8  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text", ["", "}", "%a", "%a = ", "%a = f32[", "%a = f32[2]", "%a = (f32[2]"]
)
def test_what_is_no_instruction(text: str) -> None:
    assert read(text) is None


def test_names_and_sizes_of_dtypes() -> None:
    names = {
        "f32": "float32", "bf16": "bfloat16", "s8": "int8", "u4": "uint4", "pred": "bool",
        "c64": "complex64", "f8e4m3fn": "float8_e4m3fn", "token": "token",
    }  # fmt: skip
    for name, expected in names.items():
        assert dtype_name(name) == expected
    sizes = {"u4[3]": 2, "f8e4m3fn[3]": 3, "c64[3]": 24, "token[]": 0, "f32[<=8]": 32}
    for shape, nbytes in sizes.items():
        (part,) = arrays(read(f"%a = {shape} add(%b)").shape)  # type: ignore[union-attr]
        assert part.nbytes == nbytes


# ---------------------------------------------------------------------- source lines

HEADER = """HloModule jit_f, num_partitions=8

FileNames
1 "<cell 7>"
2 "/lib/site-packages/flax/core.py"

FunctionNames
1 "<module>"
2 "f"
3 "dense"

FileLocations
1 {file_name_id=1 function_name_id=1 line=9 end_line=9 column=1 end_column=2}
2 {file_name_id=1 function_name_id=2 line=3 end_line=3 column=1 end_column=2}
3 {file_name_id=2 function_name_id=3 line=55 end_line=55 column=1 end_column=2}

StackFrames
"""


def test_source_lines_by_frames_in_both_ways_of_counting_parents() -> None:
    shifted = "1 {file_location_id=1 parent_frame_id=1}\n2 {file_location_id=2 parent_frame_id=2}\n"
    plain = "1 {file_location_id=1 parent_frame_id=0}\n2 {file_location_id=2 parent_frame_id=1}\n"
    for rows, parent in ((shifted, 3), (plain, 2)):
        last = f"3 {{file_location_id=3 parent_frame_id={parent}}}\n"
        frames = Frames(HEADER + rows + last)
        assert frames.line({"stack_frame_id": "3"}) == SourceLine("<cell 7>", 3, "f")
        assert frames.line({"stack_frame_id": "1"}) == SourceLine("<cell 7>", 9, "<module>")
        assert frames.line({}) is None
    alone = Frames(HEADER + "1 {file_location_id=3 parent_frame_id=0}\n")
    assert str(alone.line({"stack_frame_id": "1"})) == "core.py:55"
    loop = Frames(HEADER + "1 {file_location_id=3 parent_frame_id=2}\n"
                  "2 {file_location_id=3 parent_frame_id=1}\n")  # fmt: skip
    assert loop.line({"stack_frame_id": "2"}) is not None
    old = Frames("").line({"source_file": "/home/me/train.py", "source_line": "4"})
    assert str(old) == "train.py:4"
    for file in ("/lib/site-packages/ipykernel/kernelbase.py", "<frozen runpy>"):  # runs the cell
        assert Frames("").line({"source_file": file, "source_line": "508"}) is None
        kernel = Frames(HEADER.replace("/lib/site-packages/flax/core.py", file)
                        + "1 {file_location_id=3 parent_frame_id=0}\n")  # fmt: skip
        assert kernel.line({"stack_frame_id": "1"}) is None
    assert str(SourceLine("<cell 7>", 3)) == "cell [7] line 3"


# ---------------------------------------------------------------------- programs


def test_async_pairs_combined_ones_and_loops_of_a_gpu_program() -> None:
    found = table.collectives(from_text(GPU_TEXT), range(8), [mesh(data=8)])
    assert [(each.kind, each.bytes, each.count) for each in found] == [
        ("all-gather", 7 * 64 * 128 * 4 // 8, 1),
        ("reduce-scatter", 7 * 8 * 128 * 4, 1),
        ("all-reduce", 2 * 7 * (192 + 64) * 4 // 8, 1),
        ("collective-permute", 8 * 128 * 4, 6),
        ("all-to-all", 7 * 8 * 128 * 4 // 8, 1),
    ]
    assert all(each.asynchronous and each.axes == ("data",) for each in found)
    (total,) = table.totals(found)
    assert (total.axes, total.count) == (("data",), 10)
    assert total.bytes == sum(each.bytes * (each.count or 0) for each in found)


@given(st.integers(0, len(GPU_TEXT)))
def test_a_text_that_ends_early_raises_nothing(end: int) -> None:
    table.collectives(from_text(GPU_TEXT[:end]), range(8), [mesh(data=8)])


def test_a_computation_that_is_called_twice_counts_twice() -> None:
    text = """HloModule m, num_partitions=2

%inner (p: f32[2]) -> f32[2] {
  %p = f32[2]{0} parameter(0)
  ROOT %r = f32[2]{0} all-reduce(%p), channel_id=1, replica_groups={{0,1}}, \
use_global_device_ids=true, to_apply=%add
}

ENTRY %main (p.1: f32[2]) -> f32[2] {
  %p.1 = f32[2]{0} parameter(0)
  %a = f32[2]{0} call(%p.1), to_apply=%inner
  %b = f32[2]{0} conditional(%i, %a, %a), branch_computations={%inner, %inner}
  ROOT %c = f32[2]{0} while(%b), condition=%check, body=%inner
}
"""
    program = from_text(text)
    (found,) = table.collectives(program, range(2), [])
    assert (found.count, found.at_most, found.axes) == (None, True, ())
    assert table.has_loops(program)
    lines = [line for line in text.splitlines() if "while" not in line]
    (found,) = table.collectives(from_text("\n".join(lines)), range(2), [])
    assert (found.count, found.at_most) == (3, True)
    assert not table.has_loops(from_text("\n".join(lines)))


def test_all_axes_at_once_and_in_every_order() -> None:
    sizes = {"a": 2, "b": 2, "c": 2}
    for names in itertools.permutations(sizes):
        one = mesh(**{name: sizes[name] for name in names})
        groups = read_groups("[1,8]<=[8]", 8)
        assert groups is not None
        assert axes_of_groups(groups, range(8), [one]) == Along(names)


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
