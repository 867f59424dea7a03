"""constraints.txt must serve every Python that pyproject.toml promises."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[2]


def pins() -> dict[str, str]:
    """The pinned versions by name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


def test_pins_are_versions_and_name_no_place() -> None:
    assert len(pins()) > 100
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"[\w.-]+==[\w.+!-]+", line), line


def test_every_pin_admits_the_oldest_python_that_is_supported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = project["requires-python"].removeprefix(">=") + ".0"
    refusing = {}
    for name, version in pins().items():
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            continue  # of another platform or extra
        required = installed.metadata.get("Requires-Python")
        if installed.version == version and required and oldest not in SpecifierSet(required):
            refusing[name] = required
    assert refusing == {}
