"""What has ended while somebody looked is not counted: nobody looks while memory is added up."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import jax
import pytest

from jaxnb.profile import process_stats
from jaxnb.profile.process_stats import bytes_in_use
from jaxnb.session import process_endpoint


def others_may_look() -> bool:
    """Whether another thread may look now."""

    def try_it() -> bool:
        if may := process_stats._lock.acquire(blocking=False):
            process_stats._lock.release()
        return may

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(try_it).result()


@pytest.mark.parametrize(
    ("look", "module", "name"),
    [
        (bytes_in_use, jax, "live_arrays"),
        (process_endpoint.calls, sys, "_current_frames"),
    ],
)
def test_one_looks_at_a_time(
    look: Callable[[], object], module: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, found = getattr(module, name), []

    def looked() -> object:
        found.append(others_may_look())
        return real()

    monkeypatch.setattr(module, name, looked)
    look()
    assert found == [False]
    assert others_may_look()
