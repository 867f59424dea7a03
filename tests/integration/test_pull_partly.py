"""What is pulled where a part is gone, differs by process or cannot be pickled: it is named."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from jaxnb.arrays.lost import PerProcess, Record
from jaxnb.arrays.pulling import (
    NotMovedWarning,
    ReplicasDifferWarning,
)
from jaxnb.cells.result import Agreement
from jaxnb.errors import (
    ArrayGoneError,
    JaxnbError,
    UsageError,
)
from jaxnb.session import Session
from support.arrays import (
    ALL,
    MESH,
    assert_same,
    whole,
)


def test_classes_of_a_cell_come_as_records(session: Session) -> None:
    session.run(MESH + textwrap.dedent("""
        import dataclasses, typing
        @dataclasses.dataclass
        class Model:
            w: typing.Any
            inner: typing.Any
        class State(typing.NamedTuple):
            step: typing.Any
            b: typing.Any
        model = Model(make((8,), "data"), [State(jnp.int32(3), make((4,)))])
    """))  # fmt: skip
    model = session.pull("model")
    assert isinstance(model, Record)
    assert list(model) == ["w", "inner"]
    assert_same(model.w, whole((8,)))
    assert int(model.inner[0].step) == 3
    assert_same(session.pull("model.inner[0].b[1:3]"), whole((4,))[1:3])
    with pytest.raises(AttributeError, match=r"Model has no part 'v'; it has w, inner"):
        model.v  # noqa: B018


REPLICAS = (
    "def replicas(spec, start):\n"
    "    return jax.make_array_from_single_device_arrays((4, 3), NamedSharding(mesh, spec),\n"
    "        [jax.device_put(np.full((4, 3) if spec == P() else (1, 3), float(start)), d)\n"
    "         for d in jax.local_devices()])\n"
)


def test_replicas_that_differ(session: Session) -> None:
    session.run(MESH + REPLICAS + "x = replicas(P(), process_index // 2)")
    with pytest.warns(ReplicasDifferWarning, match=(
        r"The replicas of `x` differ in 1 part, the first \[0:4, 0:3\]: "
        r"processes 0-1 ≠ processes 2-3"
    )) as caught:  # fmt: skip
        array = session.pull("x")
    assert [w.filename for w in caught] == [__file__]
    assert_same(array, np.zeros((4, 3), np.float32))
    assert_same(array.shards[-1].data, np.ones((4, 3), np.float32))
    session.run(
        "t = {'ok': replicas(P(), 0), 'a': x, 'b': replicas(P(), x.shape[0] + process_index // 2)}"
    )
    with pytest.warns(ReplicasDifferWarning) as caught:
        session.pull("t")
    said = [str(each.message).partition(" differ")[0] for each in caught]
    assert said == [f"The replicas of array {k} of `t` (float32[4,3])" for k in (1, 2)]


LARGE = MESH + "x = make((1024, 512), 'data', 'model');"


def test_an_array_that_was_replaced_is_still_what_it_was(session: Session) -> None:
    session.run(LARGE)
    array, other = session.pull("x"), session.pull("x")
    session.run("old, x = x, x + 1;")
    assert_same(array, whole((1024, 512)))
    session.run("del old")
    assert_same(array, whole((1024, 512)))
    with pytest.raises(ArrayGoneError, match=(
        r"`x` was replaced or dropped since on process.*pull\('x', lazy=False\)` has what is there"
    )):  # fmt: skip
        other[0]
    session.run("del x")


def test_a_ref_that_was_written_to_does_not_show_what_came_later(session: Session) -> None:
    session.run(LARGE + "r = jax.new_ref(x)\n@jax.jit\ndef up(r): r[...] = r[...] * 0\n")
    lazy, read = session.pull("r"), session.pull("r", lazy=False)
    session.run("up(r)")
    with pytest.raises(ArrayGoneError, match="`r` was replaced or dropped since"):
        lazy[0]
    assert_same(read, whole((1024, 512)))
    assert not np.asarray(session.pull("r")[0]).any()
    session.run("del r, x")


@pytest.mark.parametrize(
    "code", ["x.delete()", "x = jax.jit(lambda x: x + 1, donate_argnums=0)(x);"]
)
def test_an_array_that_was_deleted(session: Session, code: str) -> None:
    session.run(LARGE + "\nkeep = x")
    array, other = session.pull("x"), session.pull("x")
    np.asarray(array)
    session.run(code)
    with pytest.raises(ArrayGoneError, match=r"`x` was deleted since, or donated to a computation"):
        np.asarray(other)
    assert_same(array, whole((1024, 512)))
    keep = session.pull("keep")
    assert repr(keep).startswith("<GatheredArray")
    with pytest.raises(ArrayGoneError, match="deleted"):
        np.asarray(keep)


def test_values_that_differ(session: Session) -> None:
    session.run(MESH + "r = process_index\nlocal = jnp.arange(r + 1)\ns = 'same'\n"
                "mixed = {'x': make((8, 6), 'data'), 'r': r}\nn = np.float32(r // 2)")  # fmt: skip
    assert session.pull("r") == PerProcess({i: i for i in ALL})
    assert isinstance(session.pull("n"), PerProcess)
    assert session.pull("s") == "same"
    assert session.pull("r", ranks=[2]) == 2
    assert session.pull("r", ranks=[3, 1]) == {1: 1, 3: 3}
    local = session.pull("local")
    assert [local[i].shape for i in ALL] == [(1,), (2,), (3,), (4,)]
    for i in ALL:
        assert_same(local[i], np.arange(i + 1, dtype=np.int32))
        assert_same(local[i].shards[0].data, np.arange(i + 1, dtype=np.int32))
    mixed = session.pull("mixed")
    assert mixed[1]["r"] == 1
    assert_same(mixed[1]["x"][2:4], whole((8, 6))[2:4])  # its own part
    with pytest.raises(
        JaxnbError,
        match="differs by process, so its arrays were not put together: pull the array by",
    ):
        np.asarray(mixed[1]["x"])
    assert_same(session.pull("mixed['x']"), whole((8, 6)))


def test_an_array_of_other_shapes_on_some_processes(session: Session) -> None:
    session.run(
        "rows = NamedSharding(jax.make_mesh((jax.device_count(),), ('d',)), P('d'))\n"
        "x = jax.make_array_from_process_local_data(rows, np.ones(2 + 2 * (process_index == 2)))"
    )
    with pytest.raises(UsageError, match=(
        r"float32\[8\] P\('d'\) on processes 0-1,3, float32\[16\] P\('d'\) on process 2"
    )) as caught:  # fmt: skip
        session.pull("x[:2]")
    found = re.search(r"`%spmd (.*?)` shows", str(caught.value))
    assert found is not None
    parts = session.run(found[1]).per_process
    assert [np.concatenate(parts[i].value).size for i in ALL] == [2, 2, 4, 2]
    # Of several meshes each has its own: no process knows of two.
    session.run(
        "r = process_index\nown = [d for d in jax.devices() if d.process_index // 2 == r // 2]\n"
        "stage = jax.make_array_from_callback((4 + 4 * (r // 2),),"
        " NamedSharding(jax.sharding.Mesh(own, 'p'), P('p')), lambda i: np.arange(8.0)[i])"
    )
    stages = session.pull("stage", lazy=False)
    assert [np.asarray(stages[i]).size for i in ALL] == [4, 4, 8, 8]


def test_a_ref_on_one_device_is_not_read_after_a_write(session: Session) -> None:
    """JAX's array of it is the same one before and after."""
    session.run("ref = jax.new_ref(jnp.zeros(1 << 19)); small = jax.new_ref(jnp.zeros(4))")
    at_once, later = session.pull("ref", lazy=False), session.pull("ref")
    small = session.pull("small")
    session.run("ref[...] = jnp.ones(1 << 19)\nsmall[...] = jnp.ones(4)")
    assert np.asarray(at_once).max() == 0
    assert_same(small, np.zeros(4, np.float32))
    with pytest.raises(
        ArrayGoneError, match="is a ref on one device, which may have been written to since"
    ):
        np.asarray(later)


