"""What stands for an array that lost shards raises, whatever is done with it."""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxnb.arrays.lost import LostArray
from jaxnb.errors import ArrayGoneError

LOST: Any = LostArray("`x` (float32[4]) lost the shards of process 1", (("here", "data"),))

USES: dict[str, Callable[[], object]] = {
    "+": lambda: LOST + 1,
    "reflected": lambda: 1 + LOST,
    "@ from NumPy": lambda: np.ones(4) @ LOST,
    "* from JAX": lambda: jnp.ones(4) * LOST,
    "==": lambda: LOST == 1,
    "bool": lambda: bool(LOST),
    "float": lambda: float(LOST),
    "[]": lambda: LOST[0],
    "[] =": lambda: LOST.__setitem__(0, 1),
    "len": lambda: len(LOST),
    "iter": lambda: list(LOST),
    "shape": lambda: LOST.shape,
    "a method": lambda: LOST.sum(axis=0),
    "asarray": lambda: np.asarray(LOST),
    "jnp": lambda: jnp.sum(LOST),
    "jit": lambda: jax.jit(lambda a: a["x"])({"x": LOST}),
    "device_put": lambda: jax.device_put(LOST),
    "stack": lambda: jnp.stack([LOST, LOST]),
    "where": lambda: jnp.where(True, LOST, 0),
    "with": lambda: contextlib.ExitStack().enter_context(LOST),
    "next": lambda: next(LOST),
    "a format": lambda: f"{LOST:.3}",
}


@pytest.mark.parametrize("use", USES)
def test_every_use_raises(use: str) -> None:
    with pytest.raises(ArrayGoneError, match=r"^`x` .* lost the shards of process 1\. Nothing"):
        USES[use]()


def test_it_can_be_looked_at_and_carried() -> None:
    assert repr(LOST) == "<lost: `x` (float32[4]) lost the shards of process 1>"
    (leaf,) = jax.tree.leaves({"a": LOST})
    assert leaf is LOST
    assert LOST.shards == (("here", "data"),)
    assert not hasattr(LOST, "_repr_html_")
    for other in (copy.copy(LOST), pickle.loads(pickle.dumps(LOST))):
        assert repr(other) == repr(LOST)
        assert other.shards == ()  # they are of this process alone
