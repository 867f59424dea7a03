"""Arrays and objects of the processes in the notebook, without processes."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import basic_indices

from jaxnb.arrays import refusals
from jaxnb.arrays.gathered import (
    ArrayKey,
    GatheredArray,
    UnknownDtypeError,
    Wanted,
    fits,
    numpy_dtype,
)
from jaxnb.arrays.lost import LostArray, Record
from jaxnb.errors import ArrayGoneError, JaxnbError
from jaxnb.model.arrays import ArrayInfo, Gone, ShardInfo
from support.arrays import DTYPES, dtype_of

KEY = ArrayKey("h", 0, "x", "x", (0, 1), 0)


class Numbers:
    """Reads from an array here, as a session does from the processes."""

    def __init__(self, whole: np.ndarray) -> None:
        self.whole = whole
        self.wanted: list[Wanted] = []
        self.error: Exception | None = None

    generation = 0

    def read(self, wanted: Sequence[Wanted]) -> list[np.ndarray]:
        if self.error is not None:
            raise self.error
        self.wanted.extend(wanted)
        found = []
        for each in wanted:
            taken = self.whole
            for d, positions in enumerate(each.region.ranges):
                taken = taken.take(list(positions), axis=d)
            found.append(each.region.finish(taken))
        return found


def gathered(whole: np.ndarray) -> tuple[GatheredArray, Numbers]:
    index = tuple((0, n) for n in whole.shape)
    reader, name = Numbers(whole), whole.dtype.name
    shards = (ShardInfo(0, 0, index, 0), ShardInfo(1, 1, index, 1))
    info = ArrayInfo(
        whole.shape, name, 8 * whole.itemsize, "S", "P()", None, "device", True, False, shards,
        host_dtype=name,
    )  # fmt: skip
    return GatheredArray(info, KEY, reader), reader


X = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_facts_need_no_data() -> None:
    x, reader = gathered(X)
    assert (x.shape, x.dtype, x.ndim, x.size, x.nbytes, len(x)) == ((3, 4), X.dtype, 2, 12, 48, 3)
    assert (x.sharding.text, x.sharding.spec, str(x.sharding)) == ("S", "P()", "S")
    assert (
        repr(x) == "<GatheredArray float32[3, 4] P() of x, over 2 processes, data there until used>"
    )
    assert [s.replica_id for s in x.shards] == [0, 1]
    assert x.itemsize == 4
    assert not (x == None).any()  # noqa: E711
    assert (x != None).all()  # noqa: E711
    assert not x.is_here
    assert not x.is_gone
    reader.generation = 1
    assert x.is_gone
    for name in ("__array_interface__", "_repr_html_", "nonsense"):
        assert not hasattr(x, name)
    assert reader.wanted == []


def test_data_are_read_once() -> None:
    x, reader = gathered(X)
    assert np.asarray(x) is np.asarray(x)
    assert x.is_here
    x.mean()
    x[1:, 0]
    np.exp(x)
    assert len(reader.wanted) == 1
    assert repr(x).endswith("data here>")


@given(index=basic_indices((3, 4, 2), allow_ellipsis=True))
def test_basic_indices_read_what_they_take(index: Any) -> None:
    whole = np.arange(24).reshape(3, 4, 2)
    x, reader = gathered(whole)
    np.testing.assert_array_equal(x[index], whole[index])
    assert type(x[index]) is type(whole[index][()])
    assert not x.is_here
    assert all(w.region.result_shape == np.shape(whole[index]) for w in reader.wanted)


def test_other_indices_read_all() -> None:
    for index in (X > 3, [0, 2], np.array([1]), (slice(None), [1]), True):
        x, _ = gathered(X)
        np.testing.assert_array_equal(x[index], X[index])
        assert x.is_here


@pytest.mark.parametrize("index", [3, (0, 4), (0, 0, 0), "a", 1.5])
def test_wrong_indices_are_numpys_errors(index: Any) -> None:
    with pytest.raises(IndexError) as numpys:
        X[index]
    x, _ = gathered(X)
    with pytest.raises(IndexError) as raised:
        x[index]
    assert str(raised.value) == str(numpys.value)
    assert not x.is_here


@pytest.mark.parametrize("ufunc", [np.add, np.matmul, np.hypot])
def test_nothing_is_written_into_it(ufunc: np.ufunc) -> None:
    x, _ = gathered(np.ones((3, 3)))
    for out in (x, (x,)):
        with pytest.raises(TypeError, match="cannot be written to"):
            ufunc(np.ones((3, 3)), x, out=out)
    with pytest.raises(TypeError, match="cannot be written to"):
        x[0] = 1
    with pytest.raises(TypeError, match="cannot be written to"):
        x *= 2


def test_operators_on_both_sides() -> None:
    x, _ = gathered(X)
    for found, expected in (
        (x + x, X + X), (1 - x, 1 - X), (X - x, 0 * X), ([1] * 4 + x, X + 1), (x == X, X == X),
        (x @ X.T, X @ X.T), (X.T @ x, X.T @ X), (divmod(x, 2)[1], X % 2), (-x, -X),
        (np.add.outer(x[0], x[1]), np.add.outer(X[0], X[1])), (np.float32(2) ** x, 2**X),
    ):  # fmt: skip
        assert type(found) is np.ndarray
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("value", "spec"), [(7, "03d"), (2.5, ".2f"), (2.5, "")])
def test_scalars(value: float, spec: str) -> None:
    array = np.array(value)
    x, _ = gathered(array)
    assert (int(x), float(x), bool(x), complex(x)) == (int(value), float(value), True, value + 0j)
    assert format(x, spec) == (format(value, spec) if spec else repr(x))
    assert x == value
    assert (round(x), round(x, 0)) == (round(value), round(value, 0))
    with pytest.raises(TypeError, match="unsized"):
        len(x)
    with pytest.raises(TypeError, match="0-d"):
        iter(x)
    with contextlib.nullcontext() if value == 7 else pytest.raises(TypeError):
        assert [*range(10)][x] == 7


def test_more_than_a_scalar() -> None:
    x, _ = gathered(X)
    for use in (bool, float, int, hash, lambda x: format(x, ".2f"), lambda x: [][x]):
        with pytest.raises((TypeError, ValueError)):
            use(x)


def test_membership_and_iteration() -> None:
    x, reader = gathered(X)
    assert 5 in x
    assert 50 not in x
    assert [row.sum() for row in x] == [6, 22, 38]
    assert len(reader.wanted) == 1


USES: dict[str, Callable[[Any], Any]] = {
    "asarray": np.asarray,
    "with a dtype": lambda x: np.asarray(x, dtype=np.int64),
    "a method": lambda x: x.mean(axis=0),
    "a ufunc": np.exp2,
    "a ufunc's method": lambda x: np.add.reduce(x, axis=1),
    "ufunc at where": lambda x: np.add(x, 1, where=x > 0, out=np.zeros((3, 4), np.float32)),
    "concatenate": lambda x: np.concatenate([x, x[:2]]),
    "where": lambda x: np.where(x > 3, x, 0),
    "sum": sum,
    "list": lambda x: np.array(list(x)),
    "tolist": lambda x: x.tolist(),
    "save": lambda x: (np.save(file := io.BytesIO(), x), file.seek(0), np.load(file))[-1],
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "deepcopy": copy.deepcopy,
    "len": len,
    "shape": np.shape,
}


@pytest.mark.parametrize("use", USES)
def test_numpy_takes_it(use: str) -> None:
    expected = USES[use](X)
    found = USES[use](gathered(X)[0])
    assert type(found) is type(expected)
    np.testing.assert_array_equal(found, expected)
    if isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype


def test_conversion() -> None:
    x, _ = gathered(X.copy())
    assert np.asarray(x, np.float64).dtype == np.float64
    assert np.asarray(x, np.float32) is np.asarray(x)
    assert np.array(x).flags.writeable
    assert not np.asarray(x).flags.writeable
    with pytest.raises(ValueError, match="float64 without a copy"):
        np.asarray(x, np.float64, copy=False)


def test_errors_of_reading_come_through() -> None:
    x, reader = gathered(X)
    reader.error = ArrayGoneError("gone")
    for use in (np.asarray, np.mean, lambda x: x[0], lambda x: x + 1, list, lambda x: x.T, bool):
        with pytest.raises(ArrayGoneError, match="gone"):
            use(x)
    assert x.shape == (3, 4)
    reader.error = None
    assert x.sum() == 66


@given(data=st.data())
def test_a_region_of_a_region(data: st.DataObject) -> None:
    whole = np.arange(60).reshape(5, 4, 3)
    first = data.draw(basic_indices(whole.shape))
    x, reader = gathered(whole)
    part = GatheredArray(x.info, KEY, reader, x.wanted().region[first])
    expected = whole[first]
    assert part.shape == np.shape(expected)
    second = data.draw(basic_indices(np.shape(expected)))
    np.testing.assert_array_equal(part[second], np.asarray(expected)[second])
    np.testing.assert_array_equal(part, expected)


# ---------------------------------------------------------------------- dtypes


@pytest.mark.parametrize("name", [*DTYPES, "int64", "float64", "complex128"])
def test_known_dtypes(name: str):
    assert numpy_dtype(name) == dtype_of(name)


@pytest.mark.parametrize(
    "name",
    ["float33", "float", "f4", ">f4", "float32,int8", "object", "str", "U3", "void", "generic",
     "datetime64", "key<fry>", "finfo", "iinfo", "real", "__doc__", "__name__", "a", ""],
)  # fmt: skip
def test_unknown_ones(name: str):
    with pytest.raises(UnknownDtypeError) as caught:
        numpy_dtype(name)
    assert isinstance(caught.value, JaxnbError)
    assert isinstance(caught.value, LookupError)
    assert str(caught.value).startswith(f"There is no dtype {name!r} in NumPy")
    assert "pip install -U ml_dtypes" in str(caught.value)


@given(st.text() | st.sampled_from([*np.sctypeDict, *dir(ml_dtypes), *dir(np)]).map(str))
def test_a_name_gives_the_numeric_dtype_of_that_name_or_nothing(name: str):
    try:
        dtype = numpy_dtype(name)
    except UnknownDtypeError:
        return
    assert dtype.name == name
    assert dtype.itemsize > 0
    assert not dtype.hasobject


@pytest.mark.parametrize(
    ("values", "is_fitting"),
    [
        ([], True),
        ([3.4e38, -3.4e38, 1e-300], True),
        ([np.inf, -np.inf, np.nan], True),
        ([np.nan, 1e300, np.inf], False),
        ([-1e39, 1.0], False),
        ([np.inf, 5.0, -2e200], False),
        ([1j, 1 + 1e300j], False),
        ([2**31 - 1, -(2**31)], True),
        ([1, 2**31], False),
        ([-(2**31) - 1, 1], False),
    ],
)
def test_what_fits(values: list[float], is_fitting: bool) -> None:
    array = np.array(values)
    narrow = np.dtype({"c": "complex64", "f": "float32", "i": "int32"}[array.dtype.kind])
    many = np.broadcast_to(array, (3, array.size)).T[::-1]
    for each in (array, many, array.astype(array.dtype.newbyteorder(">"))):
        assert fits(each, narrow) == is_fitting
    assert is_fitting == all(fits(np.asarray(value), narrow) for value in values)


# -------------------------------------------------------- what stands for an array that lost shards


LOST: Any = LostArray("`x` (float32[4]) lost the shards of process 1", (("here", "data"),))

USES_OF_LOST: dict[str, Callable[[], object]] = {
    "+": lambda: LOST + 1,
    "reflected": lambda: 1 + LOST,
    "@ from NumPy": lambda: np.ones(4) @ LOST,
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
    "with": lambda: contextlib.ExitStack().enter_context(LOST),
    "next": lambda: next(LOST),
    "a format": lambda: f"{LOST:.3}",
}


@pytest.mark.parametrize("use", USES_OF_LOST)
def test_every_use_raises(use: str) -> None:
    with pytest.raises(ArrayGoneError, match=r"^`x` .* lost the shards of process 1\. Nothing"):
        USES_OF_LOST[use]()


def test_it_can_be_looked_at_and_carried() -> None:
    assert repr(LOST) == "<lost: `x` (float32[4]) lost the shards of process 1>"
    (leaf,) = jax.tree.leaves({"a": LOST})
    assert leaf is LOST
    assert LOST.shards == (("here", "data"),)
    assert not hasattr(LOST, "_repr_html_")
    for other in (copy.copy(LOST), pickle.loads(pickle.dumps(LOST))):
        assert repr(other) == repr(LOST)
        assert other.shards == ()  # they are of this process alone


# ------------------------------------------------------ objects whose class only the processes know


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


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (KEY, "`x`"),
        (replace(KEY, is_part=True), "an array in `x`"),
        (replace(KEY, name="the value of cell [3]", path=""), "the value of cell [3]"),
    ],
)
def test_a_name_is_capitalized_only_where_a_sentence_begins(key: ArrayKey, name: str) -> None:
    array, _ = gathered(np.zeros(2, np.float32))
    wanted = array.wanted()._replace(key=key)
    assert refusals.whose(key) == name
    with pytest.raises(ArrayGoneError) as raised:
        refusals.require_there([wanted], {0: Gone(0, 0, "dropped")})
    assert str(raised.value).startswith(name[0].upper() + name[1:])
