"""Replacing objects wherever a namespace holds them. Here numbers stand for arrays."""

from __future__ import annotations

import collections
import contextvars
import dataclasses
import functools
import threading
import types
import weakref
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import numpy as np
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
    """A pytree of a library, which takes nothing but what it knows."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.x,), None

    @classmethod
    def tree_unflatten(cls, _: None, parts: tuple[Any]) -> Node:
        raise AssertionError("it was rebuilt")


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


def _generator(first: Any) -> Any:
    held = first
    yield None
    yield held


def _begun(first: Any) -> Any:
    generator = _generator(first)
    next(generator)
    return generator


class Checked:
    """Refuses what it does not know, and tells nobody what it has."""

    __slots__ = ("__x",)

    def __init__(self, x: Any) -> None:
        object.__setattr__(self, "_Checked__x", x)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(name)

    @property
    def x(self) -> Any:
        raise AssertionError("a property was read")

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise AssertionError("its class was asked for")


class CheckedDict(dict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        raise AssertionError("it was written to")

    def __getitem__(self, key: str) -> Any:
        raise AssertionError("it was read")


VARIABLE: contextvars.ContextVar[Any] = contextvars.ContextVar("VARIABLE")
VARIABLE.set(OLD)
LOCAL = threading.local()
LOCAL.x = OLD
OBJECTS = np.array([[1, OLD], [OLD, 2]], dtype=object)
OBJECTS.flags.writeable = False
TARGETS = [Plain(1), Plain(2)]

ANYWHERE: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "an object of a library": (Stranger(OLD), lambda v: v.x),
    "a pytree of a library": (Node(OLD), lambda v: v.x),
    "a pytree that cannot be flattened": (Broken(OLD), lambda v: v.x),
    "a slot of a private name": (
        Checked(OLD), lambda v: object.__getattribute__(v, "_Checked__x"),
    ),
    "a dict with rules": (CheckedDict(a=OLD), lambda v: dict.get(v, "a")),
    "a generator": (_begun(OLD), next),
    "a generator expression": ((n for n in [OLD]), next),
    "an iterator": (iter([1, OLD]), lambda v: list(v)[1]),
    "map": (map(str, [[OLD]]), lambda v: NEW if "Fraction" in next(v) else OLD),
    "a mapping proxy": (types.MappingProxyType({"a": OLD}), lambda v: v["a"]),
    "a namespace": (types.SimpleNamespace(a=OLD), lambda v: v.a),
    "a context variable": (VARIABLE, lambda v: v.get()),
    "a thread's own": (LOCAL, lambda v: v.x),
    "an array of objects": (OBJECTS, lambda v: v[1, 0]),
    "an exception": (ValueError("x", [OLD]), lambda v: v.args[1][0]),
}  # fmt: skip


@pytest.mark.parametrize("kind", ANYWHERE)
def test_it_is_found_anywhere(kind: str) -> None:
    value, look = ANYWHERE[kind]
    assert rebound(value) is value
    assert look(value) is NEW


def test_caches_keep_what_they_can_and_are_cleared_of_the_rest() -> None:
    """A model that is made once stays the one that it was: its parts are replaced."""
    made: list[Any] = []

    def make(*_: Any) -> Any:
        made.append(Plain(OLD))
        return made[-1]

    unbounded, bounded = functools.cache(make), functools.lru_cache(maxsize=8)(make)
    direct = functools.lru_cache(maxsize=8)(lambda: OLD)
    plain = functools.cache(lambda: OLD)
    assert (unbounded(OLD), bounded(), direct(), plain()) == (made[0], made[1], OLD, OLD)
    Rebinder(lambda v: NEW if v is OLD else v).rebind(
        {"caches": [unbounded, bounded, direct, plain]}
    )
    assert unbounded(NEW) is made[0]
    assert bounded() is made[1]
    assert made[0].x is made[1].x is NEW
    assert direct.cache_info().currsize == 0
    assert plain() is NEW


def test_weak_references_follow() -> None:
    old, new = Plain(1), Plain(2)
    names = {
        "it": old,
        "ref": weakref.ref(old),
        "values": weakref.WeakValueDictionary(a=old),
        "keys": weakref.WeakKeyDictionary({old: 1}),
        "set": weakref.WeakSet([old]),
    }
    Rebinder(lambda v, old=old: new if v is old else v).rebind(names)
    del old
    assert names["ref"]() is new
    assert names["values"]["a"] is new
    assert names["keys"][new] == 1
    assert list(names["set"]) == [new]


def test_a_tuple_that_leads_to_itself() -> None:
    inner: list[Any] = []
    loop = (OLD, inner)
    inner.append(loop)
    new = rebound(loop)
    assert new[0] is NEW
    assert new[1][0] is new


def test_static_fields_and_class_attributes() -> None:
    class Base:
        table = OLD

    of_cell(Base)
    assert rebound(Base) is Base
    assert Base.table is NEW


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
