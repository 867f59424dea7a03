"""Replacing objects wherever a namespace holds them. Here numbers stand for arrays."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import pytest
from jax.sharding import Mesh, NamedSharding

from jaxnb.engine.rebinding import Rebinder, objects_of

OLD, NEW = Decimal(1), Fraction(2)


def rebound(value: Any) -> Any:
    """Returns what a name is bound to once ``OLD`` was replaced by ``NEW``."""
    namespace = {"name": value}
    Rebinder(lambda v: NEW if v is OLD else v).rebind(namespace)
    return namespace["name"]


def of_cell(kind: Any) -> Any:
    """Makes a class one that a cell defined."""
    kind.__module__ = "__main__"
    return kind


class Point(NamedTuple):
    x: Any
    y: Any


@of_cell
class Plain:
    def __init__(self, x: Any) -> None:
        self.x = x


@of_cell
class Slotted:
    __slots__ = ("unset", "x")

    def __init__(self, x: Any) -> None:
        self.x = x


@dataclasses.dataclass
class Data:
    x: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: Any


@functools.partial(jax.tree_util.register_dataclass, data_fields=["w"], meta_fields=["mesh"])
@dataclasses.dataclass
class Registered:
    w: Any
    mesh: Any


@jax.tree_util.register_pytree_node_class
class Node:
    """A pytree of a library: made anew."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.x,), None

    @classmethod
    def tree_unflatten(cls, _: None, parts: tuple[Any]) -> Node:
        return cls(*parts)


@jax.tree_util.register_pytree_node_class
class Broken(Node):
    def tree_flatten(self) -> tuple[tuple[Any], None]:
        raise ValueError("no")


class Stranger:
    """An object of a library."""

    def __init__(self, x: Any) -> None:
        self.x = x


class Evil:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


IN_PLACE: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "dict": ({"a": OLD}, lambda v: v["a"]),
    "dict key": ({OLD: 1, "b": 2}, lambda v: next(iter(v))),
    "defaultdict": (collections.defaultdict(int, a=OLD), lambda v: v["a"]),
    "OrderedDict": (collections.OrderedDict(a=OLD), lambda v: v["a"]),
    "list": ([1, OLD], lambda v: v[1]),
    "deque": (collections.deque([OLD], maxlen=2), lambda v: v[0]),
    "set": ({OLD}, lambda v: next(iter(v))),
    "object": (Plain(OLD), lambda v: v.x),
    "slots": (Slotted(OLD), lambda v: v.x),
    "dataclass": (Data(OLD), lambda v: v.x),
    "frozen": (Frozen(OLD), lambda v: v.x),
    "registered": (Registered(OLD, 0), lambda v: v.w),
    "static field": (Registered(0, OLD), lambda v: v.mesh),
    "partial": (functools.partial(max, OLD), lambda v: v.args[0]),
    "partial keyword": (functools.partial(max, key=OLD), lambda v: v.keywords["key"]),
    "nested": ({"a": [{"b": (OLD,)}]}, lambda v: v["a"][0]["b"][0]),
}


@pytest.mark.parametrize("kind", IN_PLACE)
def test_changed_in_place(kind: str) -> None:
    value, look = IN_PLACE[kind]
    assert rebound(value) is value
    assert look(value) is NEW


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (OLD, NEW),
        ((OLD, 1), (NEW, 1)),
        (Point(1, OLD), Point(1, NEW)),
        (frozenset({OLD}), frozenset({NEW})),
        (((OLD,),), ((NEW,),)),
    ],
)
def test_made_anew(value: Any, expected: Any) -> None:
    new = rebound(value)
    assert new == expected
    assert type(new) is type(expected)


def test_a_pytree_of_a_library_is_made_anew() -> None:
    value = Node(OLD)
    new = rebound(value)
    assert new is not value
    assert new.x is NEW


@pytest.mark.parametrize(
    "value",
    [
        (1, 2),
        Point(1, (2,)),
        Node(3),
        frozenset({1}),
        {1: [2]},
        "text",
        None,
        print,
        len,
        collections.Counter,
        Evil(),
        (n for n in ()),
        Registered(1, 2),
        jax.numpy.sum,
        pytest,
    ],
    ids=lambda value: repr(value).partition(" at 0x")[0],
)
def test_what_holds_nothing_to_replace_stays_itself(value: Any) -> None:
    assert rebound(value) is value


@pytest.mark.parametrize("value", [Stranger(OLD), Broken(OLD)], ids=["stranger", "broken"])
def test_what_cannot_be_looked_into_is_left_alone(value: Any) -> None:
    assert rebound(value) is value
    assert value.x is OLD


