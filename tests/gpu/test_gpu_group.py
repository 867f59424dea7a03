"""Groups of GPU processes: run where there is an NVIDIA GPU, skipped elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jaxnb.errors import UsageError
from jaxnb.launch.gpus import visible_gpus
from jaxnb.session import Session
from jaxnb_fixtures import assert_usable

GPUS = visible_gpus()
pytestmark = pytest.mark.skipif(not GPUS, reason="no NVIDIA GPU on this host")


def test_auto_takes_one_process_per_gpu(make_session: Callable[..., Session]) -> None:
    session = make_session(platform="auto", timeout=120)
    assert session.num_processes == len(GPUS)
    assert session.group.platform == "gpu"
    assert {d.platform for p in session.processes for d in p.devices} == {"gpu"}
    assert_usable(session)


def test_memory_comes_from_the_backend(make_session: Callable[..., Session]) -> None:
    session = make_session(1, platform="gpu", timeout=120)
    before = session.stats()[0]
    session.run("x = jnp.ones((1 << 20,), jnp.float32).block_until_ready()")
    after = session.stats()[0]
    assert after.source == "memory_stats"
    assert after.bytes_in_use is not None
    assert before.bytes_in_use is not None
    assert after.bytes_in_use - before.bytes_in_use >= 4 << 20
    assert after.limit_bytes


def test_more_processes_than_gpus_is_refused() -> None:
    import jaxnb

    with pytest.raises(UsageError, match=f"there are {len(GPUS)} GPUs"):
        jaxnb.start(len(GPUS) + 1, platform="gpu")


def test_cpu_can_be_asked_for_beside_gpus(make_session: Callable[..., Session]) -> None:
    session = make_session(2, platform="cpu")
    assert session.group.platform == "cpu"
    assert_usable(session)
