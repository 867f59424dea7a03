"""Variables of one group in a group of another size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import jaxnb
from integration.test_magics import kernel
from jaxnb.errors import JaxnbError, ProcessDiedError, UsageError
from jaxnb.recovery.messages import Recovered
from jaxnb.session import Session
from jaxnb_fixtures import assert_usable

STATE = """
devices = jax.device_count()
line = jax.make_mesh((devices,), ("d",))
grid = jax.make_mesh((devices // 2, 2), ("data", "model"))
def make(mesh, spec, *shape, dtype="float32"):
    whole = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    return jax.make_array_from_callback(shape, NamedSharding(mesh, spec), lambda i: whole[i])
x = make(line, P("d"), 16)
w = make(grid, P("data", "model"), 8, 4)
turned = make(grid, P("model", "data"), 128, 128)
rows = make(grid, P("data"), 16, 3, dtype="bfloat16")
both = make(grid, P(("data", "model"), None), 16, 2, dtype="int4")
same = make(line, P(), 5)
empty = make(line, P("d"), 0, 3)
keys = jax.jit(lambda: jax.random.split(jax.random.key(0), 16),
               out_shardings=NamedSharding(line, P("d")))()
own, first = jnp.full(3, process_index), jax.local_devices()[0]
total = jax.jit(lambda a: (a * 2).sum(), in_shardings=NamedSharding(line, P("d")))
class Model:
    def __init__(self): self.mesh, self.weights = grid, [w, {"x": x}]
model = Model()
y = total(x)
np.random.seed(7)
"""

CHECK = """
from jax.experimental.multihost_utils import process_allgather
def whole(a): return process_allgather(a, tiled=True)
def check(a, *shape, dtype="float32"):
    expected = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    assert a.dtype == dtype and whole(a).tolist() == expected.tolist()
assert line.size == grid.size == jax.device_count() and grid.shape["model"] == 2
assert model.weights[0] is w and model.weights[1]["x"] is x and model.mesh is w.sharding.mesh
assert model.mesh is grid and x.sharding.mesh is line and first in jax.local_devices()
check(x, 16); check(w, 8, 4); check(turned, 128, 128); check(rows, 16, 3, dtype="bfloat16")
check(both, 16, 2, dtype="int4"); check(same, 5); check(empty, 0, 3)
split = jax.random.key_data(jax.random.split(jax.random.key(0), 16))
assert whole(jax.random.key_data(keys)).tolist() == np.asarray(split).tolist()
assert float(total(x)) == 240 == float(y)
own.tolist()[0]
"""


@pytest.fixture(scope="module")
def pair() -> Iterator[Session]:
    with jaxnb.start(2, devices_per_process=2, platform="cpu") as session:
        yield session


@pytest.fixture
def saved(pair: Session, tmp_path: Path) -> Path:
    pair.run(STATE)
    pair.save(tmp_path / "state")
    return tmp_path / "state"


def values(session: Session) -> list[object]:
    return [each.value for _, each in sorted(session.run(CHECK).per_process.items())]


def test_more_processes_load_what_fewer_have_saved(session: Session, saved: Path) -> None:
    session.run("np.random.seed(process_index)\nexpected = np.random.rand()")
    session.run("np.random.seed(process_index)")
    loaded = session.load(saved)
    assert loaded.lost == ()
    assert str(loaded).endswith(
        "Arrays over several processes lie on 4 × 2 devices now, not on 2 × 2. Whatever else "
        "processes 2-3 hold is what process 0 had."
    )
    assert values(session) == [0, 1, 0, 0]
    drawn = session.run("float(np.random.rand()), expected").per_process
    assert drawn[0].value[0] == drawn[1].value[0]  # as they have saved it
    assert drawn[2].value[0] == drawn[2].value[1]  # its own
    assert_usable(session)


def test_fewer_processes_load_what_more_have_saved(
    session: Session, pair: Session, tmp_path: Path
) -> None:
    session.run(STATE)
    session.save(tmp_path / "state")
    assert "Whatever else processes 2-3 had is not loaded." in str(pair.load(tmp_path / "state"))
    assert values(pair) == [0, 1]


def test_a_mesh_of_the_users_with_the_same_axes_is_taken(session: Session, saved: Path) -> None:
    session.run("wide = jax.make_mesh((2, 4), ('model', 'data'))")
    session.load(saved, ["w", "turned"])
    assert session.run("w.sharding.mesh is wide and turned.sharding.mesh is wide").value
    assert session.run("w.sharding.shard_shape(w.shape)").value == (2, 2)
    session.run("tall = jax.make_mesh((4, 2), ('model', 'data'))\nw = turned = None")
    with pytest.raises(JaxnbError, match="there are 2 meshes with the axes 'data', 'model'"):
        session.load(saved, ["w"])
    assert session.run("w").value is None


def test_what_does_not_fit_is_told_and_nothing_is_loaded(session: Session, saved: Path) -> None:
    session.run("only = jax.make_mesh((1, 8), ('data', 'model'))\nx = 'old'")
    with pytest.raises(JaxnbError) as caught:
        session.load(saved)
    assert str(caught.value) == (
        "Processes 0-3 cannot lay out `w` (float32[8, 4] over a mesh of 'data': 2, 'model': 2): "
        "axis 'model' has 8 devices now, which do not divide dimension 1 (4). Nothing was loaded."
    )
    assert session.run("x").value == "old"
    session.load(saved, ["x", "own"])  # what is asked for does fit
    assert session.run("int(own[0])").per_process[1].value == 1


def test_the_sizes_of_a_group_change_and_its_variables_stay(
    make_session: Callable[..., Session],
) -> None:
    session = make_session(2, devices_per_process=2)
    session.run(STATE)
    lazy = session.pull("x")
    recovered = session.recover(num_processes=4)
    assert isinstance(recovered, Recovered)
    assert recovered.lost == ()
    assert "lie on 4 × 2 devices now, not on 2 × 2" in str(recovered)
    assert (session.num_processes, len(session.processes)) == (4, 4)
    assert values(session) == [0, 1, 0, 0]
    assert np.asarray(session.pull("x")).tolist() == [*range(16)]
    assert np.asarray(lazy).tolist() == [*range(16)]
    assert session.recover(devices_per_process=1).lost == ()
    assert session.num_processes == 4
    assert values(session) == [0, 1, 0, 0]
    assert_usable(session)


def test_what_would_not_fit_changes_nothing(make_session: Callable[..., Session]) -> None:
    session = make_session(2)
    session.run(STATE)
    pids = [process.pid for process in session.processes]
    with pytest.raises(UsageError, match=r"group of 3 devices cannot lay out `x` .*Nothing has ch"):
        session.recover(num_processes=3)
    with pytest.raises(UsageError, match="0"):
        session.recover(num_processes=0)
    assert [process.pid for process in session.processes] == pids
    assert values(session) == [0, 1]
    with pytest.raises(ProcessDiedError):
        session.run("import os, time\nif process_index: os._exit(1)\ntime.sleep(1000)")
    with pytest.raises(UsageError, match=r"Process 1 died.*Type `%spmd_recover` first"):
        session.recover(num_processes=4)
    session.restart(num_processes=3, devices_per_process=1)
    assert session.run("num_processes, jax.device_count()").value == (3, 3)
    assert session.options.num_processes == 3
    assert_usable(session)


def test_the_magic_changes_the_size(tmp_path: Path) -> None:
    for notebook in kernel():
        notebook.good("%spmd_start -n 2 --platform cpu")
        notebook.good("%spmd a = process_index")
        shown = notebook.good("%spmd_restart --keep -n 3").text
        assert "3 processes" in shown
        assert "Whatever else process 2 holds is what process 0 had" in shown
        assert "3 processes × 2" in notebook.good(
            "%spmd_restart --devices-per-process 2"
        ).text.replace("\n", " ")
        assert "6" in notebook.good("%spmd jax.device_count()").text
