"""Comparing shardings: what is best, what is warned of, the card, the chart, the code."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

import jaxnb
from jaxnb.compiled import comparing, ranking
from jaxnb.compiled.card_comparison import comparison_card
from jaxnb.compiled.comparison import Comparison
from jaxnb.compiled.ranking import LARGE_BYTES, warnings_of
from jaxnb.errors import UsageError
from jaxnb.magics.compiling import _variants, compare_parser
from jaxnb.model.arrays import MeshInfo
from jaxnb.model.cells import ProcessError
from jaxnb.model.compiled import (
    Collective,
    ComparisonReport,
    CompiledReport,
    LeafLayout,
    Memory,
    OutputWarning,
    Part,
    Timing,
    Variant,
    VariantFailure,
)

MESH = MeshInfo(("data", "model"), (4, 2), ("Auto", "Auto"), tuple(range(8)))
GATHER = Collective(
    kind="all-gather", axes=("data",), whole_axes=True, groups=((0, 1, 2, 3), (4, 5, 6, 7)),
    parts=(Part("float32", (64, 64), 16384),), bytes=12288, scatter_bytes=12288, count=2,
)  # fmt: skip
REPORT = CompiledReport("jit(f)", "cpu", 8, (MESH,), (GATHER,), memory=Memory(400, 200, 100, 0))


def variant(name: str, nbytes: int, seconds: float, high: float | None = None) -> Variant:
    timing = Timing(seconds, seconds * 0.9, high or seconds * 1.1, 10, 0.5, 3)
    return Variant(name, MESH, REPORT, nbytes, 2, 700 + nbytes, 0.25, timing)


FSDP = variant("fsdp", 24576, 0.002)
TENSOR = variant("tensor", 4096, 0.004)
ERROR = ProcessError("ValueError", "no such luck\nmore", "", "")
BROKEN = Variant("broken", MESH, failure=VariantFailure("lowered", "", ERROR))
THREE = ComparisonReport("mlp", (FSDP, TENSOR, BROKEN), 4)


# ---------------------------------------------------------------------- what is best


def test_the_least_of_each_column_is_best() -> None:
    found = Comparison(THREE)
    assert found.best("bytes") is found.best("memory") is found["tensor"]
    assert found.best("time") is found["fsdp"]
    assert ranking.marked(THREE.variants, "bytes") == [False, True, False]
    assert ranking.marked(THREE.variants, "compile") == [False, False, False]  # all alike
    assert ranking.marked([FSDP, BROKEN], "bytes") == [False, False]  # one alone
    # Times that cannot be told apart are all marked.
    slow, near = variant("slow", 1, 0.009), variant("near", 1, 0.0021)
    assert ranking.marked([slow, FSDP, near], "time") == [False, True, True]
    wide = replace(FSDP, timing=Timing(0.002, 0.002, 0.009, 5, 0.1))
    assert ranking.marked([slow, wide], "time") == [False, False]


def test_a_loop_goes_through_the_rows() -> None:
    assert [each.name for each in Comparison(THREE)] == ["fsdp", "tensor", "broken"]


def test_columns_and_variants_that_there_are_not() -> None:
    found = Comparison(THREE)
    with pytest.raises(UsageError, match=r"no column 'tine'. Did you mean 'time'\?"):
        found.best("tine")  # type: ignore[arg-type]
    with pytest.raises(KeyError, match=r"no variant 'fsd'. Did you mean 'fsdp'"):
        found["fsd"]
    unrun = ComparisonReport("f", (replace(FSDP, timing=None),), not_run="it was not asked for")
    with pytest.raises(UsageError, match="'time': it was not asked for"):
        Comparison(unrun).best("time")


# ---------------------------------------------------------------------- warnings


SIZES = {"data": 4, "model": 2}


def leaf(path: str, *axes: tuple[str, ...], size: int = 1024, key: str = "") -> LeafLayout:
    shape = (size,) * len(axes)
    nbytes = 4 * size ** len(axes)
    parts = math.prod(SIZES[axis] for each in axes for axis in each)
    kind = f"float32[{','.join(map(str, shape))}]"
    return LeafLayout(path, key, kind, shape, nbytes, nbytes // parts, axes, parts == 1)


D, M, N = ("data",), ("model",), ()


def said(arguments: list[LeafLayout], output: LeafLayout) -> list[tuple[str, str]]:
    return [(w.kind, w.expected) for w in warnings_of(arguments, [output], SIZES)]


@pytest.mark.parametrize(
    ("argument", "output", "expected"),
    [
        ((D, N), (N, N), "P('data')"),
        ((D, M), (D, N), "P('data', 'model')"),
        ((D, N), (N, D), "P('data')"),
        ((("data", "model"),), (D,), "P(('data', 'model'))"),
        # Split alike or further:
        ((D, N), (D, N), None),
        ((D, N), (D, M), None),
        ((N, N), (D, N), None),
    ],
)
def test_an_output_that_lost_an_axis_of_its_argument(
    argument: Any, output: Any, expected: str | None
) -> None:
    found = warnings_of([leaf("w", *argument)], [leaf("output", *output)], SIZES)
    assert [each.expected for each in found] == ([expected] if expected else [])
    for each in found:
        assert (each.kind, each.output, each.argument) == ("resharded", "output", "w")
        assert each.device_bytes >= each.expected_bytes


def test_names_tell_which_argument_an_output_answers_to() -> None:
    arguments = [leaf("p['a']", D, N, key="['a']"), leaf("p['b']", N, M, key="['b']")]
    assert said(arguments, leaf("output['b']", N, N, key="['b']")) == [
        ("resharded", "P(None, 'model')")
    ]
    assert said(arguments, leaf("output['a']", D, N, key="['a']")) == []
    # Without a name it might be either, so nothing is said of what a product of two is.
    assert said(arguments, leaf("output", N, M)) == []


def test_a_large_output_that_every_device_holds() -> None:
    arguments = [leaf("x", D, N, size=512)]
    assert said(arguments, leaf("output", N, N)) == [("replicated", "P('data')")]
    assert said(arguments, leaf("output", D, N)) == []
    assert said([leaf("x", N, N, size=512)], leaf("output", N, N)) == []  # nobody split anything
    small = leaf("output", N, size=LARGE_BYTES // 4 - 4)
    assert said(arguments, small) == []
    assert said(arguments, leaf("output", N, size=LARGE_BYTES // 4)) == [
        ("replicated", "P('data')")
    ]
    assert said(arguments, leaf("output", N, size=(1 << 20) + 2)) == [("replicated", "P('model')")]
    assert said(arguments, leaf("output", N, size=(1 << 20) + 1)) == []  # no axis divides it


# ---------------------------------------------------------------------- the card


def test_the_card_marks_the_best_without_colour() -> None:
    card = comparison_card(THREE)
    lines = card.text.splitlines()
    assert lines[0] == ("mlp · 3 shardings · 8 devices · mesh data 4 × model 2 · 4 processes")
    assert lines[1] == "  10 calls each"
    assert lines[2:6] == [
        "  sharding      sends     memory  compile      call",
        "  fsdp       24.0 KiB   24.7 KiB   250 ms  *2.00 ms  1.80–2.20 ms",
        "  tensor    *4.00 KiB  *4.68 KiB   250 ms   4.00 ms  3.60–4.40 ms",
        "  broken            –          –        –         –",
    ]
    assert lines[6:8] == [
        "  sharding  collectives of one call",
        "  fsdp      2 all-gather over data 24.0 KiB",
    ]
    assert "broken: JAX could not lower it: ValueError: no such luck" in lines
    assert "In all of them process 3 was the slowest." in " ".join(card.text.split())
    assert max(map(len, lines)) <= 80
    assert 'font-weight:bold" title="best of this column">4.00 KiB ★</td>' in card.html
    assert card.html.count("★") == 4  # three of columns, one in the note
    report = replace(REPORT, collectives=(replace(GATHER, count=None),))
    text = comparison_card(replace(THREE, variants=(replace(FSDP, report=report), TENSOR))).text
    assert "  fsdp      ≥ 1 all-gather over data 12.0 KiB" in text
    assert "nowrap" not in card.html  # which would be cut on a narrow page


def test_other_meshes_warnings_and_what_was_not_run() -> None:
    other = replace(TENSOR, mesh=MeshInfo(("x",), (4,), ("Auto",), (0, 1, 2, 3)), timing=None)
    warning = OutputWarning(
        "resharded", "output['w']", "float32[64,64]", "P()", 16384, "P('data')", 4096, "w"
    )
    warned = replace(FSDP, timing=None, warnings=(warning,) * 10)
    report = ComparisonReport("f", (warned, other), 1, "it was not asked for", ("A note.",))
    card = comparison_card(report)
    flat = " ".join(card.text.split())
    assert card.text.startswith("f · 2 shardings · compiled, not run\n")
    assert "mesh data 4 × model 2: fsdp; mesh x 4: tensor." in flat
    assert (
        "! fsdp: output['w'], float32[64,64], came out as P(), 16.0 KiB on each device; the "
        "argument w, of the same shape, is P('data'): 4.00 KiB."
    ) in flat
    assert "! … 2 more outputs; `.warnings` has all." in flat
    assert "Nothing was run: it was not asked for. Sends" in flat
    assert "A note." in flat
    assert card.html.count("border-left:3px solid") == 9
    assert ">x 4</td>" in card.html


def test_what_the_user_names_is_escaped() -> None:
    bad = "<script>alert(1)</script>"
    failed = replace(BROKEN, name=bad, failure=VariantFailure("run", bad))
    html = comparison_card(ComparisonReport(bad, (failed, FSDP), notes=(bad,))).html
    assert "<script" not in html
    assert "&lt;script" in html


# ---------------------------------------------------------------------- the chart


def test_the_chart() -> None:
    card = Comparison(THREE).plot()
    titles = ["each device sends in one call", "memory of each device", "compile time"]
    for title in [*titles, "time of one call"]:
        assert f"\n{title}" in card.text
    fsdp, tensor, broken = card.text.split("\n")[2:5]
    assert fsdp.lstrip().startswith("fsdp · 24.0 KiB  ████")
    assert tensor.lstrip().startswith("tensor · ★ 4.00 KiB  ████")
    assert broken.split() == ["broken", "·", "–"]
    assert Comparison(ComparisonReport("f", (BROKEN,))).plot().text == "f · 1 sharding"
    unrun = ComparisonReport("f", (replace(FSDP, timing=None),))
    assert "time of one call" not in Comparison(unrun).plot().text


# ---------------------------------------------------------------------- from text to code


def test_the_code_that_compares_on_a_process() -> None:
    specs = {"a": "P('data'), P()", "b": "None"}
    code = comparing.code_of("f(x, w, axis=0)", specs, {"data": 4}, {"a": "None"}, 3, False)
    assert code == (
        "__import__('jaxnb').compare(f, (x, w), kwargs={'axis': 0}, "
        "specs={'a': (P('data'), P()), 'b': None}, mesh={'data': 4}, "
        "out_specs={'a': None}, repeats=3, run=False)"
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"specs": {}}, "Give each sharding a name"),
        ({"specs": {1: "P()"}}, "A variant's name must be text, not 1"),
        ({"out_specs": {"b": "P()"}}, "There is no variant 'b': `specs` has 'a'"),
        ({"repeats": 0}, "`repeats` is a whole number from 1, not 0"),
    ],
)
def test_what_is_no_comparison(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        jaxnb.compare(print, (), **{"specs": {"a": None}} | settings)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("call", "settings", "said"),
    [
        ("f", {}, "`f` is not a call"),
        ("f(x)", {"specs": {"a": "P("}}, "specs['a'] is 'P(', which is not a Python"),
        ("f(x)", {"specs": {"a": object()}}, "an object of type object, which lives in this"),
    ],
)
def test_what_is_no_expression(call: str, settings: dict[str, object], said: str) -> None:
    given = {"specs": {"a": "P()"}, "mesh": None, "out_specs": None,
             "repeats": None, "run": True} | settings  # fmt: skip
    with pytest.raises(UsageError) as caught:
        comparing.code_of(call, **given)  # type: ignore[arg-type]
    assert said in str(caught.value)


# ---------------------------------------------------------------------- the magic's line


def test_a_line_with_options_before_and_behind_the_call() -> None:
    parser = compare_parser("%spmd_compare")
    line = """--repeats 3 mlp(x, w, axis=0) --spec data="P('data'), P()" --spec b=P() """
    asked = parser.parse_line(line + "--mesh {'data': 4} --plot --out found")
    assert " ".join(asked.words) == "mlp(x, w, axis=0)"
    assert asked.spec == [("data", "P('data'), P()"), ("b", "P()")]
    assert (asked.mesh, asked.repeats, asked.plot, asked.out) == ("{'data': 4}", 3, True, "found")
    cell = "a = P('data'), P()\n# a comment\nb = {'w': P(),\n     'b': None}"
    assert _variants(parser, [("c", "P()")], cell) == {
        "c": "P()", "a": "(P('data'), P())", "b": "{'w': P(), 'b': None}",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "cell", "said"),
    [
        ("f(x)", None, "there is no sharding to compare; give one or more: --spec"),
        ("f(x)", "P()", "`P()` is not a variant: each line of the cell is NAME = SPECS"),
        ("f(x)", "a = P(", "The cell is not valid Python at line 2"),
        ("f(x)", "a = P()\na = P('x')", "the variant 'a' is there twice"),
        ("f(x) --specs a=P()", None, "unknown option '--specs'. Did you mean '--spec'?"),
        ("f(x", None, "')' is missing"),
    ],
)
def test_lines_that_cannot_be_read(line: str, cell: str | None, said: str) -> None:
    parser = compare_parser("%spmd_compare")
    with pytest.raises(UsageError) as caught:
        _variants(parser, parser.parse_line(line).spec, cell)
    assert said in str(caught.value)
