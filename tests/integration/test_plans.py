"""What a plan has of the variables of a group, in a real scratch process."""

from __future__ import annotations

import pytest

from jaxnb.errors import UsageError
from jaxnb.session import Session

CELLS = """
import functools, math
shell = get_ipython()
D, F = 768, 3072
mesh = jax.make_mesh((jax.device_count(),), ('x',))
rows = NamedSharding(mesh, P('x'))
def f(x): return x + 1
step = jax.jit(f, in_shardings=rows)
def late(x): return x + offset
def f(x): return x * D
def power(n):
    def of(x): return x ** n
    return of
cube = power(3)
sizes = [8]
for _ in range(3):
    sizes.append(2 * sizes[-1])
class Model:
    def __init__(self, width): self.width = width
    def __call__(self, x): return x @ np.ones((x.shape[1], self.width), x.dtype)
model = Model(sizes[-1])
weights = jnp.ones(3)
large = np.ones(2**22)
def uses(x): return x + weights
waits = (each for each in range(3))
"""
CALL = "jax.ShapeDtypeStruct((4, F), np.float32)"
MESH = "mesh = jax.make_mesh((4,), ('x',), axis_types=(jax.sharding.AxisType.Auto,))\n"


@pytest.fixture
def group(session: Session) -> Session:
    session.run(CELLS)
    return session


def test_values_come_along_and_meshes_are_the_plans(
    group: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step is of the first `f`, as on the processes; its mesh has the axes of the plan's."""
    code = f"{MESH}print(step(np.float32([1, 2, 3, 4])), cube(2), sizes)\noffset = 3\nlate({CALL})"
    found = group.collectives(code, devices=4)
    assert found.num_devices == 1
    assert capsys.readouterr().out == "[2. 3. 4. 5.] 8 [8, 16, 32, 64]\n"
    found = group.collectives(f"{MESH}step({CALL})", devices=4)
    assert (found.num_devices, found.meshes[0].shape) == (4, (4,))
    two = "mesh = jax.make_mesh((2,), ('x',), devices=jax.devices()[:2])\n"
    assert group.collectives(f"{two}step({CALL})", devices=4).meshes[0].shape == (2,)
    found = group.collectives(f"step({CALL})", devices=4)  # without one: of all devices
    assert found.meshes[0].shape == (4,)
    assert group.collectives(f"model({CALL})", devices=2).num_devices == 1


def test_the_plan_has_the_last_word(group: Session) -> None:
    """What it binds or changes stays so, whatever is made again for its mesh."""
    code = f"sizes.append(3)\n{MESH}def step(x): return x.sum()\nD = 3\n"
    found = group.collectives(f"{code}step(np.ones((sizes[4], D), np.float32))", devices=4)
    assert found.memory is not None
    assert found.memory.argument_bytes == 36


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("uses(np.ones(3))", r"`weights`, which was made for the devices of the group \(float32"),
        ("jnp.sum(weights)", r"`weights`, which was made for the devices of the group \(float32"),
        ("jnp.sum(large)", r"`large`, which is too large for a plan \(float64\[4194304\]\)"),
    ],
)
def test_an_array_of_the_group_is_named(group: Session, call: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"The plan needs {said}.*Make it in the plan"):
        group.collectives(call, devices=2)


def test_the_plan_changes_nothing_on_the_processes(group: Session) -> None:
    group.collectives("sizes.append(3)\nmodel.width = 2\nmodel(np.ones((2, 2)))", devices=2)
    assert group.run("len(sizes), model.width, next(waits)").value == (4, 64, 0)
