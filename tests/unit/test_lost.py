"""What stands for an array that lost shards raises, whatever is done with it."""

from __future__ import annotations

import contextlib
import copy
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxnb.engine.lost import LostArray
from jaxnb.engine.rebinding import Rebinder
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


def test_weak_references_to_an_array_can_be_to_what_stands_for_it() -> None:
    class Old:
        pass

    old = Old()
    names: dict[str, Any] = {
        "ref": weakref.ref(old), "weak": weakref.WeakValueDictionary(x=old), "x": old,
    }  # fmt: skip
    rebinder = Rebinder(lambda value: LOST if value is old else value)
    rebinder.rebind(names)
    assert names["ref"]() is names["weak"]["x"] is names["x"] is LOST
    assert not rebinder.failed


def test_what_cannot_be_changed_is_named_and_the_rest_is() -> None:
    class Old:
        pass

    old = Old()
    names: dict[str, Any] = {"weak": weakref.WeakValueDictionary(x=old), "other": [old]}
    rebinder = Rebinder(lambda value: 1 if value is old else value)  # which has no weak references
    rebinder.rebind(names)
    assert names["other"] == [1]
    (said,) = rebinder.failed
    assert said.startswith("what is in a WeakValueDictionary (TypeError: cannot create weak ref")
