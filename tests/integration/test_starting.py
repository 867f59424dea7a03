"""From nothing to a group that was checked, and what surrounds it."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import psutil
import pytest

from integration.conftest import LAUNCHERS
from jaxnb.errors import SessionBrokenError, StartError
from jaxnb.launch.folder import make_folder
from jaxnb.launch.forkclient import ForkServerClient
from jaxnb.launch.placement import place
from jaxnb.launch.process_join import thread_pool_size
from jaxnb.model.cells import JoinRequest
from jaxnb.model.group import DeviceInfo, ProcessReport
from jaxnb.options import StartOptions
from jaxnb.session import Session
from jaxnb.session.starting import verify
from jaxnb.wire import client
from support.fixtures import PATIENT_SECONDS, assert_usable

MakeSession = Callable[..., Session]


# ---------------------------------------------------------------------- the check


def reports(n: int = 2, devices: int = 2) -> list[ProcessReport]:
    """What the processes of a healthy group report."""
    return [
        ProcessReport(
            process_index=i,
            num_processes=n,
            local_devices=tuple(DeviceInfo(2048 * i + d, i, "cpu", "cpu") for d in range(devices)),
            num_global_devices=n * devices,
            psum=float(n * devices),
            pid=100 + i,
            host="here",
            jax_version="1",
        )
        for i in range(n)
    ]


PLACEMENT = place(StartOptions(num_processes=2, devices_per_process=2, platform="cpu"), ())


def test_a_healthy_group_passes_the_check() -> None:
    verify(reports(), PLACEMENT)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("process_index", 0, "sees 0 for its process index; it should be 1."),
        ("local_devices", (), "sees 0 for local devices; it should be 2."),
        ("psum", 3.0, "sees 3.0 for the sum of a one from every device; it should be 4.0."),
        ("jax_version", "2", "sees 2 for the version of JAX; it should be 1."),
    ],
)
def test_a_process_that_sees_something_else_is_named(field: str, value: Any, said: str) -> None:
    import dataclasses

    first, second = reports()
    with pytest.raises(StartError) as raised:
        verify([first, dataclasses.replace(second, **{field: value})], PLACEMENT)
    assert str(raised.value) == f"Process 1 of 2 (pid 101 on here) {said}"


# ---------------------------------------------------------------------- thread pools


@pytest.mark.parametrize(
    ("devices", "asked", "size"),
    [(1, None, 4), (2, None, 4), (8, None, 16), (2, "9", 9), (8, "2", 16), (1, "x", 4)],
)
def test_thread_pool_size(
    devices: int, asked: str | None, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NPROC", raising=False)
    if asked is not None:
        monkeypatch.setenv("NPROC", asked)
    assert thread_pool_size(JoinRequest(0, 1, "", "cpu", devices)) == size


def test_200_unblocked_dispatches_over_all_processes_survive(session: Session) -> None:
    result = session.run(
        "mesh = jax.make_mesh((8,), ('d',))\n"
        "x = jax.make_array_from_callback((8,), NamedSharding(mesh, P('d')),"
        " lambda i: np.ones(1, np.float32))\n"
        "f = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, P()))\n"
        "totals = [f(x) for _ in range(200)]\n"
        "float(totals[-1])",
        timeout=PATIENT_SECONDS,
    )
    assert result.value == 8.0


# ---------------------------------------------------------------------- launchers and options


def test_two_groups_at_once_the_second_bare(session: Session, make_session: MakeSession) -> None:
    other = make_session(1, devices_per_process=3, bare=True)
    names = "'jax', 'jnp', 'np', 'P', 'NamedSharding', 'process_index', 'num_processes'"
    assert other.run(f"[name for name in ({names}) if name in globals()]").value == []
    # A process imports its own side only: all of the notebook's would take half as long as jax.
    assert other.run("import sys; 'jaxnb.session.session' in sys.modules").value is False
    assert session.run("x = 'first'; jax.device_count()").value == 8
    assert other.run("import jax; x = 'second'; jax.device_count()").value == 3
    assert (session.run("x").value, other.run("x").value) == ("first", "second")
    assert {p.pid for p in session.processes}.isdisjoint({p.pid for p in other.processes})
    other.close()
    assert session.run("x").value == "first"


@LAUNCHERS
def test_modules_beside_the_notebook_take_the_place_of_none(
    make_session: MakeSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str
) -> None:
    """They may be another user's, where others can write."""
    for name in ("runpy", "random", "selectors", "psutil", "zmq", "jax", "jaxnb"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the folder')\n")
    (tmp_path / "beside.py").write_text("answer = 42\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_DATA", "/data/ü")
    session = make_session(1, launcher=launcher)
    assert session.run("import os; os.getcwd(), os.environ['MY_DATA']").value == (
        str(tmp_path), "/data/ü"
    )  # fmt: skip
    assert session.run("import beside; beside.answer").value == 42
    assert_usable(session)


# ---------------------------------------------------------------------- the coordination service


@pytest.fixture
def fork_server() -> Iterator[ForkServerClient]:
    client = ForkServerClient("fork", lambda event: None)
    yield client
    client.close()
    assert not os.path.exists(client.directory)


def serve(fork_server: ForkServerClient) -> Path:
    """Starts a service; returns its socket."""
    answer = fork_server.request("service", num_processes=1).result(PATIENT_SECONDS)
    assert psutil.pid_exists(answer["pid"])
    return Path(unquote(answer["line"].strip().removeprefix("unix:")))


def test_the_fork_server_answers_until_it_has_ended(fork_server: ForkServerClient) -> None:
    """Each coordination service has a socket of its own: it asks nobody who they are."""
    with pytest.raises(StartError, match="_do_nonsense"):
        fork_server.request("nonsense").result(PATIENT_SECONDS)
    first, second = serve(fork_server), serve(fork_server)
    assert first != second
    assert first.is_socket()
    assert second.is_socket()
    assert stat.S_IMODE(first.parent.stat().st_mode) == 0o700
    fork_server.close()
    with pytest.raises(SessionBrokenError, match=r"The fork server .* ended with status 0"):
        fork_server.request("service").result(PATIENT_SECONDS)


@pytest.mark.usefixtures("exact_labels")
def test_a_group_is_ready_only_when_its_output_comes(
    make_session: MakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output comes by a subscription, which may reach a process after its first answers."""
    lost: list[Any] = []
    dispatch = client.RawClient._dispatch_iopub

    def late(self: Any, message: Any) -> None:
        if len(lost) < 10:  # the signs that the first checks have begun and ended
            lost.append(message)
        else:
            dispatch(self, message)

    monkeypatch.setattr(client.RawClient, "_dispatch_iopub", late)
    session = make_session(2)
    assert len(lost) == 10
    result = session.run("print('heard')")
    assert result.stdout == "[0-1] heard\n"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder like a group's; pytest's own have too long a path for sockets."""
    path = Path(make_folder())
    yield path
    shutil.rmtree(path)


CONTROLLER = """
import os, sys, threading
from jaxnb.launch.controller_app import run
os.register_at_fork(before=lambda: print(threading.active_count(), flush=True))
run(sys.argv[1], "of-a-test", os.open(os.devnull, os.O_WRONLY))
"""


def test_the_controller_forks_before_it_has_threads(folder: Path) -> None:
    """A thread may hold a lock at that moment, which the child would wait for without end."""
    with subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, str(folder)], stdout=subprocess.PIPE, text=True
    ) as controller:
        try:
            assert controller.stdout is not None
            assert controller.stdout.readline() == "1\n"
        finally:
            controller.terminate()
