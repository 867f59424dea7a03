"""What cannot be pushed is refused, and no process has a part of it."""

from __future__ import annotations

import re
import signal
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest

from integration.test_push import is_for
from jaxnb.arrays.pulling import NotMovedWarning
from jaxnb.errors import JaxnbError, NotEnoughMemoryError, UsageError
from jaxnb.session import Session
from jaxnb.wire.asking import Channel
from support.arrays import (
    MESH,
    assert_there,
    open_transfers,
    whole,
)
from support.fixtures import assert_usable


def assert_not_bound(session: Session, name: str = "x", old: Any = "old") -> None:
    """Fails unless the name has its old value on every process."""
    assert session.run(name).value == old


@pytest.fixture
def no_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test in which bytes are moved to the processes, or a name is bound."""
    from jaxnb.arrays.moving import Mover

    def refuse(*_: Any) -> None:
        raise AssertionError("something was moved")

    monkeypatch.setattr(Mover, "write", refuse)


def test_keys_of_the_notebook(session: Session) -> None:
    session.run(MESH + "there = jax.random.split(jax.random.key(0), 8)")
    here = jax.random.key(0), jax.random.split(jax.random.key(0), 8), session.pull("there")
    for key in here:
        for more in ({}, {"mesh": "mesh"}):
            with pytest.raises(UsageError, match=r"key<fry>.*Nothing was moved.*wrap_key_data"):
                session.push(x=key, **more)


@pytest.mark.parametrize("mesh", [3, jax.make_mesh((1,), ("a",))], ids=["number", "mesh"])
def test_a_mesh_is_named(session: Session, no_writes: None, mesh: Any) -> None:
    with pytest.raises(UsageError, match=r"mesh is the NAME of a mesh .* mesh='mesh'"):
        session.push(x=np.ones(8), mesh=mesh)


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.array(["a"] * 8), "dtype <U1"),
        (np.array([None] * 8), "dtype object"),
        (np.zeros(8, "M8[s]"), "dtype datetime64"),
        (np.zeros(8, np.longdouble), "dtype float128"),
        (np.ma.masked_array(np.ones(8), True), "lose its mask"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_arrays_that_jax_does_not_have(
    session: Session, no_writes: None, array: np.ndarray, says: str
) -> None:
    session.run(MESH + "x = 'old'")
    for value in (array, {"a": [array]}):
        with pytest.raises(UsageError, match=re.escape(says)) as raised:
            session.push(x=value, spec="data")
        assert "Nothing was moved" in str(raised.value)
    assert_not_bound(session)


DO_NOT_FIT: list[tuple[Any, Any, str]] = [
    (np.full(8, 2**31), None, "do not fit"),
    ({"a": [1, 2**31]}, None, "does not fit"),
    (np.array([1.0, 1e300, np.inf] * 8), None, "do not fit"),
    ([1e300j], None, "does not fit"),
    ({"a": np.ones(8)}, {"b": "data"}, "The specs of `x` are for b, the value has a"),
    ([np.ones(8)], ["data", None], "The specs of `x` are for 0, 1, the value has 0"),
    (np.ones(8), {"x": "data"}, "`x` is a single value and has no parts"),
    ({"a": 3}, "data", "`x['a']` of shape () cannot be placed by P('data')"),
    ({1: np.ones(8), "a": np.ones(8)}, "data", "JAX cannot take `x` apart"),
    (whole((8, 6)), "dat", "Resource axis: dat"),
    (whole((8, 6)), (("data", "data"),), "duplicate entries for `data`"),
    (whole((8, 6)), (None, "data"), "partitioned 4 times, but the dimension size is 6"),
    (whole((8, 6)), 3, "3 is not a partition spec"),
]
"""A value, its specs, and what is said."""


def test_what_does_not_fit_is_refused(session: Session, no_writes: None) -> None:
    session.run(MESH + "x = 'old'")
    for value, spec, says in DO_NOT_FIT:
        with pytest.raises(UsageError, match=re.escape(says)) as raised:
            session.push(x=value, spec=spec, mesh="mesh")
        assert "Nothing was moved" in str(raised.value)
    assert_not_bound(session)


def test_arrays_that_jax_does_not_see(session: Session, classes: ModuleType) -> None:
    session.run(MESH)
    with pytest.raises(UsageError, match=r"shape \(8,\) is inside an object .* is not a pytree"):
        session.push(x=[classes.Opaque(np.ones(8))], spec="data")
    array = whole((8,))
    session.push(x=[array, classes.Opaque(array)], spec=["data", None])
    assert session.run("x[1].array is x[0]").value is True
    session.push(x=classes.Opaque(np.ones(8)))
    assert session.run("x.array.sum()").value == 8


def test_which_mesh(session: Session, no_writes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    array = whole((8, 6))
    with pytest.raises(UsageError, match=r"There is no mesh on the processes.*jax.make_mesh"):
        session.push(x=array, spec="data")
    session.run(MESH + "a = mesh_of(shape=(8,), names=('a',))\ny = 1")
    with pytest.raises(UsageError, match=r"more than one mesh: a, mesh.*`--mesh NAME`, in Python"):
        session.push(x=array, spec="data")
    with pytest.raises(
        UsageError, match=r"There is no `mes` .*Did you mean 'mesh'.*Meshes: a, mesh"
    ):
        session.push(x=array, spec="data", mesh="mes")
    with pytest.raises(UsageError, match="`y` is not a mesh but a int"):
        session.push(x=array, spec="data", mesh="y")
    monkeypatch.undo()
    session.push(x=array, mesh="a", spec="a")
    assert_there(session, "x", array, "'a'", mesh="a")
    session.push(x=array, mesh="mesh")
    assert_there(session, "x", array)
    session.run("other = mesh\ndel a")  # two names of one mesh
    session.push(x=array, spec="data")
    assert_there(session, "x", array, "'data'")


def test_meshes_that_differ_by_process(session: Session, no_writes: None) -> None:
    session.run(MESH + "x = 'old'\nif process_index == 2: mesh = Mesh(mesh.devices[::-1],"
                " ('data', 'model'))")  # fmt: skip
    with pytest.raises(UsageError, match=r"meshes differ \(processes 0-1,3: .*; process 2: "):
        session.push(x=whole((8, 6)), spec="data")
    assert_not_bound(session)
    assert open_transfers(session) == 0
    session.run("if process_index == 1: del mesh")
    with pytest.raises(UsageError, match="There is no mesh on the processes"):
        session.push(x=whole((8, 6)), spec="data")
    assert_not_bound(session)


@pytest.mark.parametrize("more", [{}, {"mesh": "mesh"}], ids=["plain", "placed"])
def test_a_value_that_one_process_cannot_make(
    session: Session, classes: ModuleType, more: dict[str, Any]
) -> None:
    session.run(MESH + "x = y = 'old'")
    with pytest.raises(JaxnbError, match=r"Process 2 of 4 raised RuntimeError: cannot be set"):
        session.push(y=np.ones(100_000), x=[classes.Fails(on=(2,)), np.ones(8)], **more)
    assert_not_bound(session, "x")
    assert_not_bound(session, "y")
    assert open_transfers(session) == 0
    session.push(x=[classes.Fails(on=())])
    assert session.run("type(x[0]).__name__").value == "Fails"
    assert_usable(session)


def test_a_class_that_the_processes_lack(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("class Thing:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import only_here  # type: ignore[import-not-found]

    session.push(x="old")
    with pytest.raises(JaxnbError, match="No module named 'only_here'"):
        session.push(x=only_here.Thing(), y=1)
    assert_not_bound(session)
    with pytest.raises(UsageError, match="have no `y`"):
        session.pull("y")


def test_a_function_of_the_notebook(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def step() -> None: ...

    step.__module__, step.__qualname__ = "__main__", "step"
    monkeypatch.setattr(sys.modules["__main__"], "step", step, raising=False)
    session.push(x="old")
    with pytest.raises(JaxnbError, match=r"`step` is defined in the notebook.*`%%spmd` cell, so"):
        session.push(x=[step])
    assert_not_bound(session)
    session.run("def step(): ...")
    session.push(x=[step])
    assert session.run("x == [step]").value


@pytest.mark.parametrize(
    "value",
    [threading.Lock(), [{"a": open}, lambda: 2]],
    ids=["lock", "nested"],
)
def test_what_cannot_be_pickled(session: Session, no_writes: None, value: Any) -> None:
    session.run("x = 'old'")
    with pytest.raises(UsageError, match=r"^`x` cannot be pickled .* Nothing was moved"):
        session.push(y=1, x=value)
    assert_not_bound(session)


@pytest.mark.parametrize("step", ["place", "release"])
def test_an_interrupt_before_the_end_binds_nothing_and_later_it_says_so(
    session: Session, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    session.run("x = 'old'")
    does = "ask" if step == "place" else "tell"
    original = getattr(Channel, does)

    def interrupt(self: Channel, requests: Any, *more: Any) -> Any:
        answers = original(self, requests, *more)
        if any(is_for(request, step) for request in requests.values()):
            signal.raise_signal(signal.SIGINT)
        return answers

    with monkeypatch.context() as patch:
        patch.setattr(Channel, does, interrupt)
        with pytest.raises(KeyboardInterrupt) as raised:
            session.push(x="new")
    if step == "release":
        assert re.search(r"too late: `x` was pushed.*new values", str(raised.value))
    else:
        assert str(raised.value) == ""
    assert_not_bound(session, old="new" if step == "release" else "old")
    assert open_transfers(session) == 0


def test_what_goes_in_the_first_message_counts_too(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.run("x = 'old'")
    monkeypatch.setattr("jaxnb.arrays.refusals.available_bytes", lambda: 1 << 24)
    asked: list[Any] = []
    monkeypatch.setattr(Channel, "ask", lambda *args, **more: asked.append(args))
    with pytest.raises(NotEnoughMemoryError, match=r"`x` needs 19.1 MiB on the processes"):
        session.push(x=bytes(5_000_000))
    assert not asked
    monkeypatch.undo()
    assert_not_bound(session)


def test_more_than_one_process_has_memory_for(session: Session) -> None:
    session.run(
        "from jaxnb.arrays import process_pushes\nkept = process_pushes.available_bytes\n"
        "process_pushes.available_bytes = lambda: 2048\nx = 'old'"
    )
    try:
        with pytest.raises(NotEnoughMemoryError, match=r"`x` needs 4\.00 MiB .* where 2\.00 KiB"):
            session.push(x=np.zeros(1 << 20, np.float32))
    finally:
        session.run("process_pushes.available_bytes = kept")
    assert_not_bound(session)


def test_what_only_stands_for_something_is_not_pushed_back(session: Session) -> None:
    """It would take the place of what it stands for."""
    session.run("held = {'scale': lambda x: x, 'n': 1}")
    with pytest.warns(NotMovedWarning):
        held = session.pull("held")
    with pytest.raises(UsageError, match="<not moved: function <lambda>>, which only stands for"):
        session.push(held=held)
    assert session.run("held['scale'](7)").value == 7
    session.push(held={"n": held["n"]})


def test_what_one_process_refuses_is_undone_on_the_others(session: Session) -> None:
    """Little data are bound by the first answer: what a name was bound to before, it is again."""
    session.run(MESH + "x, older = 'old', mesh\nhidden = 'x' in get_ipython().user_ns_hidden")
    session.run("del mesh", ranks=[1])
    names = "sorted(set(globals()) & {'x', 'y', 'jnp'}), 'jnp' in get_ipython().user_ns_hidden"
    before = session.run(names).value
    for _ in range(2):
        with pytest.raises(UsageError, match="There is no `mesh` on the processes"):
            session.push(x=1, y=np.zeros(8), jnp=2, mesh="mesh")
        assert session.run(names).value == before
        assert session.run("x, jnp.ones(1).size").value == ("old", 1)
    assert open_transfers(session) == 0
    session.run("mesh = older")
    session.push(x=1, y=np.zeros(8), mesh="mesh")
    assert session.run("int(x), y.size").value == (1, 8)
    assert open_transfers(session) == 0
