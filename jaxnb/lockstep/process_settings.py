"""This process's settings of JAX."""

from __future__ import annotations

import os
import platform
from enum import Enum
from typing import Any

import jax
import ml_dtypes
import numpy as np

from jaxnb.model.group import (
    ENVIRONMENT,
    HARMLESS,
    OTHER_SETTINGS,
    PROGRAM_SETTINGS,
    Settings,
)

_VARIABLES = frozenset(ENVIRONMENT)


def _text(value: Any) -> str:
    return str(value.value) if isinstance(value, Enum) else str(value)


def at_start() -> dict[str, str]:
    """Returns what this process has from its start on: its environment, and versions."""
    variables = {name: os.environ.get(name, "") for name in ENVIRONMENT}
    modules = {"jax": jax, "jaxlib": jax.lib, "numpy": np, "ml_dtypes": ml_dtypes}
    versions = {f"version of {name}": module.__version__ for name, module in modules.items()}
    return variables | versions | {"version of Python": platform.python_version()}


def environment() -> dict[str, str]:
    """Returns the variables that are set, of those that JAX and XLA read as a process starts."""
    return {name: os.environ[name] for name in _VARIABLES.intersection(os.environ)}


def current() -> dict[str, str]:
    """Returns the settings of ``jax.config`` as they are in this thread, and change something."""
    values = jax.config.values
    found = {name: _text(values[name]) for name in PROGRAM_SETTINGS if name in values}
    for name in OTHER_SETTINGS:
        if name in values:
            text = _text(values[name])
            found[name] = "allow" if text in HARMLESS else text
    return found


class OwnSettings:
    """This process's settings, as it joined and since.

    JAX takes for granted that all processes have the same. Where one has not, the same line
    compiles into another program, and lockstep tells of the settings then.

    Attributes:
        report: What it had as it joined, its environment and versions among it.
    """

    def __init__(self) -> None:
        self._start = current()
        self._variables = environment()
        self.report: Settings = tuple({**self._start, **at_start()}.items())

    def changes(self) -> Settings:
        """Returns the settings that are not what they were as this process joined."""
        variables = environment()
        if variables != self._variables:  # those that were deleted count as empty
            variables = dict.fromkeys(self._variables, "") | variables
        now = (*current().items(), *variables.items())
        return tuple((n, v) for n, v in now if self._before(n) != v)

    def _before(self, name: str) -> str | None:
        return self._variables.get(name, "") if name in _VARIABLES else self._start.get(name)
