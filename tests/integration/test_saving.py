"""Variables that one group has saved, loaded by another."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import jaxnb
from jaxnb.errors import CellError, JaxnbError, UsageError
from jaxnb.session import Session

STATE = """
import dataclasses
mesh = jax.make_mesh((8,), ("a",), axis_types=(jax.sharding.AxisType.Auto,))
rows = NamedSharding(mesh, P("a"))
numbers = np.arange(4096 * 64.0).reshape(4096, 64)
x = jax.make_array_from_callback((4096, 64), rows, lambda i: numbers[i])
@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    w: jax.Array
    step: int
@jax.jit
def step(state):
    return State(state.w * 2 + 1, state.step + 1)
state = step(State(x, 3))
own = process_index * 10
lazy = (i for i in range(3))
_hidden = "kept"
np.random.seed(process_index)
random_state = np.random.rand()
"""

CHECK = "float(step(state).w.sum()), int(step(state).step), own, _hidden, float(np.random.rand())"


@pytest.fixture(scope="module")
def other() -> Iterator[Session]:
    """A group that has computed nothing."""
    with jaxnb.start(4, devices_per_process=2, platform="cpu") as session:
        yield session


@pytest.fixture(params=[0o002, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    """The notebook's, while the test runs; that of Debian's ordinary users is 002."""
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.fixture
def saved(session: Session, tmp_path: Path) -> Path:
    session.run(STATE)
    session.save(tmp_path / "state")
    return tmp_path / "state"


@pytest.mark.usefixtures("umask")
def test_it_goes_on_with_what_was_saved(session: Session, other: Session, saved: Path) -> None:
    expected = {i: p.value for i, p in session.run(CHECK).per_process.items()}
    loaded = other.load(saved)
    assert {i: p.value for i, p in other.run(CHECK).per_process.items()} == expected
    assert {"x", "mesh", "state", "State", "step", "own", "_hidden"} <= {*loaded.names}
    assert other.run("state.w.sharding.mesh is mesh and type(state) is State").value
    (lost,) = loaded.lost
    assert (lost.path, lost.type, lost.processes) == ("lazy", "generator", (0, 1, 2, 3))
    with pytest.raises(CellError, match=r"`lazy` \(generator\) was not carried over"):
        other.run("next(lazy)")
    assert [*saved.parent.iterdir()] == [saved]
    assert saved.stat().st_mode & 0o777 == 0o700
    assert {each.stat().st_mode & 0o777 for each in saved.iterdir()} == {0o600}


def test_some_variables(session: Session, other: Session, saved: Path) -> None:
    other.run("own = 'old'")
    assert other.load(saved, ["x"]).names == ("x",)
    assert other.run("own").value == "old"
    session.run("x = x + 1")
    session.save(saved, ["x", "own"], overwrite=True)
    assert json.loads((saved / "variables.json").read_text())["variables"] == {
        "x": "float32[4096, 64] over P('a',)",
        "own": "int",
    }
    assert other.load(saved).names == ("x", "own")
    assert other.run("float(x[0, 0])").value == 1.0


@pytest.mark.parametrize(
    ("folder", "names", "why"),
    [
        ("state", (), "has saved variables already"),
        (".", (), "has no saved variables"),
        ("nowhere/state", (), "There is no directory"),
        ("new", ("x", "y"), "Process 0 has no `y`"),
    ],
)
def test_what_is_not_saved(
    session: Session, saved: Path, folder: str, names: tuple[str, ...], why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        session.save(saved.parent / folder, names)
    assert [*saved.parent.iterdir()] == [saved]


def test_a_full_disk_leaves_what_was_there(session: Session, saved: Path) -> None:
    session.run("import resource\nlimit = resource.getrlimit(resource.RLIMIT_FSIZE)")
    session.run("resource.setrlimit(resource.RLIMIT_FSIZE, (65536, limit[1]))", ranks=[2])
    with pytest.raises(JaxnbError, match=r"^Process 2 could not write to .*Nothing was sav"):
        session.save(saved, overwrite=True)
    session.run("resource.setrlimit(resource.RLIMIT_FSIZE, limit)")
    assert [*saved.parent.iterdir()] == [saved]
    assert session.load(saved).lost
    assert session.run("own").per_process[3].value == 30


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-7]), "Process 1 found its file not as"),
        (
            lambda file: file.write_bytes(file.read_bytes()[:-1] + b"?"),
            "Process 1 found its file not as",
        ),
        (lambda file: file.unlink(), r"cannot be read \(No such file"),
        (lambda file: file.chmod(0o606), "can be written by other users"),
    ],
)
def test_a_file_that_was_changed(other: Session, saved: Path, harm: object, why: str) -> None:
    assert callable(harm)
    harm(saved / "process-00001")
    other.run("own = 'old'")
    with pytest.raises(JaxnbError, match=why):
        other.load(saved)
    assert other.run("own").value == "old"


@pytest.mark.thorough
def test_what_another_version_wrote(other: Session, saved: Path) -> None:
    file = saved / "variables.json"
    manifest = json.loads(file.read_text())
    manifest["group"]["jax"] = "0.0.1"
    file.write_text(json.dumps(manifest))
    assert "Saved with JAX 0.0.1, loaded with" in str(other.load(saved))
    file.write_text(json.dumps(manifest | {"format": 99}))
    with pytest.raises(UsageError, match="by another version of jaxnb"):
        other.load(saved)
    file.write_text("{")
    with pytest.raises(JaxnbError, match="not as it was written"):
        other.load(saved)


def test_what_one_process_alone_has(session: Session, other: Session, tmp_path: Path) -> None:
    session.run("%env A=1\nalone = 1", ranks=[2])  # which In has otherwise than _i
    (tmp_path / "empty").mkdir()
    assert "Only on process 2: `alone`." in str(session.save(tmp_path / "empty"))
    assert "Only on process 2: `alone`." in str(other.load(tmp_path / "empty"))
    assert other.run("alone", ranks=[2]).value == 1
    with pytest.raises(UsageError, match=r"`alone` on process 2 only. Nothing was loaded"):
        other.load(tmp_path / "empty", ["alone"])
    with pytest.raises(UsageError, match=r"no `alon`. Nothing was loaded. It has .*`alone`"):
        other.load(tmp_path / "empty", ["alon"])


@pytest.mark.usefixtures("umask")
def test_what_was_packed_is_not_lost_where_a_restart_fails(other: Session) -> None:
    other.run("own = process_index")

    def fail(stage: str, detail: str) -> None:
        if stage == "unpacking":
            raise RuntimeError(stage)

    with pytest.raises(RuntimeError) as caught:
        other.recover(fail)
    (note,) = caught.value.__notes__
    folder = Path(note.partition("variables are in ")[2].partition(":")[0])
    assert other.load(folder).names
    assert other.run("own").per_process[3].value == 3
    shutil.rmtree(folder)
