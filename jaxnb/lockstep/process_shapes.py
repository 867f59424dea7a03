"""Shapes of what goes into a computation and comes out of it, in short."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxnb.labels import type_label
from jaxnb.model.dispatches import Shapes

MOST = 100
"""People are shown fewer; those that differ on other processes may be any."""


def shapes_of(values: Sequence[Any]) -> Shapes:
    """Returns ``float32[8], int``; no more than :data:`MOST`."""
    return Shapes(tuple(map(_shape, values[:MOST])), len(values))


def _shape(value: Any) -> str:
    if isinstance(value, int | float | complex):
        return type(value).__name__
    with contextlib.suppress(AttributeError):
        return type_label(value.dtype, np.shape(value))
    return type(value).__name__
