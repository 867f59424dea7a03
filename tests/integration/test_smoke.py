from __future__ import annotations

from jaxnb.session import Session


def test_a_cell_runs_on_every_process(session: Session) -> None:
    result = session.run("print('hi'); process_index")
    assert dict(result.value) == {0: 0, 1: 1, 2: 2, 3: 3}
    assert result.stdout == "[0-3] hi\n"
