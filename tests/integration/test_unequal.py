"""What rests on unequal inputs is followed, and never shown as "same"."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jaxnb.display.cards_error import error_groups
from jaxnb.display.cards_layout import layout_card
from jaxnb.display.cards_value import value_card
from jaxnb.errors import CellError, DivergenceWarning, ProcessDiedError
from jaxnb.result import Agreement
from jaxnb.session import Session

SETUP = """
mesh = jax.make_mesh((jax.device_count(),), ("d",))
sharded, whole = NamedSharding(mesh, P("d")), NamedSharding(mesh, P())
def make(value, sharding=whole, size=64):
    host = np.full(size, value, np.float32)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])
x = make(1, sharded)
# Each process's own `w` counts for its own part, and the sum is the same everywhere.
loss_of = jax.jit(lambda x, w: (x * w).sum())
"""

CAUSE = r"rests on unequal inputs: `w` was not equal on all processes \(cell \[\d+\], line 2\)"


@pytest.fixture
def loss(session: Session, patient_answers: None) -> Session:
    """A session whose ``loss`` has equal bytes everywhere, and rests on unequal ``w``."""
    session.run(SETUP)
    with pytest.warns(DivergenceWarning, match=r"`w` .* process 0 ≠ process 1 ≠ process 2"):
        result = session.run("w = make(process_index)\nloss = loss_of(x, w)\nloss")
    assert result.agreement is Agreement.SUSPECT
    assert [each.name for each in result.unequal] == ["`w`"]
    assert "equal bytes on 4 processes, but it rests on unequal inputs: `w`" in (
        value_card(result).text.replace("\n  ", " ")
    )
    return session


def test_values_of_later_cells_say_so(loss: Session) -> None:
    result = loss.run("loss")
    assert result.agreement is Agreement.SUSPECT
    with pytest.warns(DivergenceWarning, match=CAUSE):
        assert float(result.value) == 96.0
    assert loss.run("y = jax.jit(lambda x, loss: x + loss)(x, loss)\ny").suspect
    assert loss.run("float(loss)").agreement is Agreement.SUSPECT
    assert loss.run("np.asarray(loss.addressable_data(0))").suspect
    assert loss.run("[loss]").suspect
    with pytest.warns(DivergenceWarning, match=f"This cell {CAUSE}"):
        loss.run("print(float(loss))")


def test_pulls_and_layouts_say_so(loss: Session) -> None:
    with pytest.warns(DivergenceWarning, match=f"`loss` {CAUSE}"):
        assert "rests on unequal inputs" in repr(loss.pull("loss"))
    entries = loss.layout("loss").entries
    assert "rests on unequal inputs" in layout_card(entries).text
    assert "replicated, rests on unequal inputs" in layout_card([*entries, *entries]).text


def test_what_does_not_rest_on_it_is_the_same(loss: Session) -> None:
    assert loss.run("loss_of(x, make(2))").agreement is Agreement.SAME
    assert loss.run("float(loss_of(x, make(2)))").agreement is Agreement.SAME


@pytest.mark.timing
def test_it_ends_when_the_name_is_bound_anew(loss: Session) -> None:
    result = loss.run("w = make(3)\nloss = loss_of(x, w)\nloss")
    assert (result.agreement, result.unequal) == (Agreement.SAME, ())
    assert loss.run("float(loss)").agreement is Agreement.SAME


@pytest.mark.timing
def test_it_survives_that_the_group_reconnects(loss: Session) -> None:
    loss.recover()
    assert loss.run("loss").agreement is Agreement.SUSPECT
    result = loss.run("jax.jit(lambda loss: loss * 2)(loss)")
    assert result.agreement is Agreement.SUSPECT


@pytest.mark.timing
def test_strict_mode_says_once_what_is_not_equal(session: Session) -> None:
    session.run(SETUP)
    with pytest.raises(CellError) as caught:
        session.run("w = make(process_index)\nloss_of(x, w)", check="strict")
    result = caught.value.result
    assert result.refused == "input"
    assert [group.processes for group in error_groups(result)] == [(0, 1, 2, 3)]
    shown = caught.value._render_traceback_()
    assert "`w` is not equal on all processes, as was told above. The" in "\n".join(shown)
    assert shown[-1].startswith("CellError: processes 0-3 raised DivergenceError at line 2 (cell [")
    assert str(caught.value).count("jit(<lambda>)") == 1


@pytest.mark.timing
def test_a_process_that_replaces_another_is_told(make_session: Callable[..., Session]) -> None:
    session = make_session(4)
    session.run(SETUP)
    with pytest.warns(DivergenceWarning, match="Unequal input"):
        session.run("w = make(process_index)\nloss = loss_of(x, w)")
    with pytest.raises(ProcessDiedError):
        session.run(
            "if process_index == 2:\n    import os\n    os._exit(1)\nimport time; time.sleep(60)"
        )
    session.recover()
    result = session.run("loss")
    assert result.agreement is Agreement.SUSPECT
    assert all(each.value_info.array.suspect for each in result.per_process.values())
