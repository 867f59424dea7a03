"""Settings of processes, to what differs and what is said of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from jaxnb.lockstep.settings import KnownSettings, as_pitfalls, differences, refusal
from jaxnb.model.cells import CellReply
from jaxnb.model.group import ProcessReport

pytestmark = pytest.mark.unit

X64 = "jax_enable_x64"


def test_what_is_equal_or_not_known_everywhere_does_not_differ() -> None:
    assert differences({0: {X64: "True", "a": "1"}, 1: {X64: "True"}}) == []
    assert differences({}) == []


def test_the_value_of_most_is_what_mends() -> None:
    (found,) = differences({0: {X64: "True"}, 1: {X64: "False"}, 2: {X64: "False"}})
    assert found.values == (("False", (1, 2)), ("True", (0,)))
    assert str(found) == "`jax_enable_x64` is False on processes 1-2, True on process 0"
    assert found.mend == "Type `%spmd jax.config.update('jax_enable_x64', False)`."
    text = refusal([found], "jit(f)")
    assert str(found) in text
    assert found.mend in text


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("jax_default_prng_impl", "rbg", "update('jax_default_prng_impl', 'rbg')"),
        ("jax_default_matmul_precision", "None", "update('jax_default_matmul_precision', None)"),
        ("jax_exec_time_optimization_effort", "0.5", "effort', 0.5)"),
        ("jax_random_seed_offset", "-3", "offset', -3)"),
        ("XLA_FLAGS", "--xla_x", "the same environment"),
        ("version of numpy", "2.1", "the same packages"),
    ],
)
def test_what_to_type(name: str, value: str, said: str) -> None:
    (found,) = differences({0: {name: value}, 1: {name: "other"}})
    assert said in found.mend
    (pitfall,) = as_pitfalls([found])
    assert pitfall.kind == "settings"
    assert name in pitfall.message


def report(index: int, pid: int, **settings: str) -> ProcessReport:
    fields: dict[str, Any] = dict.fromkeys(
        (f.name for f in dataclasses.fields(ProcessReport) if f.default is dataclasses.MISSING), 0
    )
    known = {"process_index": index, "pid": pid, "settings": tuple(settings.items())}
    return ProcessReport(**(fields | known))


def reply(index: int, **settings: str) -> CellReply:
    return CellReply(index, None, None, 0.0, 0.0, 0, settings=tuple(settings.items()))


def test_a_process_that_is_replaced_has_forgotten_what_was_set() -> None:
    known = KnownSettings()
    known.joined([report(0, 1, **{X64: "False"}), report(1, 2, **{X64: "False"})])
    known.replied({0: reply(0), 1: reply(1, **{X64: "True"})}, silent=())
    assert [each.name for each in known.differences()] == [X64]
    known.replied(
        {1: reply(1)}, silent=[1]
    )  # what stands for the reply of a silent one says nothing
    assert known.differences()
    known.joined([report(0, 1, **{X64: "False"}), report(1, 3, **{X64: "False"})])
    assert known.differences() == []


def test_what_differs_from_the_start_on_is_known() -> None:
    known = KnownSettings()
    known.joined([report(0, 1, XLA_FLAGS=""), report(1, 2, XLA_FLAGS="--x")])
    assert str(known.differences()[0]) == "`XLA_FLAGS` is empty on process 0, --x on process 1"
