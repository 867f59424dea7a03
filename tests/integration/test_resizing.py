"""Variables of one group in a group of another size."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import jaxnb
from jaxnb.errors import CellError, JaxnbError, UsageError
from jaxnb.recovery.messages import Recovered
from jaxnb.session import Session
from support.fixtures import assert_usable, until

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
    for each in saved.iterdir():
        os.truncate(each, 0)
    assert str(loaded).endswith(
        "Arrays over several processes lie on 4 × 2 devices now, not on 2 × 2. Whatever else "
        "processes 2-3 hold is what process 0 had."
    )
    assert values(session) == [0, 1, 0, 0]
    drawn = session.run("float(np.random.rand()), expected").per_process
    assert drawn[0].value[0] == drawn[1].value[0]  # as they have saved it
    assert drawn[2].value[0] == drawn[2].value[1]  # its own
    assert_usable(session)


@pytest.mark.thorough
def test_fewer_processes_load_what_more_have_saved(
    session: Session, pair: Session, tmp_path: Path
) -> None:
    session.run(STATE)
    session.save(tmp_path / "state")
    assert "Whatever else processes 2-3 had is not loaded." in str(pair.load(tmp_path / "state"))
    assert values(pair) == [0, 1]


def test_what_does_not_fit_is_told_and_nothing_is_loaded(session: Session, saved: Path) -> None:
    session.run("only = jax.make_mesh((1, 8), ('data', 'model'))\nx = 'old'")
    with pytest.raises(JaxnbError) as caught:
        session.load(saved)
    assert str(caught.value) == (
        "Processes 0-3 cannot lay out `w` (float32[8, 4] over a mesh of 'data': 2, 'model': 2): "
        "axis 'model' would have 8 devices, which do not divide dimension 1 (4). Nothing was "
        "loaded."
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


MIXED = """
from jax.sharding import Mesh
import gc
mesh = jax.make_mesh((jax.device_count(),), ("d",))
def make(start, spec=P("d"), mesh=mesh):
    whole = np.arange(8.0) + start
    return jax.make_array_from_callback((8,), NamedSharding(mesh, spec), lambda i: whole[i])
a, b, c, e = make(0), make(100), make(200), make(300)
odd = process_index % 2
params = {"a": a, "b": b} if odd else {"b": b, "a": a}
best = {"c": c} if process_index == 0 else None
later = {"c": c, "e": e}
view = [c]
half = Mesh(np.array(jax.devices()[:2] if process_index < 2 else jax.devices()[2:4]), "d")
part = make(1000 * (process_index // 2), mesh=half)
unequal = jax.make_array_from_callback(
    (2,), NamedSharding(mesh, P()), lambda i: np.full(2, process_index)[i])
w = a if process_index == 0 else b
del a, b, c
"""


@pytest.mark.parametrize("how", [pytest.param("load", marks=pytest.mark.thorough), "recover"])
def test_parts_of_different_arrays_are_never_put_together(
    make_session: Callable[..., Session], tmp_path: Path, how: str
) -> None:
    """Orders, sharing, and what a name stands for differ by process."""
    session = make_session(4)
    session.run(MIXED)
    if how == "load":
        session.save(tmp_path / "state")
        session.restart(num_processes=8)
        lost = session.load(tmp_path / "state").lost
    else:
        lost = session.recover(num_processes=8).lost
    shown = {}
    for name in ("params['a']", "params['b']", "later['c']", "later['e']"):
        shown[name] = np.asarray(session.pull(name))[0].item()
    assert shown == {"params['a']": 0, "params['b']": 100, "later['c']": 200, "later['e']": 300}
    own = session.run("[s.data.tolist() for s in part.addressable_shards]").per_process
    assert [own[i].value for i in (0, 1, 3, 4)] == [
        [[0, 1, 2, 3]], [[4, 5, 6, 7]], [[1004, 1005, 1006, 1007]], [],
    ]  # fmt: skip
    assert [(each.path, each.reason) for each in lost] == [
        ("unequal", "its replicas differ by process")
    ]
    with pytest.raises(CellError, match=r"DivergenceError.*different inputs on processes"):
        session.run("w + 1")  # as before
    assert_usable(session)


@pytest.mark.thorough
def test_arrays_that_are_not_summed_yet_are_saved_and_not_laid_out_anew(
    make_session: Callable[..., Session], tmp_path: Path
) -> None:
    session = make_session(2)
    session.run(
        "mesh = jax.make_mesh((2,), ('d',))\n"
        "un = jax.make_array_from_single_device_arrays((), NamedSharding(mesh, P(unreduced={'d'})),"
        " [jax.device_put(np.float32(process_index), jax.local_devices()[0])])"
    )
    assert session.save(tmp_path / "state", ["un"]).lost == ()
    with pytest.raises(UsageError, match=r"`un` .* has not been summed over d yet. Nothing has ch"):
        session.recover(num_processes=4)
    assert session.load(tmp_path / "state").lost == ()
    session.restart(num_processes=4)
    with pytest.raises(JaxnbError, match=r"`un` .* has not been summed over d yet. Nothing was lo"):
        session.load(tmp_path / "state")


@pytest.mark.thorough
def test_a_cell_that_waited_while_the_size_changed_is_not_run(
    make_session: Callable[..., Session],
) -> None:
    session = make_session(2)
    session.run("n = 1")
    errors: list[BaseException] = []

    def run() -> None:
        try:
            session.run("n += 1")
        except JaxnbError as error:
            errors.append(error)

    waiting = threading.Thread(target=run)

    def queue(stage: str, detail: str) -> None:
        if stage == "packing":
            waiting.start()
            until(lambda: len(session._work.turns._queue) == 2, "the cell waited")

    session.recover(queue, num_processes=4)
    waiting.join()
    assert "given another size, while the cell waited" in str(errors[0])
    assert session.run("n").value == 1
    assert session.restart(replay=True, num_processes=3) == 2
    assert session.run("n").value == 1
    assert_usable(session)


def test_more_processes_than_memory_has_room_for_are_refused(session: Session) -> None:
    pids = [process.pid for process in session.processes]
    for start in (
        lambda: session.restart(num_processes=10**6),
        lambda: session.recover(num_processes=10**6),
        lambda: jaxnb.start(10**6, platform="cpu"),
    ):
        with pytest.raises(UsageError, match=r"1 000 000 processes take at least 57\.2 TiB"):
            start()
    assert [process.pid for process in session.processes] == pids
    assert_usable(session)
