"""Dtypes have the names that JAX gives them."""

from __future__ import annotations

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnb.arrays.gathered import UnknownDtypeError, fits, numpy_dtype
from jaxnb.errors import JaxnbError

NUMPY = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip
ML_DTYPES = [
    "bfloat16", "int2", "int4", "uint2", "uint4", "float4_e2m1fn", "float8_e3m4",
    "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float8_e8m0fnu",
]  # fmt: skip


@pytest.mark.parametrize("name", NUMPY)
def test_numpys_own(name: str):
    assert numpy_dtype(name) == np.dtype(name)


@pytest.mark.parametrize("name", ML_DTYPES)
def test_those_of_ml_dtypes(name: str):
    assert numpy_dtype(name) == np.dtype(getattr(ml_dtypes, name))
    assert numpy_dtype(name).name == name


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


def test_ml_dtypes_is_imported_only_when_needed():
    code = (
        "import sys; from jaxnb.arrays.gathered import numpy_dtype; numpy_dtype('float32'); "
        "assert 'ml_dtypes' not in sys.modules; numpy_dtype('bfloat16'); "
        "assert 'ml_dtypes' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


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
