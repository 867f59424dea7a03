"""Fixtures for every test. What pytest itself is taught stands in ``jaxnb_pytest_hooks``."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes says more of the machine than of the code.
settings.register_profile("jaxnb", deadline=None)
settings.load_profile("jaxnb")

pytest_plugins = ["jaxnb_pytest_hooks", "jaxnb_fixtures", "pytester"]
