"""A comparison on the processes shows its output while it runs, and its call in tracebacks."""

from __future__ import annotations

import pytest

from jaxnb.cells.merge_output import MergedLine
from jaxnb.cells.sinks import NoSink
from jaxnb.errors import CellError
from jaxnb.session import Session

SETUP = """
mesh = jax.make_mesh((jax.device_count(),), ("i",))
def doubled(x):
    print("is traced")
    return 2 * x
"""


class Lines(NoSink):
    def __init__(self) -> None:
        self.said: list[str] = []

    def lines(self, lines: list[MergedLine]) -> None:
        self.said += [line.text for line in lines]


def test_output_goes_to_the_sink(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    session.run(SETUP)
    sink = Lines()
    session.compare("doubled(np.ones(8))", specs={"a": "P('i')"}, run=False, sink=sink)
    assert set(sink.said) == {"is traced"}
    assert capsys.readouterr().out == ""


def test_a_traceback_shows_the_call(session: Session) -> None:
    session.run(SETUP)
    with pytest.raises(CellError) as caught:
        session.compare("undefined(np.ones(8))", specs={"a": "P('i')"}, cell=77)
    assert caught.value.result.cell == 77
    for error in caught.value.result.errors.values():
        assert "1 undefined(np.ones(8))" in error.traceback
        assert "__import__" not in error.traceback