def test_part_of_a_global_array(session: Session) -> None:
    session.run(MESH + "x = make((8, 6), 'data')\ny = make((8, 6));")
    part = session.pull("x", ranks=[1, 2])
    assert_same(part[2:6], whole((8, 6))[2:6])
    with pytest.raises(JaxnbError, match=(
        r"2 parts of `x`, the first \[0:2, 0:6\], cannot be pulled: processes 0,3 gave no "
        r"part of it in this pull.*from all processes"
    )):  # fmt: skip
        np.asarray(part)
    assert_same(session.pull("y", ranks=[3]), whole((8, 6)))


def test_names_that_some_processes_lack(session: Session) -> None:
    session.run("if process_index != 2: x = 1\nif process_index == 0: d = {'k': 5}\nelse: d = {}")
    with pytest.raises(UsageError, match=(
        r"Process 2 has no `x`. Nothing was moved. For processes 0-1,3 only, type "
        r"`spmd.pull\('x', ranks=\[0, 1, 3\]\)`"
    )):  # fmt: skip
        session.pull("x")
    assert session.pull("x", ranks=[0, 1, 3]) == 1
    with pytest.raises(UsageError, match=r"Processes 0-3 have no `nothing`. Nothing was moved.$"):
        session.pull("nothing")
    with pytest.raises(UsageError, match=r"Processes 1-3 have no `d\['k'\]` \(KeyError: 'k'\)"):
        session.pull("d['k']")


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("x = (i for i in ())", "generator"),
        ("import threading\nx = threading.Lock()", "lock"),
        ("x = np", "module"),
        ("leak = []\njax.jit(lambda y: leak.append(y) or y)(1.0);\nx = leak[0]", "tracer"),
    ],
)
def test_what_cannot_be_pickled(session: Session, code: str, says: str) -> None:
    session.run(code)
    with pytest.raises(JaxnbError, match=says) as raised:
        session.pull("x")
    assert "`x` on process 0 cannot be pulled" in str(raised.value)
    assert "unchanged on the process" in str(raised.value)
    assert "`spmd.run('repr(x)').value`" in str(raised.value)
    assert session.run("1 + 1").value == 2


