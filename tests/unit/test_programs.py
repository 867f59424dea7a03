"""Two compiled programs, as one short diff."""

from __future__ import annotations

from jaxnb.compat.jax_programs import program_lines
from jaxnb.compat.xla import Frames
from jaxnb.lockstep.divergence import MAX_LINES, difference, text_of
from jaxnb.model.compiled import SourceLine
from jaxnb.model.dispatches import ProgramLine

HLO = """HloModule jit_f, is_scheduled=true, entry_computation_layout={(f32[2]{0})->f32[]}, num_a=4

add.clone {
  tmp_0 = f32[] parameter(0)
  ROOT tmp_1 = f32[] add(f32[] tmp_0, f32[] tmp_0), metadata={op_name="add" stack_frame_id=1}
}

ENTRY main.1_spmd {
  tmp_0 = f32[2]{0} parameter(0), metadata={op_name="a"}
  tmp_1 = f32[] constant(3)
  tmp_2 = f32[2]{0} broadcast(f32[] tmp_1), dimensions={}, metadata={op_name="m" stack_frame_id=1}
  ROOT tmp_3 = f32[] reduce(f32[2]{0} tmp_2, f32[] tmp_1), to_apply=
  {
    tmp_0 = f32[] parameter(0)
    ROOT tmp_1 = f32[] add(f32[] tmp_0, f32[] tmp_0)
  }, metadata={op_name="sum" stack_frame_id=1}, backend_config={"x":1}
}
"""

FRAMES = Frames({1: (SourceLine("<cell 3>", 5, "<lambda>"), 0)})
BOTH = (0, 2, 3), (1,)


def compared(mine: str, its: str) -> tuple[str, list[str]]:
    found = difference({BOTH[0]: program_lines(mine, FRAMES), BOTH[1]: program_lines(its, FRAMES)})
    assert found is not None
    assert found.processes == BOTH
    return found.summary, [line[2:] for line in text_of(found).splitlines()]


def test_each_operation_stands_once_with_its_source() -> None:
    assert [(line.text, line.source) for line in program_lines(HLO, FRAMES)] == [
        ("entry_computation_layout={(f32[2]{0})->f32[]}", ""),
        ("num_a=4", ""),
        ("f32[] parameter(0)", ""),
        ("ROOT f32[] add(f32[] tmp_0, f32[] tmp_0)", "<cell 3>:5"),
        ("f32[2]{0} parameter(0)", ""),
        ("f32[] constant(3)", "<cell 3>:5"),
        ("f32[2]{0} broadcast(f32[] tmp_1), dimensions={}", "<cell 3>:5"),
        ('ROOT f32[] reduce(f32[2]{0} tmp_2, f32[] tmp_1), backend_config={"x":1}', "<cell 3>:5"),
    ]


def test_a_constant_is_named_with_its_values() -> None:
    summary, lines = compared(HLO, HLO.replace("constant(3)", "constant(4)"))
    assert summary == (
        "They differ in a constant (f32[]) at line 5 of cell [3]: 3 on processes 0,2-3, "
        "4 on process 1."
    )
    assert lines[:2] == ["--- processes 0,2-3", "+++ process 1"]
    assert "-f32[] constant(3)   # line 5 of cell [3]" in lines
    assert "+f32[] constant(4)   # line 5 of cell [3]" in lines


def test_an_operation_is_named_that_another_stands_for() -> None:
    other = HLO.replace(" broadcast(f32[] tmp_1), dim", " negate(f32[] tmp_1), dim")
    summary, lines = compared(HLO, other)
    assert summary == "They differ first at line 5 of cell [3]: see below."
    assert any(line.startswith("-") and "broadcast" in line for line in lines)
    assert any(line.startswith("+") and "negate" in line for line in lines)


def test_a_long_line_shows_where_it_differs() -> None:
    long = HLO.replace('{"x":1}', '{"w":"' + "w" * 300 + '","x":1}')
    _, lines = compared(long, long.replace('"x":1', '"x":2'))
    assert any(line.startswith("-") and '"x":1' in line for line in lines)
    assert any(line.startswith("+") and '"x":2' in line for line in lines)
    assert max(map(len, lines)) < 200


def test_what_differs_in_layouts_or_operands_alone_is_shown_too() -> None:
    _, lines = compared(HLO, HLO.replace("->f32[]}", "->f32[]{:S(5)}}"))
    assert any("S(5)" in line for line in lines)
    _, lines = compared(HLO, HLO.replace("tmp_2, f32[] tmp_1)", "tmp_0, f32[] tmp_1)"))
    assert any(line.startswith("+") and "tmp_0, f32[] tmp_1" in line for line in lines)


def test_facts_beside_the_program_are_shown() -> None:
    lines = program_lines(HLO, FRAMES)
    one, two = ([ProgramLine(each), *lines] for each in ("devices (0, 1)", "devices (1, 0)"))
    found = difference({BOTH[0]: one, BOTH[1]: two})
    assert found is not None
    assert {"-devices (0, 1)", "+devices (1, 0)"} <= set(found.lines)


def test_little_is_shown_of_much_that_differs() -> None:
    lines = program_lines(HLO, FRAMES)
    other = [ProgramLine(f"f32[] constant({i})") for i in range(5000)]
    found = difference({BOTH[0]: lines, BOTH[1]: other})
    assert found is not None
    assert len(found.lines) == MAX_LINES
    assert found.left_out > 100
    assert text_of(found).endswith(f"… {found.left_out} lines more differ")


def test_of_programs_that_are_not_remembered_nothing_is_said() -> None:
    assert difference({BOTH[0]: [], BOTH[1]: program_lines(HLO, FRAMES)}) is None
    assert difference({}) is None
    assert (
        difference({BOTH[0]: program_lines(HLO, FRAMES), BOTH[1]: program_lines(HLO, FRAMES)})
        is None
    )
