"""The card of what a call compiles to, in plain text and HTML."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jaxnb.compiled.card_collectives import collectives_card
from jaxnb.model.arrays import MeshInfo
from jaxnb.model.compiled import Collective, CompiledReport, Memory, Part, SourceLine

MESH = MeshInfo(("data", "model"), (2, 4), ("Auto", "Auto"), tuple(range(8)))
ONE = Collective(
    kind="all-reduce",
    axes=("model",),
    whole_axes=True,
    group_size=4,
    num_groups=2,
    parts=(Part("float32", (8, 64), 2048),),
    bytes=3072,
    count=1,
    source=SourceLine("<cell 3>", 5),
    operation="jit(mlp)/dot_general",
)
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


def test_the_text() -> None:
    assert collectives_card(REPORT).text == TEXT


def test_the_html() -> None:
    html = collectives_card(REPORT).html
    for said in ("<b>jit(mlp)</b> · 8 devices", ">f32[8,64]</td>", "cell [3] line 5",
                 '<tr title="jit(mlp)/dot_general"', 'font-weight:bold">model</td>'):  # fmt: skip
        assert said in html


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"count": None}, ["      ?  cell", "model  ≥ 3.00 KiB", "?: in a loop"]),
        ({"at_most": True}, ["≤ 1  cell", "model  ≤ 3.00 KiB", "≤: in a branch"]),
        ({"axes": (), "whole_axes": False}, ["all-reduce  no axis", "\n  no axis  3.00 KiB"]),
        ({"whole_axes": False}, ["all-reduce  model (part)", "(part): groups"]),
        ({"axes": ("data", "model")}, ["all-reduce  data, model"]),
        ({"axes": (), "bytes": 0}, ["all-reduce  itself"]),
        ({"asynchronous": True}, ["all-reduce async"]),
        ({"source": None}, ["1  –"]),
        ({"parts": ONE.parts * 4}, ["4 × f32[8,64]"]),
        ({"parts": (*ONE.parts, Part("bfloat16", (3,), 6))}, ["f32[8,64] + 1 more"]),
        ({"count": 12345}, ["12 345"]),
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


def test_a_program_without_collectives_and_without_costs() -> None:
    text = collectives_card(CompiledReport("jit(f)", "gpu", 1, (), ())).text
    assert text == "jit(f) · 1 device · no collectives · compiled, not run"
    planned = collectives_card(replace(REPORT, num_devices=256), planned=True).text
    assert planned.startswith("jit(mlp) · planned for 256 devices · mesh data 2 × model 4")
    loops = collectives_card(replace(REPORT, has_loops=True)).text
    assert "XLA counts the body of a loop once" in loops
    widened = collectives_card(replace(REPORT, widened=True)).text
    assert "XLA moves bfloat16 as float32" in " ".join(widened.split())
    donated = collectives_card(replace(REPORT, memory=Memory(1, 2, 3, 2))).text
    assert "outputs 2 B (2 B donated)" in donated
    assert "From XLA's CPU" not in collectives_card(replace(REPORT, platform="gpu")).text


def test_what_the_user_names_is_escaped() -> None:
    bad = "<script>alert(1)</script>"
    one = replace(ONE, axes=(bad,), operation=bad, source=SourceLine(bad, 1))
    mesh = MeshInfo((bad,), (8,), ("Auto",), tuple(range(8)))
    html = collectives_card(CompiledReport(bad, "cpu", 8, (mesh,), (one,))).html
    assert "<script" not in html
    assert "&lt;script" in html
