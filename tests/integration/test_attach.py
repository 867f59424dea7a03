"""Groups that the engines of an ipyparallel cluster start."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import ipyparallel as ipp
import pytest

import jaxnb
from jaxnb.errors import SessionBrokenError, StartError
from support.fixtures import until

pytestmark = pytest.mark.thorough

SUM = """
mesh = jax.make_mesh((3,), ("d",))
x = jax.device_put(jnp.arange(12.0), NamedSharding(mesh, P("d")))
float(jax.jit(jnp.sum)(x))
"""


@pytest.fixture
def engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[ipp.Client]:
    """A client of the cluster of profile ``site``: three engines, with the test's variables."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    extra = getattr(request, "param", "")
    path = os.pathsep.join([str(tmp_path / "first"), os.environ.get("PYTHONPATH", "")])
    with monkeypatch.context() as during:
        if extra:
            during.setenv("PYTHONPATH", path)
            folder = tmp_path / "first" / f"jax-{extra}.dist-info"
            folder.mkdir(parents=True)
            (folder / "METADATA").write_text(f"Name: jax\nVersion: {extra}\n")
        cluster = ipp.Cluster(n=3, profile="site", cluster_id="")
        client = cluster.start_and_connect_sync()
    yield client
    client.close()
    cluster.stop_cluster_sync()
    until(lambda: not [*tmp_path.glob("jaxnb-*")], "no folder of a group is left")


def test_a_group_runs_beside_the_engines_and_leaves_them(engines: ipp.Client) -> None:
    engines[:].execute("theirs = 7", block=True)
    with jaxnb.start(attach="site", platform="cpu") as session:
        assert session.group.launcher == "attach"
        assert "engines live on" in session.group.notes[0]
        assert session.run(SUM).value == 66
        session.run("both = 5")
        os.kill(session.processes[1].pid, signal.SIGKILL)
        until(lambda: session.state == "broken", "the death was known")
        assert session.recover().died == (1,)
        assert session.run("both").value == 5
        session.restart(num_processes=2)
        assert session.run("num_processes").value == 2
    assert engines[:]["theirs"] == [7] * 3


def test_the_processes_end_with_the_engine_that_has_started_them(engines: ipp.Client) -> None:
    pids = engines[:].apply_sync(os.getpid)
    with jaxnb.start(attach="site", platform="cpu") as session:
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(SessionBrokenError, match="%spmd_restart"):
            session.run("import time; time.sleep(60)")


@pytest.mark.parametrize("engines", ["0.1.2"], indirect=True)
def test_engines_with_another_jax_are_refused(engines: ipp.Client) -> None:
    with pytest.raises(StartError, match=r"has JAX 0\.1\.2, and the notebook"):
        jaxnb.start(attach="site", platform="cpu")
    assert engines.ids == [0, 1, 2]


def test_an_engine_that_is_busy_is_named(engines: ipp.Client) -> None:
    engines[1].execute("import signal; signal.pause()")
    with pytest.raises(StartError, match=r"engines 1 no answer came .* Nothing was started"):
        jaxnb.start(attach="site", platform="cpu")


def test_a_cluster_that_does_not_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    with pytest.raises(StartError, match="`--attach nope`: ipyparallel finds no running cluster"):
        jaxnb.start(attach="nope", platform="cpu")
