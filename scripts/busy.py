"""Processes that do nothing but compute: what is measured beside them is measured under load."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterator


def _spin() -> None:
    owner = os.getppid()
    while os.getppid() == owner:
        sum(range(100_000))


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Runs so many processes that only compute, beside the block."""
    context = multiprocessing.get_context("spawn")
    loops = [context.Process(target=_spin, daemon=True) for _ in range(count)]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.join()
