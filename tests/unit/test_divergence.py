"""Where processes were about to differ, and the words for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jaxnb.compat.jax_programs import program_lines
from jaxnb.compat.xla import Frames
from jaxnb.lockstep.divergence import (
    MAX_LINES,
    TRACED,
    difference,
    differing_arguments,
    disagreement,
    odd_ones,
    refused,
    sides,
    text_of,
)
from jaxnb.lockstep.provenance import differing_names, origin_text, unequal_names_text
from jaxnb.model import scripts
from jaxnb.model.dispatches import (
    Argument,
    Difference,
    Dispatch,
    Made,
    OriginKind,
    Processes,
    ProgramLine,
    Shapes,
)
from jaxnb.model.scripts import SourceLine
from jaxnb.session.reasons import silent_text

ALL = (0, 1, 2)


def dispatch(number: int, fingerprint: int, line: int = 1, **more: Any) -> Dispatch:
    given, made = Shapes(("float32[8]",), 1), Shapes(("float32[]",), 1)
    facts = (number, f"jit(f{fingerprint})", fingerprint, given, made, ALL, line, number / 10)
    return replace(Dispatch(*facts, collectives=True), **more)


def given(*lengths: int) -> Shapes:
    return Shapes(tuple(f"f[{n}]" for n in lengths), len(lengths))


def each(
    more: Callable[[int], dict[str, object]], fingerprint: Callable[[int], int] = lambda i: 5
) -> tuple[Dispatch, ...]:
    return tuple(dispatch(1, fingerprint(i), **more(i)) for i in ALL)


ODD = [(0, 2), (1,)]


def at(*made: Dispatch | None) -> dict[int, Dispatch]:
    return {i: each for i, each in enumerate(made) if each is not None}


@pytest.mark.parametrize(
    ("made", "kind", "cause", "who"),
    [
        ((dispatch(1, 1), dispatch(1, 2), dispatch(1, 1)), "computation", "program", ODD),
        ((dispatch(2, 1), None, dispatch(2, 1)), "missing", "missing", ODD),
        (each(lambda i: {"name": "jit(f)", "arguments": given(8 + (i == 1))}, lambda i: i == 1),
         "shapes", "program", ODD),
        (each(lambda i: {"inputs": i // 2}), "inputs", "input", [(0, 1), (2,)]),
        (each(lambda i: {"replicas": ((ALL, i),)}), "inputs", "input", [ALL]),
        # All were to do the same, and another one before that: some have caught the error.
        (each(lambda i: {}), "missing", "missing", [ALL]),
        (each(lambda i: {"processes": (i, (i + 1) % 3)}, lambda i: i), "order", "order",
         [(0,), (1,), (2,)]),
    ],
)  # fmt: skip
def test_what_was_about_to_part(
    made: tuple[Dispatch | None, ...], kind: str, cause: str, who: list[tuple[int, ...]]
) -> None:
    found = refused(7, at(*made), {1: "raised ValueError at line 3"})
    number = max(d.number for d in made if d)
    assert (found.cell, found.number, found.kind, found.cause) == (7, number, kind, cause)
    assert [side.processes for side in found.sides] == who
    notes = [side.note for side in found.sides if side.dispatch is None]
    assert notes == (["raised ValueError at line 3"] if None in made else [])


@pytest.mark.parametrize(
    ("other", "third", "notes", "said"),
    [
        (None, dispatch(3, 1, 4), {1: "raised ValueError at line 2"},
         "processes 0,2: were to dispatch jit(f1) float32[8] -> float32[] at line 4; "
         "process 1: raised ValueError at line 2. None of it has run"),
        (dispatch(2, 1, 4), dispatch(3, 1, 4), {},
         "process 1: was to dispatch jit(f1) float32[8] -> float32[] at line 4, as dispatch 2. "
         "None of it has run, but after an"),
        (None, None, dict.fromkeys((1, 2), "was not asked to run the cell"),
         "; processes 1-2: were not asked to run the cell. None of it has run"),
    ],
    ids=["left", "fewer", "not asked"],
)  # fmt: skip
def test_strict_mode_says_what_each_did_and_that_nothing_has_run(
    other: Dispatch | None, third: Dispatch | None, notes: dict[int, str], said: str
) -> None:
    made = {0: dispatch(3, 1, 4), 1: other, 2: third}
    text = disagreement(sides(made, notes), dispatch(3, 1, 4))
    assert "do not agree on dispatch 3 over processes 0-2: process" in text
    assert said in text


def test_strict_mode_says_once_what_all_were_to_dispatch() -> None:
    made = {i: replace(dispatch(1, 1, 4), inputs=i) for i in ALL}
    texts = {disagreement(sides({me: made[me], **made}, {}), made[me]) for me in ALL}
    assert texts == {
        "The processes do not agree on dispatch 1 over processes 0-2: different inputs on "
        "processes 0 / 1 / 2, where all were to dispatch jit(f1) float32[8] -> float32[] at line "
        "4. None of it has run, so no process waits, and earlier results are "
        "valid."
    }
    made = {i: replace(dispatch(1, 1, 4), fingerprint=7 + (i == 1)) for i in ALL}
    assert ": different programs on processes 0,2 / 1, where all were" in disagreement(
        sides(made, {}), made[0]
    )


def test_arguments_of_other_shapes_are_told_wherever_they_stand() -> None:
    many = [given(*range(6), 12 if i == 1 else 8) for i in ALL]
    made = [dispatch(1, i == 1, name="jit(step)", arguments=many[i]) for i in ALL]
    text = disagreement(sides(at(*made), {}), made[0])
    assert "jit(step) f[0], f[1], f[2], f[3], … 3 more -> float32[] at line 1" in text
    assert (
        "processes 0-2: argument 7 of 7 is f[8] on processes 0,2, f[12] on process 1; different"
        in text
    )
    other = dispatch(1, 9, name="jit(other)", arguments=given(9))
    assert "argument" not in disagreement(sides(at(made[0], other, made[0]), {}), made[0])


@pytest.mark.parametrize(
    ("made", "odd"),
    [
        ((dispatch(3, 1), dispatch(3, 1), None), "process 2 had finished"),
        ((None, None, dispatch(3, 1)), "process 2 differs from the others"),
        ((dispatch(3, 1), dispatch(3, 2), dispatch(3, 1)), "process 1 differs from the others"),
        ((dispatch(3, 1), dispatch(3, 2)), ""),
    ],
)
def test_the_odd_ones_are_the_fewest_or_who_has_left(
    made: tuple[Dispatch | None, ...], odd: str
) -> None:
    assert odd_ones(sides(dict(enumerate(made)), {})) == odd


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("dispatch", "stopped at different steps: these variables mix shards"),
        ("created", "bound a name to different arrays on different processes. `x`: made at line 2"),
    ],
)
def test_arrays_of_other_shapes_are_of_no_other_step(kind: OriginKind, said: str) -> None:
    """A process had ten rows, and the others sixteen: nothing has stopped there."""
    sides = [
        ((i,), Argument(0, "x", i, Made(i, kind, "make_array_from_callback", 3, 1, 2, i)))
        for i in range(2)
    ]
    assert said in unequal_names_text(4, [Difference("x", tuple(sides))])


@pytest.mark.parametrize(
    ("spans", "count"), [(((0, 1), (0, 1)), 1), (((0,), (1,)), 0), (((0, 1), (1,)), 1)]
)
def test_arrays_over_other_processes_are_no_parts_of_one(
    spans: tuple[Processes, Processes], count: int
) -> None:
    made = [Made(i + 1, "dispatch", "jit(f)", 3, 1, 2) for i in range(2)]
    bound = {i: {"x": Argument(0, "x", i, made[i], processes=spans[i])} for i in range(2)}
    assert len(differing_names(bound)) == count


def test_the_argument_that_one_has_more_is_named() -> None:
    one = dispatch(1, 5, names=("params['w']", "k"))
    more = Shapes(("float32[8]",) * 3, 3)
    other = dispatch(1, 6, name=one.name, arguments=more, names=("params['b']", "params['w']", "k"))
    found = replace(one, arguments=Shapes(("float32[8]",) * 2, 2))
    assert differing_arguments(sides({0: found, 1: other, 2: other}, {})) == (
        "the arguments are 3 on processes 1-2, 2 on process 0 (`params['b']`)"
    )


# ---------------------------------------------------------- two compiled programs as one short diff


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


def test_a_constant_is_named_with_its_values() -> None:
    summary, lines = compared(HLO, HLO.replace("constant(3)", "constant(4)"))
    assert summary == (
        "The programs differ first in a constant (f32[]) at line 5 of cell [3]: "
        "3 on processes 0,2-3, 4 on process 1."
    )
    assert lines[:2] == ["--- processes 0,2-3", "+++ process 1"]
    assert "-f32[] constant(3)   # line 5 of cell [3]" in lines
    assert "+f32[] constant(4)   # line 5 of cell [3]" in lines


def test_a_constant_of_a_shard_map_body_is_where_it_is_used() -> None:
    frames = Frames({
        1: (SourceLine("<cell 3>", 5, "body"), 0), 2: (SourceLine("<cell 3>", 9, "<module>"), 0)
    })  # fmt: skip
    called = 'metadata={op_name="jit(f)/shard_map%s" stack_frame_id=2}'
    text = HLO.replace("constant(3)", "constant(3), " + called % "").replace(
        'metadata={op_name="m" stack_frame_id=1}', called % "/broadcast.3"
    )
    lines = program_lines(text, frames)
    assert [each.source for each in lines if " constant(" in each.text] == ["<cell 3>:5"]


def test_of_each_program_the_constant_is_known_in_which_they_differ() -> None:
    others = [HLO.replace("constant(3)", f"constant({k})") for k in (4, 5)]
    programs = {(i,): program_lines(text, FRAMES) for i, text in enumerate([HLO, *others])}
    found = difference(programs)
    assert found is not None
    assert found.constants == tuple(((i,), f"{i + 3} at line 5 of cell [3]") for i in range(3))
    others = [HLO.replace("constant(3)", f"constant((3, {k}))") for k in (1, -0.5)]
    complexes = difference({(i,): program_lines(text, FRAMES) for i, text in enumerate(others)})
    assert complexes is not None
    assert [said.split()[0] for _, said in complexes.constants] == ["3+1j", "3-0.5j"]
    found = difference(programs | {(3,): program_lines(HLO.replace("3)", "3.5)"), FRAMES)[:-1]})
    assert found is not None
    assert found.constants == ()
    # A constant, and an operation besides: it is not the constant alone.
    other = others[0].replace(" broadcast(f32[] tmp_1), dim", " negate(f32[] tmp_1), dim")
    found = difference({(0,): program_lines(HLO, FRAMES), (1,): program_lines(other, FRAMES)})
    assert found is not None
    assert found.constants == ()


def test_an_operation_is_named_that_another_stands_for() -> None:
    other = HLO.replace(" broadcast(f32[] tmp_1), dim", " negate(f32[] tmp_1), dim")
    summary, lines = compared(HLO, other)
    assert summary == f"The programs differ first at line 5 of cell [3].{TRACED}"
    assert any(line.startswith("-") and "broadcast" in line for line in lines)
    assert any(line.startswith("+") and "negate" in line for line in lines)


def test_a_long_line_shows_where_it_differs() -> None:
    long = HLO.replace('{"x":1}', '{"w":"' + "w" * 300 + '","x":1}')
    _, lines = compared(long, long.replace('"x":1', '"x":2'))
    assert any(line.startswith("-") and '"x":1' in line for line in lines)
    assert any(line.startswith("+") and '"x":2' in line for line in lines)
    assert max(map(len, lines)) < 200


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
    lines = program_lines(HLO, FRAMES)
    for known in ({}, {BOTH[0]: [], BOTH[1]: lines}, {BOTH[0]: lines, BOTH[1]: lines}):
        assert difference(known) is None


# ----------------------------------------------------------- what sentences call the code that runs


MADE = Made(3, "dispatch", "jit(step)", 12, 7, 2)


def test_sentences_about_cells_speak_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    in_cell = silent_text([0], {}, 5.0, caught=True, press="Ctrl-C")
    assert "end the cell either, it is ended by force, and new processes take" in in_cell
    assert scripts.cell_label(12) == "cell [12]"
    monkeypatch.setattr(scripts, "_script", "")
    scripts.begin_script("train.py")
    assert origin_text(MADE, 3) == "result of jit(step), dispatch 7 of train.py, line 2"
    assert (
        str(Dispatch(1, "jit(f)", 0, None, None, (0, 1), None, 0.0))
        == "jit(f) outside the script's lines"
    )
    said = silent_text([0, 1], {}, 5.0, caught=True, press="Ctrl-C")
    assert said.endswith("to end the script: they are ended by force.")
