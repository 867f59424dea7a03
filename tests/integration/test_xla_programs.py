"""Serialized programs as XLA's own parser makes them: groups, shapes, calls, loops."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jaxnb.compat.xla import Program, arrays, dtype_name, read_program
from jaxnb.compiled import collectives
from jaxnb.model.arrays import MeshInfo
from jaxnb.model.compiled import CompiledReport
from support.programs import GPU_TEXT

ADD = """
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
"""
REDUCE = f"""HloModule m
{ADD}
ENTRY e {{
  p = f32[2] parameter(0)
  ROOT r = f32[2] all-reduce(p), channel_id=1, %suse_global_device_ids=true, to_apply=add
}}
"""


def parsed(text: str) -> Program:
    from jax._src.lib import hlo

    return read_program(hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto())


def groups_in(notation: str) -> tuple[tuple[int, ...], ...]:
    program = parsed(REDUCE % (f"replica_groups={notation}, " if notation else ""))
    return program.computations[program.entry][0].groups


@pytest.mark.parametrize(
    ("notation", "groups"),
    [
        ("", ()),
        ("{}", ()),
        ("{{0,1},{2,3},{4,5,6,7}}", ((0, 1), (2, 3), (4, 5, 6, 7))),
        ("[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['a'=2,'b'=4] {'b'}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['a'=2,'b'=4] {'a'}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['a'=2,'b'=4] {'a','b'}", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("mesh['a'=2,'b'=4] {'b','a'}", ((0, 4, 1, 5, 2, 6, 3, 7),)),
        ("mesh['a'=2,'b'=4] {'b':(2)2,'a'}", ((0, 4, 1, 5), (2, 6, 3, 7))),
        ("mesh['a'=8] {'a':(1)2,'a':(4)2}", ((0, 1, 4, 5), (2, 3, 6, 7))),
        (
            "mesh['a'=2,'b'=4," + ",".join(f"'c{i}'=1" for i in range(30)) + "] {'a','c9'}",
            ((0, 4), (1, 5), (2, 6), (3, 7)),
        ),
        # Parts of an axis of 8 = 2 × 2 × 2: the middle one, then the first.
        ("mesh['a'=8] {'a':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['a'=2,'b'=4] {'b':(1)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['a'=2,'b'=4], device_ids=(0,2,4,6,1,3,5,7) {'b'}", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}", ((0, 2, 4, 6), (1, 3, 5, 7))),
    ],
)
def test_groups_in_every_notation_of_xla(notation: str, groups: object) -> None:
    assert groups_in(notation) == groups


def test_an_instruction_is_taken_apart() -> None:
    program = parsed(f"""HloModule m
{ADD}
ENTRY e {{
  p = f32[] parameter(0)
  ROOT a.1 = (bf16[4,8], (s32[], pred[3], u4[3], token[], f8e4m3fn[3], c64[3], f32[<=8])) \
custom-call(p), custom_call_target="x", called_computations={{add}}, \
metadata={{op_name="jit(f)/a[b=\\"c\\"]" source_file="<cell 3>" source_line=7}}
}}
""")
    (found,) = program.computations[program.entry]
    parts = list(arrays(found.shape))
    assert (program.name, found.name, found.opcode, found.kind) == ("m", "a.1", "custom-call", None)
    assert [str(part) for part in parts] == [
        "bfloat16[4, 8]", "int32[]", "bool[3]", "uint4[3]", "token[]", "float8_e4m3fn[3]",
        "complex64[3]", "float32[8]",
    ]  # fmt: skip
    assert [part.nbytes for part in parts] == [64, 4, 3, 2, 0, 3, 24, 32]
    assert found.operation == 'jit(f)/a[b="c"]'
    assert str(found.source) == "cell [3] line 7"
    assert [len(program.computations[each]) for each in found.called] == [0]


def test_every_type_of_xla_has_the_number_that_it_has_here() -> None:
    from jax._src.lib import xla_client

    from jaxnb.compat.xla import _TYPES, _bits

    known = {each.name: each.value for each in xla_client.PrimitiveType}
    names = {"PRIMITIVE_TYPE_INVALID": "invalid", "OPAQUE_TYPE": "opaque"}
    assert {name: _TYPES[number] for name, number in known.items()} == {
        name: names.get(name, name.lower()) for name in known
    }
    assert dtype_name("s8") == "int8"
    assert (_bits("s8"), _bits("type37")) == (8, 0)  # of one that comes later nobody knows


def test_async_pairs_combined_ones_and_loops_of_a_gpu_program() -> None:
    program = replace(parsed(GPU_TEXT), partitions=8)
    found = collectives.collectives(
        program, range(8), [MeshInfo(("data",), (8,), ("Auto",), tuple(range(8)))]
    )
    assert [(each.kind, each.bytes, each.count) for each in found] == [
        ("all-gather", 7 * 64 * 128 * 4 // 8, 1),
        ("reduce-scatter", 7 * 8 * 128 * 4, 1),
        ("all-reduce", 2 * 7 * (192 + 64) * 4 // 8, 1),
        ("collective-permute", 8 * 128 * 4, 6),
        ("all-to-all", 7 * 8 * 128 * 4 // 8, 1),
    ]
    assert all(each.asynchronous and each.axes == ("data",) for each in found)
    assert [str(each.source) for each in found[:2]] == ["train.py:12", "train.py:14"]
    (total,) = CompiledReport("f", "gpu", 8, (), found).totals
    assert (total.axes, total.count) == (("data",), 10)
    assert total.bytes == sum(each.bytes * (each.count or 0) for each in found)


def test_a_computation_that_is_called_twice_counts_twice() -> None:
    text = f"""HloModule m
{ADD}
inner {{
  p = f32[2] parameter(0)
  ROOT r = f32[2] all-reduce(p), channel_id=1, replica_groups={{{{0,1}}}}, \
use_global_device_ids=true, to_apply=add
}}

