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
