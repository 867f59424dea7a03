"""Objects of the user's that raise whatever is asked of them, or whose object is gone."""

from __future__ import annotations

import numpy as np
import pytest

from jaxnb.cells.card_value import value_card
from jaxnb.cells.result import Agreement
from jaxnb.errors import CellError
from jaxnb.session import Session

SETUP = """
import weakref
class Config(dict):
    def __getattr__(self, name):
        return self[name]
class Raises:
    def __getattr__(self, name):
        raise RuntimeError(f"asked for {name}")
class NoClass:
    @property
    def __class__(self):
        raise RuntimeError("asked for its class")
class Any:
    def __getattr__(self, name):
        return self
gone = Raises()
config, raises, no_class, anything, proxy = (
    Config(lr=0.1), Raises(), NoClass(), Any(), weakref.proxy(gone)
)
del gone
mesh = jax.make_mesh((jax.device_count(),), ("d",))
x = jax.make_array_from_callback(
    (8,), NamedSharding(mesh, P("d")), lambda i: np.arange(8.0)[i]
)
"""


def test_they_can_be_had(session: Session, capfd: pytest.CaptureFixture[str]) -> None:
    """Cells, pulls and pushes look at all that names are bound to, for arrays and meshes."""
    session.run(SETUP, check="off")  # then the next cell looks for arrays that have no origin
    assert session.run("config.lr").value == 0.1
    assert session.run("float(x.sum())").value == 28
    with pytest.raises(CellError, match="ZeroDivisionError"):
        session.run("1 / 0")
    assert "sentinel" not in capfd.readouterr().err
    session.push(w=np.ones(8), spec=("d",))
    assert session.run("float(w.sum())").value == 8


def test_sets_that_were_filled_in_another_order_are_the_same(session: Session) -> None:
    fill = (
        "found = set()\nfor k in [64 * n for n in range(20)][:: 1 if process_index % 2 else -1]:\n"
        "    found.add(k)\n"
    )
    told = session.run(fill + "{'found': found, 'ones': jnp.ones(2)}")
    assert told.agreement is Agreement.SAME
    assert session.pull("found") == {64 * n for n in range(20)}
    session.run("if process_index == 2: found.add(1)")
    assert session.run("found").agreement is Agreement.DIFFERENT
    many = session.run("set(range(200_000))")
    assert many.agreement is Agreement.UNCOMPARED
    assert "it has sets, and over 100000 parts" in value_card(many).text
