"""What a plan has of the cells that have run, in a real scratch process."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxnb.compiled.planning import EarlierCells, plan
from jaxnb.errors import UsageError
from jaxnb.model.cells import CellRequest
from jaxnb.model.compiled import GroupValues

CELLS = [
    "import math\nimport not_there\nD, F = 768, 3072\nmesh = jax.make_mesh((1,), ('x',))",
    "sizes = [8]\nsizes.append(16)\nrows = NamedSharding(mesh, P('x'))\ndef f(x): return x + 1",
    "step = jax.jit(f, in_shardings=rows)\ndef late(x): return x + offset\ndef f(x): return x * D",
    "def gone(x): return x\ngone = jax.jit(gone)(3)\ndef uses(x): return not_there.call(x)",
]
CALL = "jax.ShapeDtypeStruct((math.prod(sizes), F), np.float32)"
MESH = "mesh = jax.make_mesh((4,), ('x',), axis_types=(jax.sharding.AxisType.Auto,))\n"


def requests(**theirs: str | None) -> EarlierCells:
    cells = [CellRequest(cell=i, code=code) for i, code in enumerate(CELLS, 1)]
    return EarlierCells(cells, lambda names: GroupValues(theirs))


def test_plain_values_come_along_and_what_lacks_the_mesh_waits_for_the_plans(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It meets what was there when the cell ran: its step is of the first `f`."""
    code = f"{MESH}print(step(np.float32([1, 2, 3, 4])))\noffset = 3\nlate({CALL})"
    found = plan(code, devices=4, cells=requests())
    assert found.num_devices == 1
    assert capsys.readouterr().out == "[2. 3. 4. 5.]\n"
    found = plan(f"{MESH}step({CALL})", devices=4, cells=requests())
    assert (found.num_devices, found.meshes[0].shape) == (4, (4,))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("gone(3)", "The plan needs `gone`, which cell [4] has made at line 2: `gone = jax.jit("),
        ("uses(3)", "of cell [1], line 2: `import not_there`. In the plan's process that cannot"),
    ],
)
def test_what_a_plan_lacks_is_named_with_its_line(call: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan(call, devices=2, cells=requests())
    assert said in str(caught.value)


def test_a_value_that_other_code_has_changed_is_not_used(tmp_path: Path) -> None:
    """Nor is a file removed again, or code that ends the process taken for the plan's."""
    kept = tmp_path / "kept"
    kept.touch()
    cells = [*CELLS, f"import os\nos.remove({str(kept)!r})\nclass A:\n    raise SystemExit('no')"]
    earlier = EarlierCells(
        [CellRequest(cell=i, code=code) for i, code in enumerate(cells, 1)],
        lambda names: GroupValues({"D": "512", "F": "3072", "sizes": None, "f": None}),
    )
    said = r"`D`, which cell \[1\] makes at line 3 .* and which is 512 on the group"
    with pytest.raises(UsageError, match=said):
        plan("f(np.ones(F))", devices=2, cells=earlier)
    assert kept.exists()
