"""Fixtures for every test. What pytest itself is taught stands in ``jaxnb_pytest_hooks``."""

from __future__ import annotations

pytest_plugins = ["jaxnb_pytest_hooks", "jaxnb_fixtures", "pytester"]
