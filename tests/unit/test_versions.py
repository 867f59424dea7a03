"""The table of tested versions, and what is said of newer ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from jaxnb.compat import ipython

CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints"


@pytest.mark.parametrize("name", ipython.TESTED)
def test_the_newest_that_is_pinned_counts_as_tested(name: str) -> None:
    lines = "\n".join(path.read_text() for path in CONSTRAINTS.iterdir()).splitlines()
    pinned = {line.partition("==")[2] for line in lines if line.startswith(f"{name.lower()}==")}
    assert ipython.TESTED[name] == max(pinned, key=Version)


@pytest.mark.parametrize(
    ("jax", "said"),
    [
        ("0.10.2", ()),
        ("0.12.0.1", ()),
        ("0.12.7", ()),
        ("0.12.1.dev20270101+abc", ()),
        (
            "0.13.1",
            ("JAX 0.13.1 is newer than 0.12.0.1, the newest that jaxnb is tested with.",),
        ),
        ("1.0", ("JAX 1.0 is newer than 0.12.0.1, the newest that jaxnb is tested with.",)),
    ],
)
def test_only_a_feature_release_that_is_newer_is_told(
    monkeypatch: pytest.MonkeyPatch, jax: str, said: tuple[str, ...]
) -> None:
    monkeypatch.setattr(ipython, "TESTED", {"JAX": "0.12.0.1", "ipykernel": "7.4.0"})
    assert ipython.newer_than_tested({"JAX": jax, "ipykernel": "7.4.9"}) == said


def test_nothing_is_said_of_what_the_tests_run_on() -> None:
    assert ipython.installed().keys() == ipython.TESTED.keys()
    assert ipython.newer_than_tested(ipython.installed()) == ()
