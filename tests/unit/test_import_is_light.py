"""``import jaxnb`` is cheap: it loads none of the heavy packages."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"jax", "jaxlib", "ipyparallel", "IPython", "zmq", "numpy"}

PROBE = """
import sys
before = set(sys.modules)
{statement}
print(*sorted({{name.partition(".")[0] for name in set(sys.modules) - before}}))
"""


def loaded_by(statement: str) -> set[str]:
    """Returns the top-level packages that a fresh interpreter loads for a statement."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(statement=statement)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(done.stdout.split())


def test_import_jaxnb_loads_nothing_heavy() -> None:
    loaded = loaded_by("import jaxnb")
    assert "jaxnb" in loaded
    assert loaded & HEAVY == set()


@pytest.mark.parametrize(
    "package",
    [
        pytest.param("ipyparallel", marks=pytest.mark.thorough),
        pytest.param("jax", marks=pytest.mark.thorough),
        "IPython",
    ],
)
def test_the_probe_sees_a_heavy_import(package: str) -> None:
    assert package in loaded_by(f"import jaxnb, {package}") & HEAVY
