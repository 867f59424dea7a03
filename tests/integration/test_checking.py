"""Checking is never off in silence: each start tries the recorder, on a JAX that differs too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import jaxnb
from jaxnb.errors import StartError, UsageError
from jaxnb.session import Session
from support import moved_names
from support.fixtures import assert_usable


@pytest.fixture
def jax_that_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JAX that does not say what a program is, on process 1."""
    tests = str(Path(moved_names.__file__).parent)
    code = moved_names.CUSTOMIZE.format(tests=tests)
    (tmp_path / "sitecustomize.py").write_text(code)
    path = [str(tmp_path), str(Path(jaxnb.__file__).parents[1])]
    monkeypatch.setenv("PYTHONPATH", ":".join(path))


SUM = (
    "n = jax.device_count(); mesh = jax.make_mesh((n,), ('d',))\n"
    "x = jax.make_array_from_callback((n,), NamedSharding(mesh, P('d')), lambda i: np.ones(1))\n"
    "float(jax.jit(jnp.sum)(x))"
)


@pytest.mark.usefixtures("jax_that_differs")
def test_a_start_that_cannot_check_is_refused_and_says_what_to_type(
    make_session: Callable[..., Session],
) -> None:
    with pytest.raises(StartError, match=r"Strict mode is not possible .* `--check off`") as caught:
        make_session(2)
    told = "process 1: on the sum that joins the processes: dispatch 1 was recorded"
    assert told in str(caught.value)
    session = make_session(2, check="off")
    assert session.run(SUM).value == 2.0
    with pytest.raises(UsageError, match=r"Strict mode is not possible .* Nothing was run"):
        session.run(SUM, check="strict")
    assert_usable(session)


def test_a_start_on_a_jax_that_is_known_says_nothing(session: Session) -> None:
    assert session.group.notes == ()
