"""What the notebook has of an object whose class only the processes know."""

from __future__ import annotations

import copy
import pickle

import pytest

from jaxnb.arrays.lost import Record

POINT = Record("Point", {"x": 1, "y": [2]})


def test_parts_are_attributes_and_items() -> None:
    assert (POINT.x, POINT["y"], list(POINT)) == (1, [2], ["x", "y"])
    assert {"x", "y"} <= set(dir(POINT))
    assert repr(POINT) == "Point(x=1, y=[2])"
    assert "x" in POINT


def test_parts_that_are_not_there() -> None:
    with pytest.raises(AttributeError, match=r"Point has no part 'z'; it has x, y"):
        POINT.z  # noqa: B018
    with pytest.raises(KeyError):
        POINT["z"]
    assert not hasattr(POINT, "_repr_html_")
    assert not hasattr(POINT, "__array__")


def test_equality() -> None:
    assert Record("Point", {"x": 1, "y": [2]}) == POINT
    assert Record("Other", {"x": 1, "y": [2]}) != POINT
    assert Record("Point", {"x": 1, "y": [3]}) != POINT
    assert POINT != {"x": 1, "y": [2]}
    with pytest.raises(TypeError, match="unhashable"):
        hash(POINT)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_it_can_be_pickled(protocol: int) -> None:
    assert pickle.loads(pickle.dumps(POINT, protocol)) == POINT


def test_it_can_be_copied() -> None:
    assert copy.copy(POINT).y is POINT.y
    deep = copy.deepcopy(POINT)
    assert deep == POINT
    assert deep.y is not POINT.y
