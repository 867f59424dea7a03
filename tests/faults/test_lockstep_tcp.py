"""Lockstep over TCP, where the system's Unix sockets do not keep packets whole."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import jaxnb
from jaxnb.launch.process_join import CONDUCTOR_HOST
from jaxnb.lockstep.messages import conductor_beside
from jaxnb.session import Session
from support.fixtures import PATIENT_SECONDS


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setenv(CONDUCTOR_HOST, "127.0.0.1")
    with jaxnb.start(3, devices_per_process=1, platform="cpu") as session:
        session.run(
            "mesh = jax.make_mesh((3,), ('d',), axis_types=(jax.sharding.AxisType.Auto,))\n"
            "x = jax.make_array_from_callback(\n"
            "    (3,), NamedSharding(mesh, P('d')), lambda index: np.zeros(3, np.float32)[index])\n"
            "step = jax.jit(lambda x: x + 1)"
        )
        yield session


def test_a_typo_and_an_interrupt_end_on_all_at_the_same_step(
    group: Session, tmp_path: Path
) -> None:
    file = conductor_beside(group._life.cluster.service_address)
    assert file.is_file()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    parted = group.run(
        "for i in range(20):\n    if process_index == 2 and i == 7: tiem.sleep(1)\n    x = step(x)",
        raise_on_error=False,
        timeout=PATIENT_SECONDS,
    )
    assert parted.errors[2].type_name == "NameError"
    assert "process 2: raised NameError at line 2" in parted.errors[0].message
    assert group.run("float(jnp.sum(x))").value == 3 * 7
    begun = tmp_path / "begun"
    os.mkfifo(begun)

    def interrupt() -> None:
        begun.read_bytes()
        group.interrupt()

    with ThreadPoolExecutor() as pool:
        interrupted = pool.submit(interrupt)
        ended = group.run(
            f"for i in range(10**9):\n"
            f"    if process_index == 1 and i == 50: open({str(begun)!r}, 'w').close()\n"
            f"    x = step(x)",
            raise_on_error=False,
            timeout=PATIENT_SECONDS,
        )
        interrupted.result(PATIENT_SECONDS)
    assert {error.type_name for error in ended.errors.values()} == {"KeyboardInterrupt"}
    assert group.run("float(jnp.sum(x)) % 3").value == 0
