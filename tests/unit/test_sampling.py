"""A sample of a table's rows has all kinds, and is another with another seed."""

from __future__ import annotations

import pytest

from support.sampling import SEED, sampled, seed

ROWS = tuple(range(60))


def keys(row: int) -> set[tuple[str, int]]:
    return {("remainder", row % 5), ("half", row // 30)}


def test_every_key_is_covered_by_few_rows() -> None:
    for number in range(20):
        chosen = sampled(ROWS, keys, number)
        assert set().union(*map(keys, chosen)) == set().union(*map(keys, ROWS))
        assert len(chosen) <= 6


def test_the_same_seed_chooses_the_same_rows() -> None:
    assert sampled(ROWS, keys, 7) == sampled(ROWS, keys, 7)


def test_another_seed_chooses_other_rows() -> None:
    chosen = [frozenset(sampled(ROWS, keys, number)) for number in range(20)]
    assert len(set(chosen)) > 10
    assert len(frozenset().union(*chosen)) > len(ROWS) / 2


def test_a_row_without_keys_is_never_chosen() -> None:
    assert all(row % 2 for row in sampled(ROWS, lambda row: {row} if row % 2 else (), 3))
    assert sampled((), keys, 3) == set()


def test_the_seed_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SEED, "41")
    assert seed() == 41
    monkeypatch.delenv(SEED)
    assert seed() == 0
