"""How the values of the processes relate, and how errors are shown."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnb import errors
from jaxnb.arrays.lost import PerProcess
from jaxnb.cells.result import Agreement, CellResult, ProcessResult
from jaxnb.errors import (
    CellError,
    CellTimeoutError,
    JaxnbError,
    ProcessDiedError,
    RecoveryInterrupted,
    SessionBrokenError,
    SessionClosedError,
    UsageError,
)
from jaxnb.model.arrays import ArrayInfo, ShardInfo
from jaxnb.model.cells import ValueInfo

A, B = b"a" * 16, b"b" * 16


def plain(value: Any, digest: bytes | None = None) -> ValueInfo:
    """A value that travelled with its reply."""
    payload = pickle.dumps(value)
    return ValueInfo(type(value).__name__, payload if digest is None else digest, payload, "", {})


def array(
    owner: int,
    parts: Sequence[tuple[int, int]],
    digests: Sequence[bytes],
    *,
    processes: int = 4,
    replicated: bool = False,
    dtype: str = "float32",
    memory_kind: str = "device",
) -> ValueInfo:
    """What process ``owner`` says of an array with one device a process."""
    seen: dict[tuple[int, int], int] = {}
    shards = []
    for device, part in enumerate(parts):
        replica = seen.setdefault(part, 0)
        seen[part] += 1
        digest = digests[device] if device == owner else b""
        shards.append(ShardInfo(device, device, (part,), replica, digest))
    info = ArrayInfo(
        (8,), dtype, 32, "S", None, None, memory_kind, replicated, processes == 1, tuple(shards),
        (((2 * owner,), str(owner)),),
    )  # fmt: skip
    payload = pickle.dumps(("whole", owner)) if replicated else None
    return ValueInfo("jax.Array", digests[owner] if replicated else b"", payload, "", {}, info)


def arrays(parts: Sequence[tuple[int, int]], digests: Sequence[bytes], **more: Any) -> CellResult:
    return result(*(array(i, parts, digests, **more) for i in range(len(parts))))


def process(index: int, info: ValueInfo | None, **more: Any) -> ProcessResult:
    return ProcessResult(index, info, "", "", (), more.pop("error", None), 0.1, 0.0, **more)


def result(*infos: ValueInfo | None) -> CellResult:
    return CellResult(1, "x", {i: process(i, v) for i, v in enumerate(infos)}, len(infos), 0.1)


WHOLE = [(0, 8)] * 4
QUARTERS = [(0, 2), (2, 4), (4, 6), (6, 8)]
HALVES_TWICE = [(0, 4), (0, 4), (4, 8), (4, 8)]
NONE = [b""] * 4


@pytest.mark.parametrize(
    ("infos", "agreement", "value"),
    [
        ((None, None), Agreement.NO_VALUE, None),
        ((plain({"a": 1}), plain({"a": 1})), Agreement.SAME, {"a": 1}),
        ((plain(1), plain(2), plain(1)), Agreement.DIFFERENT, {0: 1, 1: 2, 2: 1}),
        ((plain(1), None), Agreement.DIFFERENT, {0: 1, 1: None}),
        # Equal bytes of other types:
        ((plain(1), replace(plain(1), type_name="bool")), Agreement.DIFFERENT, {0: 1, 1: 1}),
        # Without a digest values are not compared; one process agrees with itself.
        ((plain(1, b""), plain(1, b"")), Agreement.UNCOMPARED, {0: 1, 1: 1}),
        ((plain(1, b""),), Agreement.SAME, 1),
    ],
)
def test_values(infos: tuple[ValueInfo | None, ...], agreement: Agreement, value: Any) -> None:
    cell = result(*infos)
    assert (cell.agreement, cell.value, cell.array) == (agreement, value, None)
    if agreement is Agreement.DIFFERENT:
        assert isinstance(cell.value, PerProcess)
        assert repr(cell.value) == f"PerProcess({value!r})"


def test_a_sharded_array_is_one_array() -> None:
    cell = arrays(QUARTERS, NONE)
    assert cell.agreement is Agreement.SHARDED
    assert cell.value is cell.array
    # Every process has told its own corner.
    assert cell.array is not None
    assert cell.array.corner == (((0,), "0"), ((2,), "1"), ((4,), "2"), ((6,), "3"))


def test_equal_replicas_are_the_same() -> None:
    cell = arrays(WHOLE, [A] * 4, replicated=True)
    assert cell.agreement is Agreement.SAME
    assert cell.value == ("whole", 0)
    assert cell.array is not None
    assert [s.digest for s in cell.array.shards] == [A] * 4


@given(st.lists(st.sampled_from([A, B]), min_size=4, max_size=4))
def test_replicas_differ_exactly_if_digests_of_a_part_do(digests: list[bytes]) -> None:
    differ = digests[0] != digests[1] or digests[2] != digests[3]
    cell = arrays(HALVES_TWICE, digests)
    assert cell.agreement is (Agreement.REPLICAS_DIFFER if differ else Agreement.SHARDED)
    cell = arrays(WHOLE, digests, replicated=True)
    if len(set(digests)) == 1:
        assert (cell.agreement, cell.value) == (Agreement.SAME, ("whole", 0))
    else:
        assert cell.agreement is Agreement.REPLICAS_DIFFER
        assert cell.value == {i: ("whole", i) for i in range(4)}


@pytest.mark.parametrize("field", ["dtype", "memory_kind"])
def test_arrays_described_otherwise_are_different(field: str) -> None:
    infos = [array(i, QUARTERS, NONE, **({field: "other"} if i == 2 else {})) for i in range(4)]
    assert result(*infos).agreement is Agreement.DIFFERENT


def test_an_array_beside_another_value_is_different() -> None:
    infos = [array(0, QUARTERS, NONE), plain(1), plain(1), plain(1)]
    cell = result(*infos)
    assert cell.agreement is Agreement.DIFFERENT
    assert cell.array is None


def test_replicas_without_digests_are_unverified_and_still_one_value() -> None:
    cell = arrays(WHOLE, NONE, replicated=True)
    assert cell.agreement is Agreement.UNVERIFIED
    assert cell.value == ("whole", 0)


def test_replicas_on_processes_that_did_not_run_are_not_missed() -> None:
    infos = {i: process(i, array(i, WHOLE, [A] * 4, replicated=True)) for i in (1, 2)}
    assert CellResult(1, "x", infos, 4, 0.1).agreement is Agreement.SAME


def test_a_large_value_is_fetched_once_and_on_access_only() -> None:
    fetched = []

    def fetch(gather: object) -> list[int]:
        fetched.append(1)
        return [1, 2]

    one = process(0, ValueInfo("list", A, None, "", {}), fetch=fetch)
    assert fetched == []
    assert one.value == [1, 2]
    assert one.value is one.value
    assert fetched == [1]


def test_a_value_that_cannot_travel_says_why_and_where_it_is() -> None:
    info = ValueInfo("generator", b"", None, "it cannot be pickled (TypeError: no)", {})
    one = process(3, info, fetch=lambda gather: pytest.fail("there is nothing to fetch"))
    with pytest.raises(JaxnbError, match=r"process 3 .generator.*cannot be pickled") as raised:
        _ = one.value
    assert "unchanged there, as `_`" in str(raised.value)


def test_a_value_of_a_class_that_the_notebook_lacks_says_so() -> None:
    payload = pickle.dumps(PerProcess()).replace(b"PerProcess", b"NoSuchType")
    one = process(1, ValueInfo("jaxnb.cells.result.NoSuchType", A, payload, "", {}))
    with pytest.raises(JaxnbError, match=r"process 1 .jaxnb.cells.result.NoSuchType") as raised:
        _ = one.value
    assert isinstance(raised.value.__cause__, AttributeError)


def test_results_survive_a_pickle() -> None:
    cell = result(plain(1), plain(2))
    again = pickle.loads(pickle.dumps(cell))
    assert again.value == {0: 1, 1: 2}


# ---------------------------------------------------------------------- errors


RESULT = CellResult(3, "1/0", {}, 4, 0.1)


def test_every_error_is_a_jaxnb_error() -> None:
    found = [
        c for _, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ == "jaxnb.errors"
    ]
    warnings = [kind for kind in found if issubclass(kind, Warning)]
    assert (len(found), len(warnings)) == (17, 3)
    others = {*warnings, RecoveryInterrupted}  # which is a KeyboardInterrupt
    assert all(issubclass(kind, JaxnbError) or kind in others for kind in found)
    assert all(kind.__doc__ for kind in found)


def test_closed_by_the_user_is_not_broken_from_outside() -> None:
    assert not issubclass(SessionClosedError, SessionBrokenError)
    assert not issubclass(SessionBrokenError, SessionClosedError)
    assert issubclass(ProcessDiedError, SessionBrokenError)
    assert issubclass(CellTimeoutError, CellError)


def test_cell_error_shows_the_processes_tracebacks_first() -> None:
    error = CellError("process 0 raised", result=RESULT, rendering="[0-3]\nValueError: boom")
    assert error.result is RESULT
    assert error._render_traceback_() == [
        "[0-3]",
        "ValueError: boom",
        "",
        "CellError: process 0 raised",
    ]


def test_notes_are_shown_below_the_message() -> None:
    error = UsageError("It cannot be done.")
    assert error._render_traceback_() == ["UsageError: It cannot be done."]
    error.add_note("Do something else.")
    assert error._render_traceback_() == ["UsageError: It cannot be done.", "Do something else."]