check {{
  q = f32[2] parameter(0)
  ROOT t = pred[] constant(true)
}}

ENTRY main {{
  p.1 = f32[2] parameter(0)
  i = s32[] constant(0)
  a = f32[2] call(p.1), to_apply=inner
  b = f32[2] conditional(i, a, a), branch_computations={{inner, inner}}
  ROOT c = f32[2] while(b), condition=check, body=inner
}}
"""
    program = replace(parsed(text), partitions=2)
    (found,) = collectives.collectives(program, range(2), [])
    assert (found.count, found.at_most, found.axes) == (None, True, ())
    assert collectives.has_loops(program)
    text = "\n".join(line for line in text.splitlines() if "while" not in line)
    program = replace(parsed(text.replace("b = f32[2]", "ROOT b = f32[2]")), partitions=2)
    (found,) = collectives.collectives(program, range(2), [])
    assert (found.count, found.at_most) == (3, True)
    assert not collectives.has_loops(program)


OWN_PARTS = f"""HloModule m, num_partitions=2
{ADD}
ENTRY e {{
  p = f32[8] parameter(0)
  r = (f32[8], f32[8]) all-reduce(p, p), channel_id=1, use_global_device_ids=true, to_apply=add
  own = f32[8] get-tuple-element(r), index=0
  whole = f32[8] get-tuple-element(r), index=1
  again = f32[8] get-tuple-element(r), index=1
  device = u32[] partition-id()
  four = u32[] constant(4)
  start = u32[] multiply(device, four)
  a = f32[4] dynamic-slice(own, start), dynamic_slice_sizes={{4}}
  b = f32[4] dynamic-slice(again, start), dynamic_slice_sizes={{4}}
  c = f32[8] negate(whole)
  ROOT t = (f32[4], f32[4], f32[8]) tuple(a, b, c)
}}
"""


def test_what_is_taken_of_a_sum_by_all_who_take_it() -> None:
    """XLA may name an element of a tuple twice."""
    program = parsed(OWN_PARTS)
    twice, not_all = program.computations[program.entry][0].taken
    assert twice is not None
    assert twice.elements == 4
    assert not_all is None
