"""Groups of GPU processes: run where there is an NVIDIA GPU, skipped elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jaxnb.errors import UsageError
from jaxnb.launch.host import visible_gpus
from jaxnb.session import Session
from support.fixtures import assert_usable

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


def test_utilisation_and_temperature_come_from_nvml(make_session: Callable[..., Session]) -> None:
    """Of the GPU that the process has, though NVML numbers all of the host's."""
    nvml = pytest.importorskip("pynvml")
    session = make_session(platform="gpu", timeout=120)
    rows = session.stats()
    nvml.nvmlInit()
    for row in rows:
        assert row.gpu_note == ""
        assert row.utilization_percent is not None
        assert 0 <= row.utilization_percent <= 100
        assert row.temperature_celsius is not None
        assert 0 < row.temperature_celsius < 120
    # Who uses which GPU, NVML knows by pid; in a container it may see none.
    for i in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(i)
        pids = {p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
        for row in rows:
            if row.pid in pids:
                celsius = nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
                assert row.temperature_celsius == pytest.approx(celsius, abs=15)


def test_a_cell_says_what_it_allocated(make_session: Callable[..., Session]) -> None:
    session = make_session(1, platform="gpu", timeout=120)
    result = session.run("x = jnp.ones((4 << 20,), jnp.float32).block_until_ready()")
    (memory,) = result.per_process[0].memory
    assert memory.change_bytes >= 16 << 20
    assert memory.peak_of == "device"
    assert memory.peak_bytes is not None
    assert memory.peak_bytes >= memory.after_bytes


def test_more_processes_than_gpus_is_refused() -> None:
    import jaxnb

    with pytest.raises(UsageError, match=rf"there (is|are) {len(GPUS)} GPUs?\b"):
        jaxnb.start(len(GPUS) + 1, platform="gpu")


def test_cpu_can_be_asked_for_beside_gpus(make_session: Callable[..., Session]) -> None:
    session = make_session(2, platform="cpu")
    assert session.group.platform == "cpu"
    assert_usable(session)
