"""What goes wrong in a script is told as it is in a cell: the same programs are run as both."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import jaxnb
from faults.test_run_ends import launch
from jaxnb.cells.card_error import error_card
from jaxnb.session import Session
from support.fixtures import PATIENT_SECONDS, Notices

BEFORE = """\
import jax, jax.numpy as jnp, numpy as np
me, n = jax.process_index(), jax.process_count()
mesh = jax.make_mesh((n,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
rows, everywhere = (jax.NamedSharding(mesh, each) for each in (jax.P("d"), jax.P()))
def spread(block): return jax.make_array_from_process_local_data(rows, block)
def copies(of): return jax.make_array_from_callback((3,), everywhere, lambda i: of[i])
x = spread(np.full(2, me, np.float32))
block = np.ones((3 if me == 1 else 4, 2), np.float32)
total = jax.jit(jnp.sum)
gathered = jax.jit(lambda a: a, out_shardings=everywhere)
"""

PROGRAMS = {
    "other shapes": "mean = jax.jit(jnp.mean)(spread(block))",
    "another array": "a, b = spread(np.ones(2)), spread(np.zeros(2))\ntotal(a if me else b)",
    "a typo": "for step in range(5):\n    y = total(x)\n    if me == 1 and step == 3: print(stpe)",
    "another replica": "odd = copies(np.full(3, me, np.float32))\ntotal(odd)",
    "values of others": "np.asarray(x)",
    "devices in another order": "other = jax.sharding.Mesh(jax.devices()[::-1], ('d',))\n"
    "x + jax.device_put(np.ones(2 * n), jax.NamedSharding(other, jax.P('d')))",
    "an error while another is handled": "try:\n    jax.jit(lambda a: (_ for _ in ()).throw("
    "KeyError(a.shape)))(x)\nexcept KeyError:\n    1 / 0",
}


@pytest.fixture(scope="module")
def group() -> Iterator[Session]:
    with jaxnb.start(2, platform="cpu") as session:
        yield session


def of_script(text: str) -> str:
    """Returns what is said of a cell as it is said of a script, where nothing is typed."""
    text = re.sub(r" In the notebook: .*? In the cell:| Rerun the cell[^.]*\.", "", text)
    text = re.sub(r" \(`%spmd_help [\w-]+`\)", "", text)
    text = re.sub(r"\b[Cc]ell \[\d+\]", "script.py", text)
    text = re.sub(r"\b([Tt])he cell\b", r"\1he script", text)
    return re.sub(r" ?[^.;]*`%spmd_\w+[^`]*`[^.]*\.", "", text)


def told(text: str) -> set[str]:
    """Returns what is told, without tracebacks and times: who raised what, and each sentence."""
    text = re.sub(r"line (\d+) of script\.py", r"script.py:\1", text)
    text = re.sub(r"/\S*/(?=script\.py:)", "", text.replace("jaxnb.errors.", ""))
    text = re.sub(r"\bFile\s+/\S+:\d+,\s+in\s+\S+", "", text)  # a long path is on a line of its own
    text = re.sub(r"(, first)? · after .*| · line .*|\.? Did you mean: .*", "", text)
    frame = r"[\s-]|Traceback|Cell In|File |\w+ +Trace"
    lines = [re.sub("^jaxnb: ", "", each) for each in text.splitlines()]
    kept = " ".join(each for each in lines if each and not re.match(frame, each))
    return {each.strip() for each in re.split(r"(?<=[.;:])\s", kept)}


@pytest.mark.thorough
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_script_is_told_what_a_cell_is(name: str, group: Session, tmp_path: Path) -> None:
    source, notices = BEFORE + PROGRAMS[name], Notices()
    result = group.run(source, sink=notices, raise_on_error=False)
    process = launch(tmp_path, source)
    _, said = process.communicate(timeout=PATIENT_SECONDS)
    assert process.returncode == 1
    in_cell = told(of_script("\n".join([*notices.said, error_card(result, is_whole=True).text])))
    assert in_cell
    assert in_cell - told(said) == set(), said
    assert "spmd" not in said
    assert str(Path(jaxnb.__file__).parent) not in said
