"""Statistics of real processes: what they count, by which names, and in whatever state they are."""

from __future__ import annotations

import pytest

from jaxnb.profile.statistics import DeviceStats
from jaxnb.session import Session

MESH = """
mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
def make(each):
    n = jax.device_count()
    return jax.make_array_from_callback(
        (n * each,), NamedSharding(mesh, P("d")), lambda index: np.ones(each, np.float32))
"""
KIB = 1 << 10


def by_name(rows: list[DeviceStats], device: int = 0) -> dict[str | None, int]:
    """The largest arrays of a device: name to bytes."""
    return {array.name: array.nbytes for array in rows[device].largest}


@pytest.mark.usefixtures("patient_answers")
def test_the_largest_arrays_are_told_by_name(session: Session) -> None:
    session.restart()  # what other tests have left in the caches of JAX and IPython is larger
    session.run(MESH + "import dataclasses, gc\n"
                "@dataclasses.dataclass\nclass Layer:\n    w: object\n"
                "x = make(64 * 256)\nstate = {'opt': [make(32 * 256)]}\n"
                "layer = Layer(make(16 * 256))\n"
                "def f(hidden=make(8 * 256)): pass\n"
                "parts = [s.data for s in x.addressable_shards]\n"
                "also = jax.make_array_from_single_device_arrays(x.shape, x.sharding, parts)\n"
                "gc.collect();")  # fmt: skip
    expected = {
        "x, also": 64 * KIB,  # they share their parts, which are not counted again
        "state['opt'][0]": 32 * KIB,
        "layer.w": 16 * KIB,
        "": 8 * KIB,
    }
    rows = session.stats()
    for device in range(8):
        assert dict(list(by_name(rows, device).items())[:4]) == expected
    shapes = {array.name: array.shape for array in session.stats()[0].largest}
    assert shapes["x, also"] == (8 * 64 * 256,)
    brief = session.stats(brief=True)
    assert [row.largest for row in brief] == [()] * 8
    assert all(row.process_pss_bytes is None and row.process_rss_bytes for row in brief)


@pytest.mark.usefixtures("patient_answers")
def test_what_is_donated_or_deleted_does_not_count(session: Session) -> None:
    session.run(
        MESH + "x, y = make(256), make(256)\nadd = jax.jit(lambda a: a + 1, donate_argnums=0)"
    )
    before = [row.bytes_in_use for row in session.stats()]
    session.run("x = add(x)\nx.block_until_ready();")
    assert [row.bytes_in_use for row in session.stats()] == before
    session.run("y.delete()")
    assert [row.bytes_in_use for row in session.stats()] == [n and n - KIB for n in before]


@pytest.mark.usefixtures("patient_answers")
def test_a_cell_says_what_it_changed(session: Session) -> None:
    made = session.run(MESH + "x = make(256)\nkept = x.addressable_data(0);")
    for each in made.per_process.values():
        assert [m.change_bytes for m in each.memory] == [KIB, KIB]
        assert {m.device_id // 2048 for m in each.memory} == {each.process_index}
    assert {r.memory for r in session.run("pass").per_process.values()} == {()}
    replaced = session.run("x, kept = make(256), None", ranks=[0, 1, 2, 3])
    assert {r.memory for r in replaced.per_process.values()} == {()}
    raised = session.run("del x\n1 / 0", raise_on_error=False)
    assert [m.change_bytes for m in raised.per_process[3].memory] == [-KIB, -KIB]


@pytest.mark.usefixtures("patient_answers")
def test_a_cells_peak_is_told(session: Session) -> None:
    found = session.run("a = np.ones(1 << 24); del a", ranks=[1]).per_process[1].memory
    (peak,) = {m.peak_bytes for m in found}
    assert peak is not None
    rss = session.stats(brief=True)[2].process_rss_bytes
    assert rss is not None
    assert peak > rss
    assert {m.peak_of for m in found} == {"process"}
    assert session.run("pass", ranks=[1]).per_process[1].memory == ()
