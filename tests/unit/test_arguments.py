"""The magics' command lines."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from jaxnb.arrays.blocks import fitting
from jaxnb.errors import UsageError
from jaxnb.labels import ranks_label
from jaxnb.magics import spmd  # noqa: F401  # which registers its parsers
from jaxnb.magics.arguments import (
    PARSERS,
    cell_parser,
    ranks,
    split_options,
    split_words,
    variable,
)
from jaxnb.magics.values import chosen, wishes

start_parser, pull_parser, push_parser, layout_parser = (
    PARSERS[f"spmd_{name}"] for name in ("start", "pull", "push", "layout")
)


@given(st.sets(st.integers(0, 300), min_size=1))
def test_ranks_reads_what_labels_say(indices: set[int]) -> None:
    assert ranks(ranks_label(indices)) == tuple(sorted(indices))


@given(st.text(max_size=12))
def test_ranks_of_anything_are_indices_or_an_error(text: str) -> None:
    try:
        found = ranks(text)
    except argparse.ArgumentTypeError:
        return
    assert found
    assert list(found) == sorted(set(found))
    assert found[0] >= 0


@pytest.mark.parametrize("text", ["", "a", "1,", ",1", "1-", "-1", "1--2", "0-x", "1;2", "0x1"])
def test_ranks_that_name_no_processes(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="does not name processes"):
        ranks(text)
    for other, said in (("0, 3-1", "'3-1' runs backwards"), ("0-99999999999999", "too many")):
        with pytest.raises(argparse.ArgumentTypeError, match=said):
            ranks(other)


@pytest.mark.parametrize("text", ["", "1x", "a b", "a.b", "a-b", "class"])
def test_variable_is_a_name(text: str) -> None:
    assert variable("größe_1") == "größe_1"
    with pytest.raises(argparse.ArgumentTypeError, match="is not a name"):
        variable(text)


def test_start_line_in_full() -> None:
    found = start_parser().parse_line(
        "-n 8 --devices-per-process 2 --platform cpu --launcher local --collectives gloo "
        "--compile-cache off --check strict --no-pitfalls --bare --timeout 30"
    )
    assert (found.num_processes, found.devices_per_process, found.platform) == (8, 2, "cpu")
    assert (found.launcher, found.collectives, found.compile_cache) == ("local", "gloo", "off")
    assert (found.check, found.pitfalls, found.bare, found.timeout) == ("strict", False, True, 30.0)


def test_cell_line_in_full() -> None:
    found = cell_parser("%%spmd").parse_line(
        "--ranks 0,2-3 --out r --async --timeout 1.5 --check off --nans --outputs all"
    )
    assert (found.ranks, found.out, found.background) == ((0, 2, 3), "r", True)
    assert (found.timeout, found.check, found.outputs) == (1.5, "off", "all")
    assert (found.nans, found.infs, found.time, found.repeats) == (True, False, False, None)


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("--ranke 0", "unknown option '--ranke'. Did you mean '--ranks'?"),
        ("--rank 0", "unknown option '--rank'. Did you mean '--ranks'?"),  # no abbreviations
        ("--timout=3", "unknown option '--timout'. Did you mean '--timeout'?"),
        ("--qqqqqqqq", "unknown option '--qqqqqqqq'."),
        ("--ranks", "expected one argument"),
        ("--ranks 0 --out 1x", "'1x' is not a name"),
        ("--timeout soon", "invalid positive_seconds value: 'soon'"),
        ("--timeout 0", "0 is not above 0 seconds"),
        ("--timeout nan", "nan is not above 0 seconds"),
        ("--out 'r", "the line cannot be split into words"),
        (
            "--ranks 0 --time --ranks=1",
            "`--ranks 0` and `--ranks=1` are both given: type `--ranks 0,1`.",
        ),
        ("--out a --time --time --out b", "`--out a` and `--out b` are both given: keep one"),
    ],
)
def test_lines_that_cannot_be(line: str, part: str) -> None:
    with pytest.raises(UsageError) as raised:
        cell_parser("%%spmd").parse_line(line)
    message = str(raised.value)
    assert message.startswith("%%spmd: ")
    assert part in message
    assert message.endswith("Type `%%spmd?` for all options.")


def test_help_wins_over_what_else_is_wrong() -> None:
    assert cell_parser("%%spmd").parse_line("--help --nonsense").help


@pytest.mark.parametrize(
    ("line", "options", "code"),
    [
        ("  x = 'a  b'  ", "", "x = 'a  b'  "),
        ("-x + 1", "", "-x + 1"),
        ("--ranks 0 -x + 1", "--ranks 0", "-x + 1"),
        ("--ranks=0,2 print('a  \"b\"')", "--ranks=0,2", "print('a  \"b\"')"),
        ("--async --out r  f(--y)", "--async --out r", "f(--y)"),
        ("--async", "--async", ""),
        ("-h", "-h", ""),
        ("f(x) --timeout 3", "--timeout 3", "f(x)"),
        ("--ranks 0 f(x) --timeout 3 --time", "--ranks 0 --timeout 3 --time", "f(x)"),
        ("f(x) --timeuot 3", "--timeuot 3", "f(x)"),  # which is an error then
        ("x --y", "", "x --y"),
        ("a = 3  # as with --ranks 0", "", "a = 3  # as with --ranks 0"),
        ("print(3) # see --ranks 0 for one", "", "print(3) # see --ranks 0 for one"),
        ("{'a': ' --time'}", "", "{'a': ' --time'}"),
        ("5 --ranks {k}", "--ranks {k}", "5"),
        ("!ls --time", "", "!ls --time"),
        ("files = !ls --all", "", "files = !ls --all"),
    ],
)
def test_one_line_is_options_then_code(line: str, options: str, code: str) -> None:
    assert split_options(line, cell_parser("%spmd")) == (options, code)


def test_a_misspelt_option_before_code_is_not_taken_for_code() -> None:
    with pytest.raises(UsageError, match=r"unknown option '--rank'. Did you mean '--ranks'"):
        split_options("--rank 0 x.sum()", cell_parser("%spmd"))


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=40))
def test_code_keeps_every_character(code: str) -> None:
    assume("--" not in code)
    line = "--ranks 0 (" + code
    assert split_options(line, cell_parser("%spmd")) == ("--ranks 0", "(" + code)


# ---------------------------------------------------------------------- names, paths and specs


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", []),
        ("x[..., :3] y", ["x[..., :3]", "y"]),
        ("state.opt['m u'] # why", ["state.opt['m u']"]),
        ("d['#'] d['[']", ["d['#']", "d['[']"]),
        (r"d['\'] '] x", [r"d['\'] ']", "x"]),
        ("w --spec P('data', None)", ["w", "--spec", "P('data', None)"]),
        ("f({'a': [1, (2, 3)]}) x", ["f({'a': [1, (2, 3)]})", "x"]),
    ],
)
def test_words_end_outside_of_brackets_and_quotes(line: str, words: list[str]) -> None:
    assert split_words(line) == words


@given(st.text(st.sampled_from("x y[](){}'\"\\#,-"), max_size=20))
def test_any_line_is_words_or_an_error(line: str) -> None:
    try:
        words = split_words(line)
    except ValueError:
        return
    assert all(words)
    place = 0
    for word in words:  # in order, every character kept
        place = line.index(word, place) + len(word)


@pytest.mark.parametrize("line", ["x[0", "x]", "d['a]", "P(('a')", "x[(])", "'"])
def test_brackets_and_quotes_must_match(line: str) -> None:
    with pytest.raises(UsageError, match="the line cannot be split into words"):
        pull_parser().parse_line(line)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("P('data', None)", ("data", None)),
        ("('data', None)", ("data", None)),
        ("\"P('data', None)\"", ("data", None)),
        ("{'w': P('data', None), 'b': P()}", {"w": ("data", None), "b": ()}),
    ],
)
@pytest.mark.parametrize(
    "line", ["w v --spec {}", "--spec {} w v", "w --spec={} v", "--mesh m --spec {} w v"]
)
def test_specs_as_typed(line: str, text: str, spec: object) -> None:
    found = push_parser().parse_line(line.format(text))
    assert found.spec == spec
    assert found.names == ["w", "v"]


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("w --spec data", "'data' is not a partition spec"),
        ("w --spec P(data)", "is not a partition spec"),
        ("w --spec P ('data')", "'P' is not a partition spec"),
        ("w --sepc P('x')", "unknown option '--sepc'. Did you mean '--spec'?"),
    ],
)
def test_pushes_that_cannot_be(line: str, part: str) -> None:
    with pytest.raises(UsageError) as raised:
        push_parser().parse_line(line)
    assert part in str(raised.value)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("x", {"x": "x"}),
        ("x y x --ranks 0,2", {"x": "x", "y": "y"}),
        ("x[..., :3] --as y", {"y": "x[..., :3]"}),
        ("--as=y 'x[0]'", {"y": "x[0]"}),
        ("x [0] .T --as y", {"y": "x[0].T"}),
    ],
)
def test_pulls_as_typed(line: str, expected: dict[str, str]) -> None:
    assert wishes(pull_parser().parse_line(line), []) == expected


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("", "Nothing to pull"),
        ("x.y", "`%spmd_pull x.y --as NAME`"),
        ("x y --as z", "there are 2 to pull"),
        ("x + 1 --as y", "'x + 1' is not a name"),
        ("x --as y --as=z", "`--as y` and `--as=z` are both given: keep one of them"),
        ("taken", "`taken` holds the session"),
        ("_", "IPython's own"),
    ],
)
def test_pulls_that_cannot_be(line: str, part: str) -> None:
    with pytest.raises(UsageError) as raised:
        wishes(pull_parser().parse_line(line), ["taken"])
    assert part in str(raised.value)
    assert "--help" in str(raised.value) or "Nothing was moved" in str(raised.value)


def test_pushes_are_of_variables() -> None:
    variables = {"weights": 1, "_hidden": 2}
    assert chosen(["weights"], variables) == {"weights": 1}
    for names, part in {
        (): "Nothing to push",
        ("wieghts",): "no variable `wieghts`. Did you mean 'weights'?",
        ("weights[0]",): "only whole variables",
        ("hidden",): "no variable `hidden`. Nothing",
    }.items():
        with pytest.raises(UsageError) as raised:
            chosen(names, variables)
        assert part in str(raised.value)
        assert "Nothing was moved." in str(raised.value)
    with pytest.raises(UsageError, match=r"no variable `nope`\. Nothing was moved"):
        chosen(["nope"], {"open": print}, ["open"])


def test_a_layout_is_of_names_or_of_a_spec() -> None:
    asked = layout_parser().parse_line("state.opt[ 'mu' ] x --bars --call 'step(x, 1)'")
    assert asked.names == ["state.opt[ 'mu' ]", "x"]
    assert (asked.bars, asked.call) == (True, "step(x, 1)")
    asked = layout_parser().parse_line("P('data', None) --shape 8,8")
    assert (asked.names, asked.shape) == (["P('data', None)"], (8, 8))
    assert layout_parser().parse_line("P() --shape ()").shape == ()
    with pytest.raises(UsageError, match="'8,x' is not a shape; write it like 8,8"):
        layout_parser().parse_line("P() --shape 8,x")


@pytest.mark.parametrize(
    ("spec", "shape", "fits"),
    [
        (("data", None), (6, 8), ("model", None)),
        (("data", "model"), (6, 4), (None, "model")),
        ((("data", "model"),), (12,), ("data",)),
        (("dat",), (8,), ("data",)),
        (("data", "data"), (8, 8), ("data", "model")),
        (("data", None, None), (8, 8), ("data", None)),
        (("model",), (7,), (None,)),
        (("data", ("model",)), (8, 8), ("data", ("model",))),
    ],
)
def test_a_spec_that_does_not_fit_has_one_near_that_does(spec: Any, shape: Any, fits: Any) -> None:
    assert fitting(spec, shape, {"data": 4, "model": 2}) == fits
