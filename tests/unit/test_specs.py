"""Partition specs are read and checked before anything moves."""

from __future__ import annotations

from collections import namedtuple
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnb.arrays import check_spec, is_spec, normalize_spec, parse_spec, spec_text
from jaxnb.errors import UsageError

NAMES = st.sampled_from(["data", "model", "x", "it's"]) | st.text(max_size=4)
AXES = {"data": 4, "model": 2, "seq": 3}

entries = st.none() | NAMES | st.lists(NAMES, min_size=2, max_size=3, unique=True).map(tuple)
specs = st.lists(entries, max_size=4).map(tuple)
containers = st.recursive(
    specs,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
    ),
    max_leaves=6,
)


class PartitionSpec:
    """As much of JAX's as jaxnb relies on."""

    def __init__(self, *entries: Any, unreduced: bool = False) -> None:
        self.entries = entries
        self.unreduced = unreduced

    def __iter__(self) -> Any:
        if self.unreduced:
            raise ValueError("Using *pspec is dangerous")
        return iter(self.entries)

    def __repr__(self) -> str:
        return spec_text(self.entries)


class P(PartitionSpec):
    pass


def written(value: Any) -> str:
    """Specs, and containers of them, as source."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{k!r}: {written(v)}' for k, v in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    return spec_text(value)


@pytest.mark.parametrize(
    ("given_spec", "normal"),
    [
        (None, ()),
        ("data", ("data",)),
        ((), ()),
        (("data", None), ("data", None)),
        ((("a", "b"), None), (("a", "b"), None)),
        ((["a", "b"], "c"), (("a", "b"), "c")),
        ((("a",), (), []), ("a", None, None)),
        (P("data", None), ("data", None)),
        (PartitionSpec(("a", "b")), (("a", "b"),)),
        (P(), ()),
    ],
)
def test_normalize(given_spec: Any, normal: Any):
    assert is_spec(given_spec)
    assert normalize_spec(given_spec) == normal


@given(specs)
def test_normalizing_again_changes_nothing(spec: Any):
    assert normalize_spec(spec) == spec
    assert normalize_spec(PartitionSpec(*spec)) == spec


@pytest.mark.parametrize(
    "value",
    [3, ["data"], {"w": "data"}, {"data"}, (3,), (("a", None),), (("a", ("b",)),),
     (P("data"), P()), P(object()), P("a", unreduced=True), True, b"data"],
    ids=lambda value: repr(value).partition(" at 0x")[0],
)  # fmt: skip
def test_what_is_no_spec_is_refused(value: Any):
    with pytest.raises(UsageError) as caught:
        normalize_spec(value)
    assert str(caught.value).startswith(f"{value!r} is not a partition spec")
    assert "P('data', None)" in str(caught.value)
    assert "Nothing was moved." in str(caught.value)


def test_containers_are_no_specs():
    pair = namedtuple("pair", "w b")
    for value in ([], ["data"], {}, {"w": P()}, pair("data", None), 3, object()):
        assert not is_spec(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("P('data', None)", ("data", None)),
        ('P("data")', ("data",)),
        ("P(('a','b'), None)", (("a", "b"), None)),
        ("P(['a','b'])", (("a", "b"),)),
        ("P()", ()),
        ("jax.P('data')", ("data",)),
        ("PartitionSpec(None, 'data')", (None, "data")),
        ("jax.sharding.PartitionSpec('data')", ("data",)),
        ("('data', None)", ("data", None)),
        ("'data', None", ("data", None)),
        ("('data',)", ("data",)),
        ("()", ()),
        ("'data'", ("data",)),
        ("None", ()),
        ("  P('data')\n", ("data",)),
        ("{'w': P('data'), 'b': P()}", {"w": ("data",), "b": ()}),
        ("[{'w': P('data')}, 'data', None]", [{"w": ("data",)}, ("data",), ()]),
        ("{0: P(), 'a': {'b': ('x', None)}}", {0: (), "a": {"b": ("x", None)}}),
        ("{}", {}),
    ],
)
def test_parse(text: str, value: Any):
    assert parse_spec(text) == value


@given(containers)
def test_what_is_written_is_read(value: Any):
    assert parse_spec(written(value)) == value


@pytest.mark.parametrize(
    "text",
    [
        "", "data", "P(", "P(data)", "P('data'", "3", "P(3)", "P(P('data'))", "Q('data')",
        "x.P('data')", "P(*['data'])", "P('data', unreduced={'x'})", "P('a' + 'b')", "P(f'{x}')",
        "(P('data'), P())", "{**{}}", "{x: P()}", "{[]: P()}", "{'w': 1}", "{'data'}",
        "__import__('os').system('true')", "P(__import__('os').getpid())", "[P() for _ in 'ab']",
        "P() if 1 else P()", "lambda: 0", "P('a'); P('b')", "x = P()", "\0", "(" * 5000,
        "-" * 5000 + "1", "P.__class__", "P()()", "P('data').entries", "1 .P('data')",
    ],
)  # fmt: skip
def test_what_is_not_spelled_as_specs_is_refused(text: str):
    with pytest.raises(UsageError) as caught:
        parse_spec(text)
    assert "is not a partition spec" in str(caught.value)
    assert "P('data'" in str(caught.value)
    assert "Nothing was moved." in str(caught.value)


@given(st.text(alphabet="P()[]{}'\",:ab*. \\0None") | st.text())
def test_no_text_does_anything_else(text: str):
    try:
        value = parse_spec(text)
    except UsageError:
        return
    assert parse_spec(written(value)) == value


@given(st.data(), st.lists(st.integers(0, 30), max_size=4).map(tuple))
def test_check_agrees_with_the_rules(data: st.DataObject, shape: tuple[int, ...]):
    some = st.sampled_from([*AXES, "other"])
    entry = st.none() | some | st.lists(some, min_size=2, max_size=2).map(tuple)
    spec = data.draw(st.lists(entry, max_size=4).map(tuple))
    axes = [[] if e is None else [e] if isinstance(e, str) else list(e) for e in spec]
    flat = [axis for named in axes for axis in named]
    possible = (
        len(spec) <= len(shape)
        and set(flat) <= set(AXES)
        and len(flat) == len(set(flat))
        and all(
            size % prod(AXES[axis] for axis in named) == 0
            for size, named in zip(shape, axes, strict=False)
        )
    )
    if possible:
        return check_spec(spec, shape, AXES, "w")
    with pytest.raises(UsageError, match="Nothing was moved") as caught:
        check_spec(spec, shape, AXES, "params['w']")
    assert str(caught.value).startswith(f"`params['w']` has shape {shape}")
    return None


@pytest.mark.parametrize(
    ("spec", "shape", "message"),
    [
        (
            ("data", None), (10, 4),
            "`w` has shape (10, 4): its dimension 0 of 10 elements cannot be divided among the 4 "
            "parts of mesh axis 'data'. Nothing was moved. Pad it to 12, or leave the dimension "
            "whole: P(None, None).",
        ),
        (
            (None, ("data", "model")), (10, 4),
            "`w` has shape (10, 4): its dimension 1 of 4 elements cannot be divided among the 8 "
            "parts (4 × 2) of mesh axes 'data' and 'model'. Nothing was moved. Pad it to 8, or "
            "leave the dimension whole: P(None, None).",
        ),
        (
            ("dat",), (8,),
            "`w` has shape (8,): P('dat') divides its dimension 0 along 'dat', which is not an "
            "axis of the mesh. Did you mean 'data'? The mesh has: 'data' (size 4), 'model' (size "
            "2), "
            "'seq' (size 3). Nothing was moved.",
        ),
        (
            ("data", ("model", "data")), (8, 8),
            "`w` has shape (8, 8): P('data', ('model', 'data')) divides both its dimension 0 and "
            "its dimension 1 along mesh axis 'data' (size 4), and an axis divides once. Nothing "
            "was moved. For instance: P('data', 'model').",
        ),
        (
            (("data", "data"),), (16,),
            "`w` has shape (16,): P(('data', 'data')) divides its dimension 0 twice along mesh "
            "axis 'data' (size 4), and an axis divides once. Nothing was moved. For instance: "
            "P('data').",
        ),
        (
            ("data", None), (8,),
            "`w` has shape (8,), 1 dimension, but P('data', None) has 2 entries. Nothing was "
            "moved. Type P('data').",
        ),
        (
            (None, "data"), (8,),
            "`w` has shape (8,), 1 dimension, but P(None, 'data') has 2 entries. There is no "
            "dimension 1 to divide along 'data'. Nothing was moved.",
        ),
        (
            ("data",), (),
            "`w` has shape (), 0 dimensions, but P('data') has 1 entry. There is no dimension 0 "
            "to divide along 'data'. Nothing was moved. Type P().",
        ),
    ],
)  # fmt: skip
def test_messages(spec: Any, shape: tuple[int, ...], message: str):
    with pytest.raises(UsageError) as caught:
        check_spec(spec, shape, AXES, "w")
    assert str(caught.value) == message


def test_a_mesh_without_axes():
    check_spec((None,), (3,), {}, "w")
    with pytest.raises(UsageError, match=r"The mesh has no axes\."):
        check_spec(("data",), (4,), {}, "w")


def test_dimensions_without_elements_can_be_divided():
    check_spec(("data",), (0, 5), AXES, "w")
