"""What is said of how values lie over devices: arrays of all, of each, lost, and no arrays."""

from __future__ import annotations

import numpy as np
import pytest

from jaxnb.cells.card_value import value_card
from jaxnb.cells.result import Agreement
from jaxnb.errors import UsageError
from jaxnb.session import Session


def test_arrays_that_each_process_has_for_itself_are_counted_on_each(session: Session) -> None:
    session.run(
        "mine = jnp.full(4, float(process_index))\n"
        "tree = {'mine': mine, 'ones': jnp.ones(3)}\n"
        "own = jax.make_mesh((2,), ('d',), devices=jax.local_devices())\n"
        "split = jax.device_put(np.arange(4.0), NamedSharding(own, P('d')))\n"
        "odd = jnp.ones(4 + (process_index == 2))"
    )
    mine = session.layout("mine")
    assert [shard.process_index for shard in mine.shards] == [0, 1, 2, 3]
    assert len(mine.bytes_per_device) == 4
    assert "process-local: each of 4 processes has its own" in str(mine)
    assert "  0  0  0  0" not in str(mine)
    assert "  1  1  1" in str(session.layout("tree['ones']"))  # it is the same on all
    text = str(session.layout("tree"))
    assert "112 B in all" in text
    assert "28 B on each of 4 devices" in text
    split = session.layout("split")
    assert len(split.bytes_per_device) == 8
    assert split.spec == "P('d')"
    with pytest.raises(UsageError, match=r"`odd` is a different array on different processes"):
        session.layout("odd")


def test_arrays_that_are_lost_are_not_taken_for_something_else(session: Session) -> None:
    session.run(
        "from jaxnb.arrays.lost import LostArray\n"
        "gone = [LostArray('`gone` was lost') for _ in range(9)]\n"
        "some = {'w': jnp.ones(2), 'b': jnp.ones(2), 'lost': gone[0], 'step': 3}"
    )
    gone = session.layout("gone")
    assert len(gone.lost) == 9
    text = " ".join(str(gone).split())
    assert text.startswith("no arrays left lost: `gone` (9 arrays); run the cell again")
    some = " ".join(str(session.layout("some")).split())
    assert some.startswith("2 arrays")
    assert "1 leaf that is no jax.Array" in some
    assert "lost: `some['lost']`" in some


HALVES = """
half = jax.devices()[:4] if process_index < 2 else jax.devices()[4:]
mesh = jax.make_mesh((4,), ("d",), devices=half, axis_types=(jax.sharding.AxisType.Auto,))
host = np.arange(8.0) + 10 * (process_index > 1)
x = jax.make_array_from_callback((8,), NamedSharding(mesh, P("d")), lambda index: host[index])
"""


def test_meshes_of_some_processes_each_have_an_array(session: Session) -> None:
    """As JAX's guide has it: each is whole, and nothing is wrong with that."""
    session.run(HALVES)
    told = session.run("x")
    assert told.suspect == ""
    assert told.agreement is Agreement.DIFFERENT
    assert "shards of different" not in value_card(told).text
    lower, upper = np.arange(8.0), np.arange(8.0) + 10
    for value in (told.value, session.pull("x")):
        for process_index, expected in enumerate((lower, lower, upper, upper)):
            np.testing.assert_array_equal(np.asarray(value[process_index]), expected)
    with pytest.raises(UsageError, match=r"Pull it: `spmd\.pull\('x'\)` has it by process"):
        session.layout("x")


ODD_ONES = """
mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
def make(spec, host, on=mesh):
    sharding = NamedSharding(on, spec)
    return jax.make_array_from_callback(
        host.shape, sharding, lambda index: host[index], dtype=host.dtype)
host = np.arange(4.0, dtype=np.float32)
process = make(P(), host + (process_index == 2))
device = jax.make_array_from_single_device_arrays((4,), NamedSharding(mesh, P()), [
    jax.device_put(host + (process_index == 3 and k == 1), each)
    for k, each in enumerate(jax.local_devices())])
gone = make(P("data"), host)
if process_index == 2: gone.delete()
some = make(P(), host, jax.sharding.Mesh(mesh.devices[1:3], ("data", "model")))
kinds = make(P("data"), host.astype(np.int32 if process_index == 2 else np.float32))
"""


def test_what_is_no_replica_is_not_called_one(session: Session) -> None:
    found = session.run("jax.device_put(jnp.ones(3) * (1 + process_index), jax.devices()[0])")
    text = value_card(found).text
    assert "12 B on one device" in text
    assert "replica" not in text


def test_arrays_whose_shape_differs_by_process_are_told_not_to_be_one(session: Session) -> None:
    session.run("whole = NamedSharding(jax.make_mesh((jax.device_count(),), ('i',)), P('i'))")
    rows = "np.ones(jax.local_device_count() * (1 + process_index))"
    found = session.run(f"jax.make_array_from_process_local_data(whole, {rows})")
    assert "This is not one array: it spans the processes" in value_card(found).text


def test_layouts_say_where_replicas_differ_and_where_parts_are_gone(session: Session) -> None:
    session.run(ODD_ONES + "tree = {'process': process, 'device': device, 'gone': gone}")
    for name in ("process", "device"):
        text = " ".join(str(session.layout(name)).split())
        assert "and their bytes differ" in text
        assert "byte-compared" not in text
    gone = session.layout("gone")
    assert gone.array.gone == (2,)
    assert "gone on process 2" in str(gone)
    assert len(gone.bytes_per_device) == 6
    tree = str(session.layout("tree"))
    assert tree.count("replicas differ") == 2
    assert tree.count("gone on process 2") == 1
    session.run("beside = {'process': process, 'n': 1}")
    # A ref that was read is laid out and pulled as often as one likes.
    session.run("ref = jax.new_ref(make(P('data'), host))")
    for turn in range(3):
        assert session.layout("ref").array.shape == (4,)
        assert session.pull("ref", lazy=False)[0] == turn
        session.run("ref[...] = ref[...] + 1")
    # An array that stands at two places counts once.
    session.run("tied = {'embedding': make(P('data'), host), 'step': process}")
    session.run("tied['head'] = tied['embedding']")
    tied = session.layout("tied")
    assert tied.again == {1}
    assert set(tied.bytes_per_device.values()) == {4 + 16}
    assert "2 arrays at 3 places · 32 B in all" in str(tied)
    one = " ".join(str(session.layout("beside")).split())
    assert "and their bytes differ" in one
    assert "and 1 leaf that is no jax.Array" in one
    with pytest.raises(UsageError, match=r"`kinds` .*They do not fit together") as raised:
        session.layout("kinds")
    assert "pull" not in str(raised.value)


def test_what_holds_itself_is_refused(session: Session) -> None:
    """JAX's own code would leave the process at Python's limit of recursion for good."""
    session.run("""
ring = {"w": jnp.ones(2)}; ring["me"] = ring
deep = jnp.ones(2)
for _ in range(2000): deep = [deep]
""")
    before = [each.pid for each in session.processes]
    with pytest.raises(UsageError, match="`ring`, and it holds itself"):
        session.layout("ring")
    with pytest.raises(UsageError, match="`deep`, and it is nested over 300 deep"):
        session.layout("deep")
    with pytest.raises(UsageError, match=r"^Processes 0-3 have no `absent`.$"):
        session.layout("absent")
    assert session.layout("ring['w']")
    assert [each.pid for each in session.processes] == before
