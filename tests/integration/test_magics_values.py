"""Pull, push, layout and recovery in a real notebook kernel, and how what they bring is shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from integration.test_magics import HTML, Notebook, kernel

MAKE = """%%spmd
mesh = jax.make_mesh((4,), ('x',))
table = np.arange(32, dtype=np.float32).reshape(8, 4)
x = jax.make_array_from_callback((8, 4), NamedSharding(mesh, P('x')), lambda i: table[i])
state = {'params': {'w': x + 1}, 'step': 7}
mine = {'rank': process_index}
"""


@pytest.fixture(scope="module")
def group() -> Iterator[Notebook]:
    """A kernel with a group of 2 processes × 2 devices."""
    for notebook in kernel():
        notebook.good("%spmd_start -n 2 --devices-per-process 2 --platform cpu")
        notebook.good("import numpy as np, os, signal, sys")
        yield notebook


@pytest.fixture
def nb(group: Notebook) -> Notebook:
    """The kernel, with arrays on the processes and none in the notebook."""
    forget = "for name in ('x', 'y', 'w', 'state', 'mine'): globals().pop(name, None)"
    group.good(forget)
    group.good(f"%spmd {forget}")
    group.good(MAKE)
    return group


def said(nb: Notebook, expression: str) -> str:
    """What the notebook prints for an expression."""
    return nb.good(f"print({expression})").text.strip()


# ---------------------------------------------------------------------- pull


def test_pull(nb: Notebook) -> None:
    cell = nb.good("%spmd_pull x")
    assert re.fullmatch(r"x: float32\[8, 4\] · P\('x'\) · 128 B · pulled · .* m?s\n", cell.text)
    assert HTML in cell.node.outputs[0].data
    assert len(cell.node.outputs) == 1
    assert said(nb, "type(x).__name__, x.is_here, float(np.sum(x))") == "GatheredArray True 496.0"


def test_pull_several_with_containers_and_differing_values(nb: Notebook) -> None:
    lines = nb.good("%spmd_pull state mine x").text.splitlines()
    assert lines[0].startswith("3 values · 256 B · pulled · ")
    assert lines[1].split() == ["state", "dict", "of", "1", "array", "128", "B"]
    assert lines[2].split() == ["mine", "dict", "by", "process"]
    assert lines[4] == "  mine: differs by process"
    assert said(nb, "mine, state['step'], state['params']['w'][0, 0]") == (
        "PerProcess({0: {'rank': 0}, 1: {'rank': 1}}) 7 1.0"
    )


@pytest.mark.parametrize(
    ("path", "expression", "value"),
    [
        ("'x[..., :3]'", "y.shape", "(8, 3)"),
        ("x[{row}]", "np.asarray(y)[0]", "8.0"),
    ],
)
def test_pull_a_path(nb: Notebook, path: str, expression: str, value: str) -> None:
    nb.good(f"row = 2\n%spmd_pull {path} --as y")
    assert said(nb, expression) == value
    nb.good(f"del y\n%spmd_pull --as=y {path}")
    assert said(nb, expression) == value


def test_pull_from_some(nb: Notebook) -> None:
    assert "pulled from process 1" in nb.good("%spmd_pull mine --ranks 1").text
    assert said(nb, "mine") == "{'rank': 1}"
    assert "the group has processes 0 to 1" in nb.bad("%spmd_pull mine --ranks 7")


def test_all_names_are_pulled_or_none(nb: Notebook) -> None:
    nb.good("x = 'kept'")
    assert "have no `nope`" in nb.bad("%spmd_pull x nope")
    assert said(nb, "x") == "kept"


def test_what_cannot_be_pulled(nb: Notebook) -> None:
    for line, message in {
        "x[0]": "name the one in the notebook: `%spmd_pull x[0] --as NAME`. Nothing was moved.",
        "x --as spmd": "`spmd` holds the session",
        "x --as Out": "`Out` is IPython's own",
        "x --as class": "'class' is not a name",
    }.items():
        assert message in nb.bad(f"%spmd_pull {line}")
    assert "ready" in nb.good("%spmd_status").text


# ---------------------------------------------------------------------- push


def test_push_with_a_spec(nb: Notebook) -> None:
    nb.good("w = np.arange(8.0).reshape(4, 2)")
    for line in ("w --spec P('x', None)", "--spec ('x',None) w --mesh mesh"):
        text = nb.good(f"%spmd_push {line}").text
        assert re.match(
            r"w: float32\[4, 2\] · P\('x', None\) · 32 B · pushed to 2 processes · ", text
        )
        assert "float64 → float32: jax_enable_x64 is off" in text
        shown = nb.good("%spmd tuple(w.sharding.spec), w.dtype.name, float(w.sum())").text
        assert "(('x', None), 'float32', 28.0)" in shown
        nb.good("%spmd del w")


def test_push_several_as_they_are(nb: Notebook) -> None:
    nb.good("w, y = np.arange(3), {'a': [1, 'two']}")
    text = nb.good("%spmd_push w y").text
    assert text.startswith("2 values · 24 B · pushed to 2 processes · ")
    assert "w: NumPy there too; --spec makes a global array" in text
    assert "(array([0, 1, 2]), {'a': [1, 'two']})" in nb.good("%spmd w, y").text


def test_push_to_some(nb: Notebook) -> None:
    nb.good("w = 'only there'")
    assert "pushed to process 1" in nb.good("%spmd_push w --ranks 1").text
    assert "[1] True" in nb.good("%spmd print('w' in globals())").text
    message = nb.bad("%spmd_push w --ranks 1 --spec P()")
    assert "Nothing was moved." in message


def test_what_cannot_be_pushed(nb: Notebook) -> None:
    nb.good("weights = np.zeros((4, 2))")
    for line, message in {
        "wieghts": "no variable `wieghts`. Did you mean 'weights'? Nothing was moved.",
        "weights --spec P('y')": "is not found in mesh: ('x',). Nothing was moved.",
        "weights --spec weights": "axis names in quotes",
        "weights --mesh msh": "Did you mean 'mesh'?",
        "np": "cannot be pickled",
    }.items():
        assert message in nb.bad(f"%spmd_push {line}")
    assert "False" in nb.good("%spmd 'weights' in globals()").text


# ---------------------------------------------------------------------- layout


def test_layout(nb: Notebook) -> None:
    cell = nb.good("%spmd_layout x")
    assert cell.text.startswith("x: float32[8, 4] · P('x') · mesh x 4")
    assert "P1 d2048" in cell.text
    assert "process 1 · device 2048 · " in cell.html
    assert "float32[8, 4]" in nb.good("%spmd_layout state[ 'params' ] [ 'w' ]").text
    assert "state['params']['w']" in nb.good("%spmd_layout state").text
    assert "have no `nope`" in nb.bad("%spmd_layout nope")
    for line in ("", "P('x') P() --shape 8"):
        assert nb.bad(f"%spmd_layout {line}").startswith("Name an array, `%spmd_layout x`, or one")
    assert "float32[8, 4]" in nb.good("%spmd_layout x state").text


def test_what_a_spec_would_do(nb: Notebook) -> None:
    text = nb.good("%spmd_layout P('x', None) --shape 8,2 --dtype bfloat16").text
    assert text.startswith("bfloat16[8, 2] · P('x', None) · mesh x 4 · 32 B, 8 B per device")
    assert "P1 d2048" in text
    assert "4 replicas of the whole array" in nb.good("%spmd_layout P() --shape 8,2").text
    # What would fit is told; and nothing is said of a comparison that there cannot be.
    assert "not compared" not in nb.good("%spmd_layout P() --shape 9999,9999").text
    bad = nb.bad("%spmd_layout P('x', None) --shape 6,8")
    assert bad.startswith("An array of shape (6, 8) cannot be placed by P('x', None): ")
    assert bad.endswith("Nothing was moved. P(None, None) fits.")
    assert "no `mash`" in nb.bad("%spmd_layout P('x') --shape 8 --mesh mash")
    assert "'float33'" in nb.bad("%spmd_layout P('x') --shape 8 --dtype float33")


def test_memory_by_purpose(nb: Notebook) -> None:
    nb.good("%spmd batch = jax.jit(lambda a: a + 1)(x); step = jax.jit(lambda a, b: (a * b).sum())")
    cell = nb.good("%spmd_layout state x --bars --call 'step(x, batch)'")
    lines = {words[0]: words for line in cell.text.split("\n") if (words := line.split())}
    assert "memory by purpose · 4 devices" in cell.text
    assert "█ state   ▓ x   · other   ~ temporary" in cell.text
    assert lines["x"][1:3] == ["32", "B"]  # per device
    assert lines["other"][1] != "0"
    # An array of several names is counted for the first.
    nb.good("%spmd both = [x, batch]")
    text = nb.good("%spmd_layout x both --bars").text
    both = next(line.split() for line in text.split("\n") if line.startswith("  both"))
    assert both[1:3] == ["32", "B"]


def test_a_cell_that_ends_in_a_pytree_shows_how_it_lies(nb: Notebook) -> None:
    text = nb.good("%spmd {'w': x, 'b': [x + 1, x.sum()]}").text
    assert "3 arrays" in text
    assert "['b'][0]" in text
    assert "= 496, replicated" in text
    assert "Array(" not in text
    # What is no array is shown as ever.
    text = nb.good("%spmd {'w': x, 'n': 3}").text
    assert "'n': 3" in text
    assert "float32[8, 4]" in text


# ---------------------------------------------------------------------- the session's subscripts


def test_subscripts_of_the_session(nb: Notebook) -> None:
    shown = nb.good('spmd["x"]').text
    assert shown.startswith("float32[8, 4] · P('x') · mesh x 4 · 128 B, 32 B per device\n[[ 0.,")
    assert nb.good('spmd["x[0]"]').text.startswith("x[0], shape (4,), of float32[8, 4]")
    assert nb.good('spmd["x"][0]').text == "array([0., 1., 2., 3.], dtype=float32)\n"
    nb.good('spmd["n"] = 3')
    assert "3" in nb.good("%spmd n").text
    assert "only whole variables can be assigned" in nb.bad('spmd["n[0]"] = 3')


def test_a_display_does_not_wait_for_a_cell(nb: Notebook, gate: Any) -> None:
    nb.good("%spmd_pull x")
    nb.good(f"%%spmd --async --out background\n{gate.wait}")
    assert "[28., 29., 30., 31.]]" in nb.good("x").text
    gate.open()
    nb.good("background.result();")


def test_an_interrupt_while_it_waits_is_one_line(nb: Notebook, gate: Any) -> None:
    nb.good(f"%%spmd --async --out background\n{gate.wait}")
    nb.good(
        "import signal\nshow = spmd._work.show_wait\n"
        "spmd._work.show_wait = lambda text: text and signal.raise_signal(signal.SIGINT)"
    )
    cell = nb.run("%spmd_pull x")
    gate.open()
    nb.good("background.result();")
    nb.good("spmd._work.show_wait = show")
    assert cell.error.traceback == [
        "KeyboardInterrupt: Interrupted before its turn came; nothing was run."
    ]


# ---------------------------------------------------------------------- when it goes wrong


def test_recover_says_what_was_kept(nb: Notebook) -> None:
    nb.good("%spmd y = x * 2")
    shown = nb.good("%spmd_recover").text
    assert "new processes in" in shown
    assert "kept" in shown
    assert "Lost" not in shown
    assert "992.0" in nb.good("%spmd float(jnp.sum(y))").text


PART = "if process_index == 1:\n    y = x * 2\nelse:\n    y = x + 1"


def test_processes_that_would_part_are_stopped(nb: Notebook) -> None:
    said = nb.bad(f"%%spmd\n{PART}", "CellError")
    assert "DivergenceError: The processes do not agree on dispatch 1 over processes 0-1" in said
    kind = "float32[8,4], int -> float32[8,4] at line"
    assert f"process 0: was to dispatch jit(add) {kind}" in said
    assert f"process 1: was to dispatch jit(multiply) {kind}" in said
    assert "agree" not in nb.good(f"%%spmd --check off\n{PART}").text
    assert "496.0" in nb.good("%spmd float(jnp.sum(x))").text
    assert "There are: off, strict" in nb.bad("%%spmd --check record\n1", "UsageError")
