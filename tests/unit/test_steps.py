"""Steps of several processes as one list, and their card."""

from __future__ import annotations

from dataclasses import replace

from jaxnb.debugging.card_steps import MAX_BOXES, steps_card
from jaxnb.debugging.steps import joined
from jaxnb.model.arrays import MeshInfo
from jaxnb.model.scripts import SourceLine
from jaxnb.model.steps import Step, StepTrail, StepValue
from support.cards import EVIL, Tags

MESH = MeshInfo(("a", "b"), (2, 2), ("Auto", "Auto"), (0, 1, 2048, 2049))


def step(line: int, blocks: dict[int, str], name: str = "s") -> Step:
    value = StepValue(name, "float32[1]", blocks, mesh=MESH)
    return Step(SourceLine("<cell 7>", line, "f"), f"{name} = …", (value,))


def trail(process: int, lines: int, **more: int) -> StepTrail:
    first = 2048 * process
    blocks = {first: f"[{process}]", first + 1: f"[{process}.5]"}
    return StepTrail(tuple(step(k, blocks) for k in range(lines)), **more)


def test_blocks_of_all_processes_are_one_picture() -> None:
    steps = joined({1: trail(1, 2, more=3), 0: trail(0, 2, more=3)})
    assert steps.more == 3
    assert steps.apart == ""
    assert str(steps) == (
        "5 steps · mesh a 2 × b 2 · without `jit`\n"
        "mesh · axes Auto\n"
        "↓ a · 2, → b · 2\n"
        "    0     1\n"
        "    2048  2049\n"
        "cell [7] · `f`\n"
        "line 0: `s = …`\n"
        "  `s` · float32[1]\n"
        "       b 0  b 1\n"
        "  a 0  [0]  [0.5]\n"
        "  a 1  [1]  [1.5]\n"
        "line 1: `s = …`\n"
        "  `s` · float32[1]\n"
        "       b 0  b 1\n"
        "  a 0  [0]  [0.5]\n"
        "  a 1  [1]  [1.5]\n"
        "… 3 more steps"
    )


def test_they_end_where_processes_run_different_lines() -> None:
    ahead = StepTrail((*trail(1, 1).steps, step(9, {})))
    steps = joined({0: trail(0, 1), 1: ahead, 2: StepTrail()})
    assert len(steps.steps) == 1
    assert steps.apart == (
        "Here processes ran different lines: process 0 ran no further line; "
        "process 1 ran cell [7] line 9."
    )
    assert steps.apart in " ".join(str(steps).split())


def test_what_differs_between_processes_is_told() -> None:
    first = Step(SourceLine("m.py", 3, "f"), "i = me", (StepValue("i", text="0"),))
    other = replace(first, values=(StepValue("i", text="1"),))
    raised = replace(first, at=SourceLine("m.py", 4, "f"), raised="ValueError")
    text = str(joined({0: StepTrail((first, first)), 1: StepTrail((other, raised))}))
    assert "m.py · `f`" in text
    assert "process 0 ran m.py:3; process 1 raised ValueError at m.py:4." in " ".join(text.split())
    assert "`i` · 0 on process 0; 1 on process 1" in text
    of_three = {i: StepTrail((other if i == 1 else first,)) for i in range(3)}
    assert "`i` · 0 on processes 0,2; 1 on process 1" in str(joined(of_three))


def test_a_card_is_inert_and_of_a_bounded_size() -> None:
    devices = tuple(range(1024))
    mesh = MeshInfo((EVIL,), (1024,), ("Auto",), devices)
    value = StepValue(EVIL, EVIL, {d: f"{EVIL}{d}" for d in devices}, EVIL, mesh)
    step = Step(SourceLine(EVIL, 1, EVIL), EVIL, (value,), EVIL)
    steps = joined({0: StepTrail((step,))})
    card = steps_card(steps)
    Tags(card.html)
    assert card.html.count("<td") <= 3 * MAX_BOXES
    assert "more devices" in card.text
    assert "No line within `shard_map`" in str(joined({}))
    apart = joined({0: StepTrail((step,)), 1: trail(1, 1)})
    assert (apart.steps, "ran different lines" in str(apart)) == ((), True)
