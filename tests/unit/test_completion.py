"""What is offered while a user types, and what to type instead after an error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxnb.assist import completion
from jaxnb.assist.completion import Assist, Code, MagicLine, hint, magic_at, magic_hint, place_at
from jaxnb.labels import MAGICS
from jaxnb.magics import compiling, helping, load, looking, spmd, state, values  # noqa: F401
from jaxnb.magics.helping import fits
from jaxnb.session.reach import Reach
from jaxnb.session.work import Work


def at(marked: str) -> Code | MagicLine | None:
    """Returns what stands where the ``|`` is."""
    offset = marked.index("|")
    cell = marked.replace("|", "", 1)
    found = place_at(cell, offset)
    if found is not None:
        assert cell[found.shift :].startswith(found.text)
        assert cell[: found.shift + found.offset] == cell[:offset]
    return found


@pytest.mark.parametrize(
    ("marked", "text"),
    [
        ("%%spmd\nx = jnp.|", "x = jnp."),
        ("%%spmd --ranks 1\nx\ny.|\nz", "x\ny.\nz"),
        ("\n\n%%spmd\nx|", "x"),
        ("%%spmd_compare f(x)\ndata = P|", "data = P"),
    ],
)
def test_the_body_of_a_cell_is_code(marked: str, text: str) -> None:
    found = at(marked)
    assert isinstance(found, Code)
    assert found.text == text


@pytest.mark.parametrize(
    ("marked", "magic"),
    [
        ("%%spm|d\nx", "spmd"),
        ("|%%spmd --out r", "spmd"),
        ("x\nr = %spmd_pull| x", "spmd_pull"),
        ("%%spmd |", ""),
        ("%time|it x", ""),
    ],
)
def test_a_magics_own_name(marked: str, magic: str) -> None:
    assert magic_at(marked.replace("|", ""), marked.index("|")) == magic


@pytest.mark.parametrize(
    ("marked", "magic", "text"),
    [
        ("%%spmd --ch|\nx", "spmd", "--ch"),
        ("a = 1\n  %spmd_pull x|\nb", "spmd_pull", "x"),
    ],
)
def test_behind_a_name_stands_a_line(marked: str, magic: str, text: str) -> None:
    found = at(marked)
    assert isinstance(found, MagicLine)
    assert (found.magic, found.text) == (magic, text)


@pytest.mark.parametrize(
    "marked",
    ["|", "x.|", "%%spmd|", "%%spm|d\nx", "|%%spmd\nx", "%time x|", "%%time\nx|", "x\n%%spmd\ny|",
     "'%%spmd'\nx|", "%spmd_pull|", "# %spmd x|", "é\n\n|", "print('%spmd x|')"],
)  # fmt: skip
def test_other_places_are_the_notebooks(marked: str) -> None:
    assert at(marked) is None


@pytest.mark.parametrize(
    ("marked", "expected"),
    [
        ("%%spmd --ch|", ["--check"]),
        ("%%spmd --check=s|", ["strict"]),
        ("%%spmd --outputs |", ["merged", "all", "first"]),
        ("%%spmd --ranks 0,2-|", ["0", "1", "2", "3"]),
        ("%%spmd --time --ti|", ["--timeout"]),
        ("%%spmd --out |", []),
        ("%spmd --check |", ["off", "strict"]),
        ("%spmd_start --launcher f|", ["fork"]),
        ("%spmd_compare f(x) --no|", ["--no-run"]),
        ("%spmd_auto of|", ["off"]),
        ("%spmd_steps --o|", ["--out", "--outputs"]),
    ],
)
def test_options_and_their_values(marked: str, expected: list[str]) -> None:
    line = at(marked)
    assert isinstance(line, MagicLine)
    found = fits(line, 4)
    assert isinstance(found, tuple)
    start, fit = found
    assert all(each.startswith(line.text[start : line.offset]) for each in fit)
    assert list(fit) == expected


@pytest.mark.parametrize(
    ("marked", "text"),
    [
        ("%spmd x -- y.|", "x -- y."),
        ("%spmd --ranks 1 x + y|", "x + y"),
        ("%spmd_pull x state.|", "state."),
        ("%spmd_push w --mesh m|", "m"),
        ("%spmd_save folder x|", "x"),
        ("%spmd_collectives f(a, b|", "f(a, b"),
        ("%spmd_steps --timeout 9 f(a, b|", "f(a, b"),
    ],
)
def test_code_in_a_line(marked: str, text: str) -> None:
    line = at(marked)
    assert isinstance(line, MagicLine)
    found = fits(line, 4)
    assert isinstance(found, Code)
    assert found.text[: found.offset] == text


@pytest.mark.parametrize("marked", ["%spmd_push w|", "%spmd_save fold|", "%spmd_status |"])
def test_what_is_the_notebooks_in_a_line(marked: str) -> None:
    line = at(marked)
    assert isinstance(line, MagicLine)
    assert fits(line, 4) is None


TEXTS = st.lists(
    st.sampled_from(
        ["%%spmd", "%spmd", "%spmd_pull", "%%time", " ", "\n", "\r", "\u2028", "--ranks",
         "--check=", "=", "x", ".", "'", "(", "é", "\x00", "-", "%"]
    ),
    max_size=12,
).map("".join)  # fmt: skip


@given(TEXTS, st.integers(0, 60))
@example("%%spmd \r%%spmd", 9)
def test_no_text_is_too_odd(cell: str, offset: int) -> None:
    offset = min(offset, len(cell))
    found = place_at(cell, offset)
    if isinstance(found, MagicLine):
        found = fits(found, 4)
    if isinstance(found, Code):
        assert 0 <= found.offset <= len(found.text)


# ---------------------------------------------------------------------- who is asked


class Group:
    """Answers as told; ``asked`` is what was asked for."""

    def __init__(self) -> None:
        self.answers: dict[int, object] = {}
        self.dead: set[int] = set()
        self.asked: list[tuple[list[int], str, float | None]] = []

    def ask(
        self, processes: list[int], function: str, /, *, seconds: float | None, **data: object
    ) -> dict[int, object]:
        self.asked.append((processes, function, seconds))
        if isinstance(error := self.answers.get(-1), Exception):
            raise error
        return {i: self.answers[i] for i in processes if i in self.answers}

    def assist(self) -> Assist:
        life: Any = SimpleNamespace(num_processes=3, lifecycle=self, sentinels=self)
        return Assist(Reach(life, Work()).first_told)


def test_the_first_living_process_is_asked_and_not_for_long() -> None:
    group = Group()
    group.dead = {0}
    group.assist().complete(Code("x", 1, 0))
    call = ([1], "jaxnb.assist.process_assist.complete", completion.DEADLINE_SECONDS)
    assert group.asked == [call]


def test_who_does_not_answer_or_fails_is_no_error() -> None:
    group = Group()
    assist = group.assist()
    group.answers[0] = (3, {".sum": "attribute"})
    assert assist.complete(Code("a\nx.", 4, 0)) == (3, {".sum": "attribute"})
    for trouble in ({}, {-1: OSError("gone")}, {0: None}):
        group.answers = trouble
        assert assist.complete(Code("b = 2\nx.s", 9, 0)) == (9, {})
        assert assist.inspect("x", 0) == {}
    group.dead = {0, 1, 2}
    assert assist.names() == ()


# ---------------------------------------------------------------------- all magics are known


def test_all_magics_are_known() -> None:
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    load(shell)
    kinds = shell.magics_manager.magics.values()
    there = {name for kind in kinds for name in kind if name.startswith("spmd")}
    assert there == set(MAGICS)
    assert set(helping.PARSERS) <= there


# ---------------------------------------------------------------------- hints below a traceback


TOO_FEW = "Number of devices 1 must be >= the product of mesh_shape (4,)"


def said(error: BaseException | None, code: str = "x + 1") -> str:
    return hint(error, code, lambda: ("x", "jnp"), 8)


def test_a_name_that_is_on_the_processes() -> None:
    assert said(NameError("name 'x' is not defined", name="x")) == (
        "`x` is on the processes, and this cell ran in the notebook. Put `%%spmd` on its first "
        "line, or type `%spmd_pull x` to bring it here."
    )
    assert said(NameError("name 'x' is not defined", name="x"), "y = x(1)").endswith("first line.")
    module = said(NameError("name 'jnp' is not defined", name="jnp"))
    assert module.endswith("or import it here: `import jax.numpy as jnp`.")


def test_too_few_devices() -> None:
    assert said(ValueError(TOO_FEW)) == (
        "This cell ran in the notebook, whose own JAX has 1 device; the processes have 8. "
        "Put `%%spmd` on its first line."
    )
    assert hint(ValueError(TOO_FEW), "", lambda: (), 1) == ""


@pytest.mark.parametrize(
    ("error", "code", "wanted"),
    [
        ("Cell magic `%%smpd` not found.", "%%smpd\nx", "Did you mean '%%spmd'?"),
        ("Line magic function `%spmd_strat` not found.", "", "Did you mean '%spmd_start'?"),
        ("Line magic function `%tiem` not found.", "%tiem", ""),
        ("unexpected indent", " %%spmd\nx", "`%%spmd` must be the first thing in its cell"),
        ("unexpected indent", " %%time\nx", ""),
    ],
)
def test_a_magic_that_is_misspelt_or_indented(error: str, code: str, wanted: str) -> None:
    found = magic_hint(IndentationError(error), code)
    assert found.startswith(wanted)
    assert bool(found) == bool(wanted)


@pytest.mark.parametrize(
    "error",
    [
        None,
        NameError("name 'y' is not defined", name="y"),
        UnboundLocalError("x"),
        ValueError("no"),
        RuntimeError(TOO_FEW),
    ],
)
def test_nothing_is_said_of_other_errors(error: BaseException | None) -> None:
    assert said(error) == ""


def test_an_error_without_a_text_is_not_told_of() -> None:
    class Bad(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert magic_hint(Bad(), "x") == ""
