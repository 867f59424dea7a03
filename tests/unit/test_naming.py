"""By which names objects are reached, and that looking for them runs none of the user's code."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest

from jaxnb.arrays.process_names import Names, first_of

MOST = 10_000
Pair = namedtuple("Pair", "mu nu")


@dataclass
class State:
    params: Any
    opt: Any


@dataclass(slots=True)
class Slotted:
    w: Any
    empty: Any = None


class Module:
    """Keeps attributes as a user's class does, and lets nobody look at it."""

    def __init__(self, w: Any) -> None:
        self.w = w

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"{name} was read")

    __eq__ = __hash__ = __len__ = __iter__ = __bool__ = __repr__ = None  # type: ignore[assignment]


class Meta(type):
    def __eq__(cls, other: object) -> bool:
        raise AssertionError("types were compared")

    def __hash__(cls) -> int:
        raise AssertionError("a type was hashed")

    def __getattribute__(cls, name: str) -> Any:
        raise AssertionError(f"{name} of a type was read")


def found(namespace: dict[str, Any], *wanted: Any, most: int = MOST) -> list[str | None]:
    search = Names(most)
    names = search.find(namespace, {"hidden"}, {id(thing) for thing in wanted})
    return [names.get(id(thing)) for thing in wanted]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (lambda x: x, "v"),
        (lambda x: [0, x], "v[1]"),
        (lambda x: (x,), "v[0]"),
        (lambda x: {"opt": [{}, {"mu": x}]}, "v['opt'][1]['mu']"),
        (lambda x: {("a", 1): x}, "v[('a', 1)]"),
        (lambda x: OrderedDict(a=x), "v['a']"),
        (lambda x: defaultdict(list, {3: x}), "v[3]"),
        (lambda x: {object(): x}, "v[…]"),
        (lambda x: Pair(0, x), "v.nu"),
        (lambda x: State(1, [x]), "v.opt[0]"),
        (Slotted, "v.w"),
        (lambda x: Module([x]), "v.w[0]"),
    ],
)
def test_names_are_as_a_user_types_them(value: Any, name: str) -> None:
    x = object()
    assert found({"v": value(x)}, x) == [name]


def test_the_shortest_name_is_told() -> None:
    x, y = object(), object()
    assert found({"state": {"x": x}, "x": x, "Out": {3: y}}, x, y) == ["x", "Out[3]"]
    assert first_of([x, y], {id(x): "state.x", id(y): "y"}) == "y"
    assert first_of([x], {}) is None


def test_what_has_no_name_is_not_found() -> None:
    x = object()
    hidden = {"_": x, "hidden": x, "f": lambda: x, "kind": type("Kind", (), {"x": x})}
    assert found(hidden, x) == [None]


def test_cycles_and_large_containers_end() -> None:
    x = object()
    cycle: list[Any] = []
    cycle += [cycle, {"again": cycle}, x]
    assert found({"c": cycle}, x, object()) == ["c[2]", None]
    search = Names(100)
    assert search.find({"many": [object() for _ in range(10**6)]}, (), {id(x)}) == {}
    assert search.gave_up


def test_a_metaclass_is_not_asked() -> None:
    x = object()
    kind: Any = Meta.__new__(Meta, "Odd", (), {})
    thing = object.__new__(kind)
    object.__setattr__(thing, "w", x)
    assert found({"kind": kind, "v": [thing]}, x) == ["v[0].w"]


def test_a_dict_that_changes_meanwhile_is_left() -> None:
    x = object()

    class Watching(dict[Any, Any]):
        pass

    changing: dict[Any, Any] = {"a": 1, "b": 2}
    search = Names(MOST)
    steps = search._steps(changing)
    next(steps)
    changing["c"] = 3
    with pytest.raises(RuntimeError):
        list(steps)
    assert found({"v": Watching(x=x)}, x) == [None]  # its class may do anything
