"""Names of values on the processes, as text."""

from __future__ import annotations

import pytest

from jaxnb.arrays.regions import Step, parse_path
from jaxnb.errors import UsageError


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
        ("x[:]", slice(None)),
        ("x[..., :3]", (..., slice(None, 3))),
        ("x[()]", ()),
        ("x[b'k']", b"k"),
        ("x[1.5]", 1.5),
        ("x[1, 'a']", (1, "a")),
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
