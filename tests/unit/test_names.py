"""Names of values on the processes: found, read, and compared."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jaxnb.arrays.process_names import Names, first_of, holders_of
from jaxnb.arrays.regions import Step, parse_path
from jaxnb.errors import UsageError

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
    hidden["odd"] = type("Watching", (dict,), {})(x=x)  # its class may do anything
    assert found(hidden, x) == [None]


def test_cycles_and_large_containers_end() -> None:
    x = object()
    cycle: list[Any] = []
    cycle += [cycle, {"again": cycle}, x]
    assert found({"c": cycle}, x, object()) == ["c[2]", None]
    search = Names(100)
    assert search.find({"many": [object() for _ in range(10**6)]}, (), {id(x)}) == {}
    assert search.gave_up


def test_what_runs_cells_holds_no_variable() -> None:
    shell, lost = InteractiveShell(), object()
    shell.user_ns = {"lost": lost}
    variables = {"lost": lost, "logger": State(shell, None), "model": State(lost, None)}
    assert holders_of(variables, [id(lost)]) == {id(lost): ["lost", "model"]}


def test_a_metaclass_is_not_asked() -> None:
    x = object()
    kind: Any = Meta.__new__(Meta, "Odd", (), {})
    thing = object.__new__(kind)
    object.__setattr__(thing, "w", x)
    assert found({"kind": kind, "v": [thing]}, x) == ["v[0].w"]


# ---------------------------------------------------------------------- names as text


def steps(text: str) -> list[tuple[str, object]]:
    return [(step.kind, step.key) for step in parse_path(text).steps]


def test_a_name() -> None:
    path = parse_path(" x ")
    assert (path.text, path.name, path.steps, path.texts) == ("x", "x", (), ("x",))
    assert parse_path("größe").name == "größe"


def test_attributes_and_subscripts() -> None:
    path = parse_path("state.opt['mu'][0]")
    assert path.name == "state"
    assert steps("state.opt['mu'][0]") == [
        ("attribute", "opt"), ("subscript", "mu"), ("subscript", 0)
    ]  # fmt: skip
    assert path.texts == ("state", "state.opt", "state.opt['mu']", "state.opt['mu'][0]")
    assert [path.without(count) for count in range(4)] == list(reversed(path.texts))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("x[-1]", -1),
        ("x[1:2]", slice(1, 2)),
        ("x[::-1]", slice(None, None, -1)),
        ("x[..., :3]", (..., slice(None, 3))),
        ("x[()]", ()),
        ("x[b'k']", b"k"),
        ("x[(1, 2),]", ((1, 2),)),
    ],
)
def test_what_stands_between_brackets(text: str, key: object) -> None:
    assert steps(text) == [("subscript", key)]


@pytest.mark.parametrize("key", [0, -3, slice(1, 2), ..., (1, slice(None), ...), ()])
def test_indices_of_arrays(key: object) -> None:
    assert Step("subscript", key).slices


@pytest.mark.parametrize("key", ["a", None, True, (1, "a"), (True,), ((1, 2),), b"k"])
def test_keys_that_are_no_indices_of_arrays(key: object) -> None:
    assert not Step("subscript", key).slices
    assert not Step("attribute", "a").slices


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "1", "'x'", "x +", "x + 1", "f(x)", "x.f()", "x[i]", "x[i:]", "x[f(1)]",
        "x[[0, 1]]", "x[{1}]", "x[1j]", "x; y", "x\ny", "x = 1", "x,", "*x", "lambda: x", "x[",
        "(x := 1)", "x if y else z", "await x", "not x", "class", "x[f'{y}']", "\0", "x[1 + 1]",
        "a." * 100_000 + "a", "[" * 100_000,
    ],
    ids=range(31),
)  # fmt: skip
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(UsageError, match="is not a name, or a name with attributes"):
        parse_path(text)


@pytest.mark.parametrize("text", [None, 1, ["x"], b"x"])
def test_what_is_no_text(text: object) -> None:
    with pytest.raises(UsageError, match="are text"):
        parse_path(text)  # type: ignore[arg-type]
