"""Fixtures for every test. What pytest itself is taught stands in ``support.pytest_hooks``."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes says more of the machine than of the code.
settings.register_profile("jaxnb", deadline=None)
settings.load_profile("jaxnb")

pytest_plugins = ["support.pytest_hooks", "support.fixtures", "pytester"]