def test_what_cannot_be_read_here(session: Session, tmp_path: Path) -> None:
    (tmp_path / "only_there.py").write_text("class Thing:\n    pass\n")
    session.run(f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport only_there\n"
                "x = only_there.Thing()\nsys.path.pop(0);")  # fmt: skip
    with pytest.raises(JaxnbError, match=r"`x` \(Thing\) on process 0 cannot be read in the "
                       "notebook: ModuleNotFoundError: No module named 'only_there'"):  # fmt: skip
        session.pull("x")


def test_a_class_of_a_cell_stays_and_attributes_beside_fields_come(session: Session) -> None:
    session.run(
        "import dataclasses\n@dataclasses.dataclass\nclass Of:\n    a: object\n"
        "kept = {'w': 1, 'class': Of}\nvalue = Of(1); value.extra = process_index"
    )
    with pytest.warns(NotMovedWarning, match="of `kept` .*: type Of"):
        assert session.pull("kept")["w"] == 1
    assert [session.pull("value")[i].extra for i in (0, 1)] == [0, 1]
    assert session.run("value").agreement is Agreement.DIFFERENT


def test_code_of_cells_stays_and_is_named(session: Session) -> None:
    """A model has arrays, and functions of a cell: the arrays come."""
    session.run(
        "import dataclasses, functools\n"
        "class Odd:\n    pass\n"
        "@dataclasses.dataclass\nclass Net:\n    w: int\n    def apply(self): return self.w\n"
        "def outer():\n    def init(): return 1\n    return init\n"
        "model = {'w': jnp.ones(3), 'act': lambda x: x, 'init': outer(), 'odd': Odd(),\n"
        "         'apply': Net(1).apply,\n"
        "         'layers': [jnp.zeros(2), functools.partial(jax.jit(lambda x, y: x), 1)]}"
    )
    with pytest.warns(NotMovedWarning) as caught:
        model = session.pull("model")
    (warning,) = caught
    said = str(warning.message)
    assert said.startswith("Parts of `model` refer to code on the processes and stayed there: ")
    for part in (
        "function <lambda>",
        "function outer.<locals>.init",
        "Odd object",
        "method Net.apply",
    ):
        assert part in said
    np.testing.assert_array_equal(model["w"], np.ones(3))
    np.testing.assert_array_equal(model["layers"][0], np.zeros(2))
    assert repr(model["act"]) == "<not moved: function <lambda>>"
    with pytest.raises(RuntimeError, match="on the processes only"):
        model["layers"][1]()
    for text in ("model['act']", "model['odd']"):
        with pytest.raises(JaxnbError, match=f"{re.escape(text)}` on process 0 cannot be pulled"):
            session.pull(text)


def test_code_in_objects_is_left_out(session: Session, classes: ModuleType) -> None:
    session.run(
        "net = classes.Layer(np.ones(2), lambda: 1, [{'f': lambda: 2}])\n"
        "itself = [lambda: 1]\nitself.append(itself)"
    )
    with pytest.warns(NotMovedWarning, match="of `net` .*function <lambda>"):
        net = session.pull("net")
    assert isinstance(net, classes.Layer)
    np.testing.assert_array_equal(net.w, np.ones(2))
    with pytest.warns(NotMovedWarning, match="of `itself`"):
        assert session.pull("itself")[1][1]


def test_a_value_with_a_part_that_cannot_be_pickled_is_refused(session: Session) -> None:
    session.run(
        "import threading\nmesh = jax.make_mesh((8,), ('d',))\n"
        "tree = {'mesh': mesh, 'w': 1}\nheld = {'lock': threading.Lock()}"
    )
    for text in ("mesh", "tree", "held"):
        with pytest.raises(JaxnbError, match=f"`{text}` on process 0 cannot be pulled.*its parts"):
            session.pull(text)
    assert session.pull("tree['w']") == 1
