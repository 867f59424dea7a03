"""What to type instead, said below a traceback."""

from __future__ import annotations

import pytest

from jaxnb.assist.completion import hint, magic_hint

TOO_FEW = "Number of devices 1 must be >= the product of mesh_shape (4,)"


def said(error: BaseException | None, code: str = "x + 1") -> str:
    return hint(error, code, lambda: ("x", "jnp"), 8)


def test_a_name_that_is_on_the_processes() -> None:
    assert said(NameError("name 'x' is not defined", name="x")) == (
        "`x` is on the processes, and this cell ran in the notebook. Put `%%spmd` on its first "
        "line, or type `%spmd_pull x` to bring it here."
    )
    assert said(NameError("name 'x' is not defined", name="x"), "y = x(1)").endswith("first line.")
    module = said(NameError("name 'jnp' is not defined", name="jnp"))
    assert module.endswith("or import it here: `import jax.numpy as jnp`.")


def test_too_few_devices() -> None:
    assert said(ValueError(TOO_FEW)) == (
        "This cell ran in the notebook, whose own JAX has 1 device; the processes have 8. "
        "Put `%%spmd` on its first line."
    )
    assert hint(ValueError(TOO_FEW), "", lambda: (), 1) == ""


@pytest.mark.parametrize(
    ("error", "code", "wanted"),
    [
        ("Cell magic `%%smpd` not found.", "%%smpd\nx", "Did you mean '%%spmd'?"),
        (
            "Line magic function `%spmd_puul` not found.",
            "%spmd_puul x",
            "Did you mean '%spmd_pull'?",
        ),
        ("Line magic function `%tiem` not found.", "%tiem", ""),
        ("unexpected indent", " %%spmd\nx", "`%%spmd` must be the first thing in its cell"),
        ("unexpected indent", " %%time\nx", ""),
    ],
)
def test_a_magic_that_is_misspelt_or_indented(error: str, code: str, wanted: str) -> None:
    found = magic_hint(IndentationError(error), code)
    assert found.startswith(wanted)
    assert bool(found) == bool(wanted)


@pytest.mark.parametrize(
    "error",
    [
        None,
        NameError("name 'y' is not defined", name="y"),
        NameError("x"),
        UnboundLocalError("x"),
        ValueError("no"),
        RuntimeError(TOO_FEW),
        KeyError("x"),
        SystemExit(1),
    ],
)
def test_nothing_is_said_of_other_errors(error: BaseException | None) -> None:
    assert said(error) == ""


def test_an_error_without_a_text_is_not_told_of() -> None:
    class Bad(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert magic_hint(Bad(), "x") == ""
