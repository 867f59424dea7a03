"""constraints/ must serve every Python that pyproject.toml promises."""

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
        (bound,) = requirement.specifier
        pinned = oldest[canonicalize_name(requirement.name)]
        release = tuple(map(int, bound.version.split(".")))
        assert tuple(map(int, pinned.split(".")))[: len(release)] == release, text
