"""Tab and Shift-Tab in code of the processes, through a notebook kernel as JupyterLab asks it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from jupyter_core.utils import run_sync

from integration.test_magics import Notebook, kernel

ANSI = re.compile(r"\x1b\[[\d;]*m")

PATIENT = (
    "import jaxnb.assist.completion as h; h.DEADLINE_SECONDS = 90.0; del h\n"
    "%spmd import jaxnb.assist.process_assist as p; p.ANSWER_SECONDS = 60.0; del p"
)
"""Has who types wait however long a busy machine takes to answer."""

MAKE = """%%spmd
mesh = jax.make_mesh((2,), ('x',), axis_types=(jax.sharding.AxisType.Auto,))
x = jax.make_array_from_callback((8,), NamedSharding(mesh, P('x')), lambda i: np.arange(8.)[i])
state = {'params': {'w': x}, 'step': 7}
def train_step(x, learning_rate=0.1):
    'One step of training.'
    return x
"""


@pytest.fixture(scope="module")
def nb() -> Iterator[Notebook]:
    """A kernel with a group of 2 processes."""
    for notebook in kernel():
        notebook.good("%spmd_start -n 2 --platform cpu")
        notebook.good(PATIENT)
        notebook.good("only_here = {'notebook': 1}")
        notebook.good(MAKE)
        yield notebook


def asked(nb: Notebook, kind: str, marked: str, **more: Any) -> dict[str, Any]:
    """What the kernel answers to a request at the place of the ``|``."""
    code, place = marked.replace("|", "", 1), marked.index("|")

    async def ask() -> Any:
        return await getattr(nb.client.kc, kind)(code, place, reply=True, timeout=90, **more)

    content: dict[str, Any] = run_sync(ask)()["content"]
    assert content["status"] == "ok"
    return content


def tab(nb: Notebook, marked: str) -> list[str]:
    """The lines that Tab offers at the place of the ``|``, up to that place; other ones only."""
    content = asked(nb, "complete", marked)
    start = marked.rfind("\n", 0, marked.index("|")) + 1
    code = marked.replace("|", "", 1)
    assert content["cursor_end"] == marked.index("|")
    lines = [code[start : content["cursor_start"]] + each for each in content["matches"]]
    return [each for each in lines if each != code[start : content["cursor_end"]]]


def shift_tab(nb: Notebook, marked: str, detail: int = 0) -> str:
    """What Shift-Tab shows at the place of the ``|``; empty for nothing."""
    content = asked(nb, "inspect", marked, detail_level=detail)
    assert content["found"] == bool(content["data"])
    return ANSI.sub("", content["data"].get("text/plain", ""))


# ---------------------------------------------------------------------- Tab


@pytest.mark.parametrize(
    ("marked", "expected"),
    [
        ("%%spmd\njnp.lins|", ["jnp.linspace"]),
        ("%%spmd\nstate['|", ["state['params", "state['step"]),
        ("%%spmd\nstate['params']['w'].shar|", ["state['params']['w'].sharding"]),
        ("%%spmd\nwhole = x\n\nwhol|", ["whole"]),
        ("%%spmd\ntrain_step(x, learn|", ["train_step(x, learning_rate="]),
        ("%%spmd\nx.shar|\nx", ["x.sharding"]),
        ("%%spmd\nimport colorsy|", ["import colorsys"]),  # by IPython in the notebook
        ("%%spmd\n%spmd|", []),
        ("%%spmd --chec|", ["%%spmd --check"]),
        ("%%spmd --ranks |", ["%%spmd --ranks 0", "%%spmd --ranks 1"]),
        ("%spmd x.shar|", ["%spmd x.sharding"]),
        ("%spmd_pull state['st|", ["%spmd_pull state['step"]),
        ("%%spmd\nonly_h|", []),
        ("%%spmd\nonly_here.|", []),
        ("only_h|", ["only_here"]),
        ("spmd.rest|", ["spmd.restart"]),
        ("spmd['sta|", ["spmd['state"]),
    ],
)  # fmt: skip
def test_tab(nb: Notebook, marked: str, expected: list[str]) -> None:
    assert tab(nb, marked) == expected


def test_arrays_come_first_in_tab(nb: Notebook) -> None:
    assert tab(nb, "%spmd_pull |")[0] == "%spmd_pull x"


@pytest.mark.thorough
def test_without_a_group_tab_is_ipythons() -> None:
    for notebook in kernel():
        notebook.good("only_here = 1")
        assert tab(notebook, "%%spmd\nonly_h|") == ["only_here"]
        assert tab(notebook, "%%spmd --outp|") == ["%%spmd --outputs"]
        assert tab(notebook, "%spmd_start --pla|") == ["%spmd_start --platform"]
        assert shift_tab(notebook, "only_h|ere")


# ---------------------------------------------------------------------- Shift-Tab


def test_shift_tab(nb: Notebook) -> None:
    shown = shift_tab(nb, "%%spmd\ny = train_step(|")
    assert "One step of training." in shown
    assert "learning_rate" in shown
    assert "return x" in shift_tab(nb, "%%spmd\ntrain_step|", detail=1)
    assert "One step of training." in shift_tab(nb, "%spmd train_ste|p(x)")
    assert shift_tab(nb, "train_step|(x)") == ""
    assert shift_tab(nb, "%%spmd\nonly_here|") == ""
    assert "dict" in shift_tab(nb, "only_here|")
    assert "Brings values from the processes" in shift_tab(nb, "%spmd_pul|l x")
    assert nb.good("%%spmd?").text.startswith("usage: %%spmd")
    assert nb.good("a = 1\n%spmd_pull?").text.startswith("usage: %spmd_pull")


def test_shift_tab_at_an_array_says_what_it_is(nb: Notebook) -> None:
    assert shift_tab(nb, "%%spmd\nx|").startswith("float32[8] · P('x')")


# ---------------------------------------------------------------------- while a cell runs


def test_while_a_cell_runs_and_after_a_restart(nb: Notebook) -> None:
    nb.good("%%spmd --async\nimport time\nmine = 1\nwhile True: time.sleep(0.01)")
    assert tab(nb, "%%spmd\nx.shar|") == ["x.sharding"]
    assert "One step" in shift_tab(nb, "%%spmd\ntrain_step|")
    nb.good("%spmd_interrupt")
    nb.good("%spmd_restart")
    assert tab(nb, "%%spmd\ntrain_|") == []
    nb.good(PATIENT)
    nb.good(MAKE)
    assert tab(nb, "%%spmd\ntrain_|") == ["train_step"]


# ---------------------------------------------------------------------- forgotten and misplaced


def test_a_forgotten_magic(nb: Notebook) -> None:
    cell = nb.run("train_step(1)")
    assert cell.failed
    assert cell.error.ename == "NameError"
    assert "jaxnb: `train_step` is on the processes, and this cell ran in the" in cell.text
    for source in ("nowhere", "1 / 0", "%%spmd\nnowhere", "%spmd 1 / 0"):
        assert "is on the processes, and" not in nb.run(source).text
    devices = nb.run("raise ValueError('Number of devices 1 must be >= the product of mesh_shape')")
    assert "whose own JAX has 1 device; the processes have 2. Put `%%spmd`" in devices.text
    assert "`spmd` is the session in the notebook" in nb.run("%%spmd\nspmd.pull('x')").text
    waited = nb.run("import asyncio\nawait asyncio.sleep(0)\ntrain_step")
    assert "jaxnb: `train_step` is on the processes" in waited.text


def test_a_magic_on_a_later_line(nb: Notebook) -> None:
    assert nb.bad("here = 1\n%%spmd\nhere") == (
        "`%%spmd` must be on the first line of its cell. The lines above it ran in the notebook; "
        "nothing ran on the processes."
    )
    assert "`%%spmd_compare` must be on the first" in nb.bad("# mine\n%%spmd_compare f(x)\na = P()")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("y = 1\n%spmd_pull x", "`%spmd_pull` belongs in the notebook, and this cell"),
        ("%load_ext jaxnb", "`%load_ext jaxnb` belongs in the notebook, and this cell"),
        ("y = 1\n%%spmd\nx", "a `%%spmd` cell already runs on the processes. Remove it."),
    ],
)
def test_a_magic_within_a_cell(nb: Notebook, code: str, said: str) -> None:
    cell = nb.run(f"%%spmd\n{code}")
    assert cell.failed
    assert said in cell.error.evalue


# ---------------------------------------------------------------------- %spmd_auto


MARK = "On processes 0-1 (`%spmd_auto` is on)"


@pytest.fixture
def auto(nb: Notebook) -> Iterator[Notebook]:
    nb.good("%spmd_auto on")
    yield nb
    assert "run in the notebook" in nb.good("%spmd_auto off").text


def test_plain_cells_run_on_the_processes_and_say_so(auto: Notebook) -> None:
    cell = auto.good("\n# mine\nhere = process_index\nprint('at', 'all')")
    assert MARK in cell.text
    assert "[0-1] at all" in cell.text
    failed = auto.run("\n\nhere + None")
    assert MARK in failed.text
    assert "line 3" in failed.error.evalue  # of the cell as it was typed
    assert MARK in auto.run("here +").text
    assert "class int" not in auto.good("here?").text  # IPython's help, as in `%%spmd` cells
    assert tab(auto, "her|") == ["here"]
    assert tab(auto, "%spmd_pull her|") == ["%spmd_pull here"]


@pytest.mark.parametrize(
    "code",
    ["%%local\nonly_here['notebook']", "\n%pwd", "a = !pwd", "%%spmd\n1 + 1", "%%time\nonly_here",
     "# nothing"],
)  # fmt: skip
def test_magics_and_local_cells_stay_where_they_are(auto: Notebook, code: str) -> None:
    assert MARK not in auto.good(code).text


def test_code_beside_magics_is_refused(auto: Notebook) -> None:
    assert "Nothing was run. Put them in cells of their own" in auto.bad("%pwd\nmixed = 1")
    assert "mixed" in str(auto.run("%%local\nmixed").error)
    auto.good("%%local\n%pwd\nmixed = 1")
    auto.good("%%local\nassert mixed == 1 and 'mixed' not in spmd.run('list(globals())').value")


def test_what_others_run_in_the_notebook_stays_there(auto: Notebook) -> None:
    auto.good("%%local\nget_ipython().run_cell('inner = 2')\nassert inner == 2")
