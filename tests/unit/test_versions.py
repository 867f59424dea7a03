"""constraints/ serves every Python that pyproject.toml promises, and newer versions are named."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from jaxnb.compat import ipython

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = [
    each.rpartition(" ")[2] for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)
] + ["3.14"]  # it has pins, and no classifier until somebody has run it
NAMES = [f"py{version.replace('.', '')}" for version in PYTHONS]


def pins(name: str) -> dict[str, str]:
    """The pinned versions by name."""
    lines = (ROOT / "constraints" / f"{name}.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


def test_each_python_has_its_own() -> None:
    files = {path.stem for path in (ROOT / "constraints").iterdir()}
    assert files == {*NAMES, *(f"{name}-oldest" for name in NAMES)}


@pytest.mark.parametrize("name", [*NAMES, *(f"{name}-oldest" for name in NAMES)])
def test_pins_are_versions_and_name_no_place(name: str) -> None:
    assert len(pins(name)) > 100
    for line in (ROOT / "constraints" / f"{name}.txt").read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"[\w.-]+==[\w.+!-]+", line), line


def test_every_pin_admits_the_first_release_of_its_python() -> None:
    """Debian 12 has Python 3.11.2."""
    refusing = {}
    first = "{}.{}.0".format(*sys.version_info[:2])
    for name, version in pins("py{}{}".format(*sys.version_info[:2])).items():
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            continue  # of another platform or extra
        required = installed.metadata.get("Requires-Python")
        if installed.version == version and required and first not in SpecifierSet(required):
            refusing[name] = required
    assert refusing == {}


def test_the_oldest_are_those_that_are_promised() -> None:
    oldest = pins(f"{NAMES[0]}-oldest")
    for text in PROJECT["dependencies"]:
        requirement = Requirement(text)
        (bound,) = (each for each in requirement.specifier if each.operator == ">=")
        pinned = oldest[canonicalize_name(requirement.name)]
        release = tuple(map(int, bound.version.split(".")))
        assert tuple(map(int, pinned.split(".")))[: len(release)] == release, text


# ---------------------------------------------------------------------- versions that are tested


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
        ("0.12.7", ()),
        ("0.12.1.dev20270101+abc", ()),
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
