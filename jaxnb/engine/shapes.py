"""Shapes of what goes into a computation and comes out of it, in short."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxnb.labels import type_label

MOST = 100
"""People are shown fewer; those that differ on other processes may be any."""


def shapes_of(arguments: Sequence[Any], results: Sequence[Any]) -> str:
    """Returns ``"float32[8], int -> float32[]"``; of each no more than :data:`MOST`."""
    return f"{_listed(arguments)} -> {_listed(results)}"


def _listed(values: Any) -> str:
    shown = [_shape(value) for value in values[:MOST]]
    more = [f"… {len(values) - MOST} more"] if len(values) > MOST else []
    return ", ".join([*shown, *more]) or "()"


def _shape(value: Any) -> str:
    if isinstance(value, int | float | complex):
        return type(value).__name__
    with contextlib.suppress(AttributeError):
        return type_label(value.dtype, np.shape(value))
    return type(value).__name__
