"""Shapes of what goes into a computation and comes out of it, in short."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxnb.labels import type_label


def shapes_of(arguments: Sequence[Any], results: Sequence[Any]) -> str:
    """Returns ``"float32[8], int -> float32[]"``; the first few of each."""
    return f"{_listed(arguments)} -> {_listed(results)}"


def _listed(values: Any) -> str:
    shown = [_shape(value) for value in values[:4]]
    return ", ".join([*shown, f"… {len(values) - 4} more"] if len(values) > 4 else shown) or "()"


def _shape(value: Any) -> str:
    if isinstance(value, int | float | complex):
        return type(value).__name__
    with contextlib.suppress(AttributeError):
        return type_label(value.dtype, np.shape(value))
    return type(value).__name__
