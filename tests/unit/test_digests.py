"""Digests of arrays: equal for equal elements, whatever their dtype and their place in memory."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxnb.lockstep.process_inputs import MAX_COPY_BYTES, digest

DTYPES = [
    np.bool_, np.int8, np.uint32, np.float16, np.float64, np.complex64,
    ml_dtypes.bfloat16, ml_dtypes.int4, ml_dtypes.float8_e4m3fn,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (5, 7)], ids=str)
def test_equal_elements_have_equal_digests_and_others_not(dtype: Any, shape: Any) -> None:
    array = np.ones(shape, dtype)
    assert digest(array) == digest(array.copy())
    assert len(digest(array)) == 16
    if array.size:
        other = array.copy()
        other[(-1,) * other.ndim] = dtype(0)
        assert digest(other) != digest(array)


def test_an_array_that_is_not_contiguous_has_the_digest_of_its_copy() -> None:
    whole = np.arange(24 * 10, dtype=np.int16).reshape(24, 10)
    for view in (whole.T, whole[::2], whole[:, 3:5], whole[::-1, ::-3], whole[5]):
        assert digest(view) == digest(np.ascontiguousarray(view))


def test_a_large_one_is_copied_in_pieces() -> None:
    whole = np.arange(3 * MAX_COPY_BYTES // 8 + 3, dtype=np.int64)
    for view in (whole[::2], whole[::2][None], np.stack([whole, whole]).T):
        assert view.nbytes > MAX_COPY_BYTES
        assert digest(view) == digest(np.ascontiguousarray(view))


def test_bits_count_and_not_values() -> None:
    assert digest(np.array([0.0])) != digest(np.array([-0.0]))
    assert digest(np.array([np.nan])) == digest(np.array([np.nan]))
