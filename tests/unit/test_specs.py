"""Partition specs are read before anything moves."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnb.arrays.blocks import is_spec, spec_text
from jaxnb.arrays.blocks import normalize as normalize_spec
from jaxnb.arrays.blocks import parse as parse_spec
from jaxnb.errors import UsageError

NAMES = st.sampled_from(["data", "model", "x", "it's"]) | st.text(max_size=4)

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
