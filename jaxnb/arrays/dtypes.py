"""NumPy's dtypes by name, JAX's own ones too."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from jaxnb.errors import JaxnbError

_NUMERIC_KINDS = "biufc"

_SEARCHED_ELEMENTS = 1 << 20
"""So many are looked at at once, where a copy of all could be too large."""


class UnknownDtypeError(JaxnbError, LookupError):
    """No dtype has this name in NumPy or ml_dtypes as they are installed here."""


@functools.cache  # an array of a pull has it looked up several times
def numpy_dtype(name: str) -> np.dtype:
    """Returns the dtype that JAX gives this name.

    Args:
        name: A numeric dtype's own name, e.g. ``"float32"`` or ``"bfloat16"``. Aliases
            (``"float"``, ``"f4"``) and dtypes that JAX has no arrays of are unknown.

    Raises:
        UnknownDtypeError: There is none here.
    """
    # np.dtype(name) would take aliases too, and warn about some names that are none.
    scalar = np.sctypeDict.get(name)
    if scalar is not None:
        dtype: np.dtype = np.dtype(scalar)
        if dtype.name == name and dtype.kind in _NUMERIC_KINDS:
            return dtype
    return _ml_dtype(name)


def largest_overflow(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> float | None:
    """Returns the largest finite magnitude that a cast would turn into an infinity.

    Args:
        array: Floats or complex numbers.
        dtype: What they are to be cast to.

    Returns:
        The magnitude; None if every finite number stays finite.
    """
    parts = [array.real, array.imag] if array.dtype.kind == "c" else [array]
    found = [_largest(part, dtype) for part in parts]
    return max((each for each in found if each is not None), default=None)


def _largest(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> float | None:
    # These pass over NaN; only infinities of the array's own need a closer look.
    fmax: Any = np.fmax.reduce  # NumPy 2.5 declares no axis of None
    fmin: Any = np.fmin.reduce
    most = max(float(fmax(array, axis=None)), -float(fmin(array, axis=None)))
    if np.isinf(most):
        most = 0.0
        with np.nditer(
            array, ["external_loop", "buffered", "zerosize_ok"], buffersize=_SEARCHED_ELEMENTS
        ) as chunks:
            for chunk in chunks:
                finite = np.abs(chunk[np.isfinite(chunk)])
                most = max(most, float(finite.max(initial=0.0)))
    with np.errstate(over="ignore"):
        overflows = np.isinf(np.float64(most).astype(dtype).real)
    return most if overflows else None


def _ml_dtype(name: str) -> np.dtype:
    """The dtype of that name in ml_dtypes."""
    import ml_dtypes

    scalar = getattr(ml_dtypes, name, None)
    if isinstance(scalar, type) and issubclass(scalar, np.generic):
        return np.dtype(scalar)
    raise UnknownDtypeError(
        f"There is no dtype {name!r} in NumPy {np.__version__} or ml_dtypes "
        f"{ml_dtypes.__version__} on the notebook's side. If the processes have it, their "
        "ml_dtypes is newer: `pip install -U ml_dtypes` where the notebook kernel runs."
    )