def test_shared_references_stay_shared() -> None:
    pair = (OLD, [OLD])
    names = {"a": pair, "b": [pair], "c": {"d": pair[1]}}
    Rebinder(lambda v: NEW if v is OLD else v).rebind(names)
    assert names["a"] is names["b"][0]
    assert names["c"]["d"] is names["a"][1]
    assert names["a"][1][0] is NEW


def test_cycles_end() -> None:
    loop: list[Any] = [OLD]
    loop.append({"again": loop})
    me = Plain(OLD)
    me.me = me  # type: ignore[attr-defined]
    assert rebound(loop) is loop
    assert rebound(me) is me
    assert loop[0] is NEW
    assert me.x is NEW


def test_deep_nesting_does_not_exhaust_the_stack() -> None:
    shallow: Any = [OLD]
    for _ in range(50):
        shallow = [shallow]
    deep: Any = [OLD]
    for n in range(5000):
        deep = [deep] if n % 2 else (deep,)
    names = {"shallow": shallow, "deep": deep}
    assert len(list(objects_of(names, lambda v: v is OLD))) == 1
    Rebinder(lambda v: NEW if v is OLD else v).rebind(names)
    while isinstance(shallow, list):
        shallow = shallow[0]
    assert shallow is NEW


def test_functions_closures_and_defaults() -> None:
    x, later = OLD, None

    def inner() -> Any:
        return x

    def outer(a: Any = OLD, *, b: Any = OLD) -> Any:
        return a, b, inner(), later, unset

    outer.cache = OLD  # type: ignore[attr-defined]
    later = [OLD]
    assert rebound(outer) is outer
    unset = 1
    assert outer() == (NEW, NEW, NEW, [NEW], 1)
    assert outer.cache is NEW  # type: ignore[attr-defined]


def test_functions_that_decorators_wrap() -> None:
    def decorate(f: Callable[[], Any]) -> Callable[[], Any]:
        extra = OLD

        @functools.wraps(f)
        def wrapped() -> Any:
            return extra, f()

        return wrapped

    x = OLD

    @decorate
    def decorated() -> Any:
        return x

    @functools.lru_cache
    def cached() -> Any:
        return x

    rebound([decorated, cached])
    assert decorated() == (NEW, NEW)
    assert cached() is NEW


def test_methods_and_classes_of_cells() -> None:
    x = OLD

    @of_cell
    class Model:
        shared = OLD

        def __init__(self) -> None:
            self.own = OLD

        def method(self) -> Any:
            return x, self.own, self.shared

        @staticmethod
        def static(a: Any = OLD) -> Any:
            return a

    model = Model()
    bound = model.method
    assert rebound(bound) is bound
    assert bound() == (NEW, NEW, NEW)
    assert Model.static() is NEW
    assert rebound(Stranger) is Stranger


def test_a_jitted_function_keeps_its_identity_if_its_closure_alone_changes() -> None:
    x = [OLD]
    jitted = jax.jit(lambda: x)
    assert rebound(jitted) is jitted
    assert x == [NEW]


def test_a_jitted_function_with_shardings_is_jitted_anew() -> None:
    """A mesh without devices stands for a real one: no backend is needed."""
    mesh = jax.sharding.AbstractMesh((1,), ("a",))
    old, new = NamedSharding(mesh, jax.P("a")), NamedSharding(mesh, jax.P())

    @functools.partial(jax.jit, in_shardings=old, out_shardings=(None, old), static_argnums=1)
    def step(x: Any, n: int) -> Any:
        """Says."""
        return x, n

    names = {"step": step, "grad": {"also": step}, "mapped": jax.vmap(step)}
    Rebinder(lambda v: new if v is old else v).rebind(names)
    again: Any = names["step"]
    assert again is not step
    assert again is names["grad"]["also"]  # type: ignore[index]
    assert again._jit_info.in_shardings_leaves == (new,)
    assert again._jit_info.out_shardings_leaves == (None, new)
    assert again._jit_info.static_argnums == (1,)
    assert (again.__name__, again.__doc__) == ("step", "Says.")
    held = list(objects_of(names, lambda v: isinstance(v, NamedSharding)))
    assert {id(v) for v in held} == {id(new)}


def test_objects_are_told_once_and_nothing_changes() -> None:
    names = {"a": OLD, "b": [OLD, (OLD,)], "mesh": Mesh}
    assert list(objects_of(names, lambda v: v is OLD)) == [OLD]
    assert names["b"] == [OLD, (OLD,)]
