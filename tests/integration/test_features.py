"""What goes along with a cell: without any one of it cells run as ever."""

from __future__ import annotations

import pytest

from jaxnb.errors import CellError
from jaxnb.session import Session

FIELDS = {
    "MemoryOfCells": "memory",
    "Timekeeper": "compiles",
    "AmbientMesh": "",
    "Pitfalls": "",
    "Rounds": "",
    "NanWatch": "",
    "Paging": "",
    "Debugging": "",
    "Profiler": "",
}


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
