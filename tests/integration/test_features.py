"""What goes along with a cell: without any one of it cells run as ever."""

from __future__ import annotations

import pytest

from jaxnb.errors import CellError
from jaxnb.session import Session

FIELDS = {
    "MemoryOfCells": "memory",
    "Times": "compiles",
    "AmbientMesh": "",
    "Pitfalls": "",
    "Rounds": "",
    "NanWatch": "",
    "Paging": "",
    "Debugging": "",
}


def test_these_are_all(session: Session) -> None:
    code = (
        "from jaxnb.wire.process_features import REGISTERED; [type(f).__name__ for f in REGISTERED]"
    )
    assert session.run(code).value == [*FIELDS]


@pytest.mark.filterwarnings("ignore::jaxnb.errors.PitfallWarning")
@pytest.mark.parametrize("name", FIELDS)
def test_one_that_fails_is_left_out_and_told(session: Session, name: str) -> None:
    session.run(
        "from jaxnb.wire import process_features\n"
        f"(one,) = [f for f in process_features.REGISTERED if type(f).__name__ == {name!r}]\n"
        "def fail(cell): raise RuntimeError(why)"
    )
    for when in ("begin", "over", "told"):
        first = session.run(f"why = 'sick at {when}'; one.{when} = fail")
        try:
            result = session.run("print('said')\n40 + 2")
            assert (result.value, result.stdout) == (42, "[0-3] said\n")
            with pytest.raises(CellError, match="ZeroDivisionError"):
                session.run("1 / 0")
        finally:
            session.run(f"del one.{when}")
        (told,) = [each.message for each in (*first.pitfalls, *result.pitfalls)]
        assert told == (
            f"jaxnb has left {name} out of the cell on this process: it failed with RuntimeError: "
            f"sick at {when}. The cell is not affected."
        )


@pytest.mark.filterwarnings("ignore::jaxnb.errors.PitfallWarning")
def test_a_device_that_tells_nothing_of_its_memory_costs_no_result(session: Session) -> None:
    """As a sick GPU of one process: at the cell's begin, at its end, or amid it."""
    session.run(
        "kind, said = type(jax.local_devices()[0]), []\n"
        "healthy = kind.memory_stats\n"
        "def sick(device): raise jax.errors.JaxRuntimeError('INTERNAL: the device is lost')"
    )
    falls_ill = "if process_index == 1: kind.memory_stats = sick"
    try:
        results = [session.run(f"{falls_ill}\nprint('said')\n40 + 2") for _ in range(2)]
        with pytest.raises(CellError, match="ZeroDivisionError"):
            session.run("1 / 0")
    finally:
        session.run("kind.memory_stats = healthy")
    assert [(each.value, each.stdout) for each in results] == [(42, "[0-3] said\n")] * 2
    (told,) = [each for result in results for each in result.pitfalls]
    assert "left MemoryOfCells out of the cell" in told.message
    assert "INTERNAL: the device is lost" in told.message
    assert session.run("z = jnp.ones(1 << 20)").per_process[1].memory


@pytest.mark.parametrize("name", FIELDS)
def test_cells_run_without(session: Session, name: str) -> None:
    session.run(
        "from jaxnb.wire import process_features\nkept = list(process_features.REGISTERED)\n"
        f"process_features.REGISTERED[:] = [f for f in kept if type(f).__name__ != {name!r}]"
    )
    try:
        result = session.run("print('said')\ny = jax.jit(lambda v: v + 41)(jnp.ones(1000))\ny[0]")
        assert (result.value, result.stdout) == (42.0, "[0-3] said\n")
        if field := FIELDS[name]:
            assert not any(getattr(each, field) for each in result.per_process.values())
        with pytest.raises(CellError, match="ZeroDivisionError"):
            session.run("1 / 0")
        session.timeline()
    finally:
        session.run("process_features.REGISTERED[:] = kept")
    assert session.run("jax.jit(lambda v: v + 40)(y)[0]").per_process[0].compiles > 0
