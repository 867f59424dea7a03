"""What crosses between processes: it survives the crossing, and cannot be changed."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import json
import pickle
import pkgutil
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxnb import model
from jaxnb.model.cells import CellRequest, JoinRequest, ProcessError

MODULES = [
    importlib.import_module(f"{model.__name__}.{found.name}")
    for found in pkgutil.iter_modules(model.__path__)
]
CLASSES = [
    kind
    for module in MODULES
    for _, kind in inspect.getmembers(module, dataclasses.is_dataclass)
    if kind.__module__ == module.__name__
]


@functools.cache
def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Returns values of a field's type; hypothesis alone would fill ``Any`` with nothing."""
    if hint is Any:
        return st.none() | st.integers() | st.text() | st.binary()
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Mapping:
        return st.dictionaries(st.text(max_size=5), values_of(arguments[1]), max_size=3)
    if origin in (types.UnionType, typing.Union):
        return st.one_of(*map(values_of, arguments))
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
        return st.tuples(*map(values_of, arguments))
    if dataclasses.is_dataclass(hint):
        fields = typing.get_type_hints(hint)
        return st.builds(hint, **{name: values_of(kind) for name, kind in fields.items()})
    if hint is float:
        return st.floats(allow_nan=False)
    return st.from_type(hint)


def test_all_are_covered() -> None:
    assert len(CLASSES) >= 18
    assert CellRequest in CLASSES


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@settings(max_examples=20)
@given(data=st.data())
def test_pickles_whole(kind: type, data: st.DataObject) -> None:
    thing = data.draw(values_of(kind))
    again = pickle.loads(pickle.dumps(thing, protocol=5))
    assert type(again) is kind
    assert again == thing


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_is_frozen_and_documented(kind: type) -> None:
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert "__slots__" not in vars(kind)  # pickle takes three times as long with them
    documented = inspect.getdoc(kind) or ""
    assert documented
    if "Attributes:" in documented:
        assert [f.name for f in dataclasses.fields(kind) if f"{f.name}:" not in documented] == []


@given(values_of(JoinRequest))
def test_joins_cross_to_the_fork_server_as_json(join: JoinRequest) -> None:
    assert JoinRequest(**json.loads(json.dumps(dataclasses.asdict(join)))) == join


def test_an_error_reads_as_python_writes_it() -> None:
    assert str(ProcessError("ValueError", "boom", "", "")) == "ValueError: boom"
    assert str(ProcessError("KeyboardInterrupt", "", "", "")) == "KeyboardInterrupt"


def test_every_run_of_a_cell_has_a_name_of_its_own() -> None:
    one, other = CellRequest(3, "x"), CellRequest(3, "x")
    assert one.request_id
    assert one.request_id != other.request_id
