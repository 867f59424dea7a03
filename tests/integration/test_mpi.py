"""Groups that mpiexec starts: MPICH and Open MPI, with mpi4jax in cells."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.fixtures import Left, until
from support.hosts import ADDRESSES, Hosts
from support.mpi import MPIS, Mpi
from support.remote import Here, Program, RaisedError

pytestmark = [pytest.mark.may_be_skipped, pytest.mark.thorough]

START = "session = jaxnb.start(4, launcher='mpi', platform='cpu')"

MPI4JAX = """
import mpi4jax
from mpi4py import MPI
world = MPI.COMM_WORLD
before, after = (world.rank - 1) % world.size, (world.rank + 1) % world.size
@jax.jit
def all_three(x):
    total = mpi4jax.allreduce(x, op=MPI.SUM, comm=world)
    received = mpi4jax.sendrecv(x, x, before, after, comm=world)
    return total, received, mpi4jax.alltoall(jnp.full(world.size, x), comm=world)
total, received, exchanged = all_three(jnp.float32(world.rank))
assert received == before and exchanged.tolist() == [0, 1, 2, 3] and world.rank == process_index
float(total)
"""

SUM = """
mesh = jax.make_mesh((4,), ("d",))
x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("d")))
float(jax.jit(jnp.sum)(x))
"""

DEATH = "import os; process_index == 2 and os.kill(os.getpid(), 9)"


@pytest.fixture(params=["mpich", "openmpi"])
def mpi(request: pytest.FixtureRequest) -> Mpi:
    mpi = MPIS[request.param]
    if reason := mpi.cannot():
        pytest.skip(reason)
    return mpi


@pytest.fixture
def notebook(mpi: Mpi, tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Returns what starts a program on this host."""
    programs = []

    def start(**variables: str) -> Program:
        env = {**mpi.variables(tmp_path / f"ipython{len(programs)}"), **variables}
        programs.append(Program(Here(), env=env, python=mpi.python))
        return programs[-1]

    yield start
    for program in programs:
        program.close()


def test_mpi4jax_works_in_cells_also_after_a_recovery(notebook: Callable[..., Program]) -> None:
    program = notebook()
    program.do(START)
    assert program.do(f"session.run({MPI4JAX!r}).value") == 6
    assert program.do(f"session.run({SUM!r}).value") == 28
    program.do("session.run('both = 5')")
    dead = rf"Process 2 of 4 \(pid \d+ on {socket.gethostname()}\) was killed by SIGKILL"
    with pytest.raises(RaisedError, match=dead):
        program.do(f"session.run({DEATH!r})")
    assert program.do("session.recover().died") == [2]
    assert program.do("session.run('both').value") == 5
    assert program.do(f"session.run({MPI4JAX!r}).value") == 6
    program.do("session.close()")


def test_nothing_is_left_where_one_agent_takes_long_to_end(
    notebook: Callable[..., Program],
) -> None:
    program, before = notebook(), Left.now().folders
    program.do(START)
    own = program.do("session._life.cluster.directory")
    slow, *_ = Left.now().folders - before - {own}
    for number in range(20_000):
        Path(slow, str(number)).touch()
    program.do("session.close()")
    assert Left.now().folders == before


def test_nothing_is_left_if_the_notebook_is_killed(notebook: Callable[..., Program]) -> None:
    program = notebook()
    program.do(START)
    program.process.kill()  # a fixture looks what is left


def test_a_cell_that_waits_in_mpi_is_ended_by_two_interrupts(
    notebook: Callable[..., Program],
) -> None:
    program = notebook()
    program.do(START)
    program.do(f"session.run({MPI4JAX!r})")
    program.do("import signal, os; press = lambda: os.kill(os.getpid(), signal.SIGINT)")
    program.do(
        "class Presses(Says):\n"
        "    def notice(self, text):\n"
        "        super().notice(text)\n"
        "        if 'Interrupt again' in text: press()\n"
    )
    program.do("import threading; threading.Timer(1, press).start()")
    with pytest.raises(RaisedError, match="did not end the cell"):
        program.do("session.run('if process_index: world.Barrier()', sink=Presses())")
    assert program.do("session.state") == "ready", program.do("said")
    assert program.do("session.run('float(total)').value") == 6


def test_the_end_of_mpiexec_is_told(mpi: Mpi, notebook: Callable[..., Program]) -> None:
    program = notebook()
    program.do(START)
    program.do(
        "import psutil\n"
        "mpiexec = [each for each in psutil.Process().children(recursive=True)\n"
        "           if 'jaxnb.launch.job_keeper' in each.parent().cmdline()]\n"
        "for each in mpiexec: each.kill()\n"
    )
    if mpi.name == "openmpi":  # whose processes outlive it
        told = "any('has ended, and its processes go on' in each for each in session.group.notes)"
        until(lambda: program.do(told), "the end of mpiexec was told")
    else:
        with pytest.raises(RaisedError, match=r"mpiexec \(pid \d+\) has ended.*%spmd_restart"):
            program.do("session.run('import time; time.sleep(60)')")
    program.do("session.restart()")
    assert program.do(f"session.run({SUM!r}).value") == 28


def test_ranks_run_on_several_hosts(mpi: Mpi, hosts: Hosts) -> None:
    env = mpi.variables(hosts.shared / f"ipython-{mpi.name}", ADDRESSES)
    program = Program(hosts.a, env=env, python=mpi.python)
    try:
        program.do(START)
        places = program.do("[each.host for each in session.processes]")
        assert places == ["hostA", "hostA", "hostB", "hostB"]
        assert program.do(f"session.run({MPI4JAX!r}).value") == 6
        assert program.do(f"session.run({SUM!r}).value") == 28
        program.do("session.close()")
    finally:
        program.close()


def test_jax_uses_mpi_for_its_own_collectives(mpi: Mpi, notebook: Callable[..., Program]) -> None:
    if not (source := os.environ.get("MPIWRAPPER_SOURCE")):
        pytest.skip("MPIWRAPPER_SOURCE names no folder with MPIwrapper's source")
    program = notebook(MPITRAMPOLINE_LIB=mpi.wrapper(Path(source)))
    program.do(START.replace("mpi'", "mpi', collectives='mpi'"))
    assert program.do("session.group.collectives") == "mpi"
    assert program.do(f"session.run({SUM!r}).value") == 28
    assert program.do(f"session.run({COLLECTIVES!r}).value") is True


COLLECTIVES = """
def body(x):
    ring = [(i, (i + 1) % 4) for i in range(4)]
    return (jax.lax.psum(x, "d"), jax.lax.all_gather(x, "d"), jax.lax.ppermute(x, "d", ring),
            jax.lax.all_to_all(x.reshape(4, 1), "d", 0, 0))
specs = P(), P(None, "d"), P("d"), P("d")
y = jax.device_put(jnp.arange(16.0), NamedSharding(mesh, P("d")))
f = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=specs, check_vma=False))
total, gathered, shifted, exchanged = map(
    lambda a: jax.experimental.multihost_utils.process_allgather(a, tiled=True), f(y))
whole = np.arange(16.0).reshape(4, 4)
bool((total == whole.sum(0)).all() and (shifted == np.roll(whole, 1, 0).ravel()).all()
     and (exchanged.reshape(4, 4) == whole.T).all())
"""


def test_mpi_collectives_say_what_they_need(notebook: Callable[..., Program]) -> None:
    program = notebook()
    for arguments, told in (
        ("launcher='mpi', ", "MPITRAMPOLINE_LIB .* is not set.*MPIwrapper"),
        ("launcher='mpi', devices_per_process=2, ", "one device in each process"),
        ("", "Add `--launcher mpi`"),
    ):
        with pytest.raises(RaisedError, match=f"(?s)UsageError: .*{told}"):
            program.do(f"jaxnb.start(4, {arguments}collectives='mpi', platform='cpu')")


DOCTOR = """
from jaxnb.cli import launchers
(mpi,) = (each for each in launchers.look() if each.launchers == ("mpi",))
print(mpi)
"""


@pytest.mark.parametrize("other", ["mpich", "openmpi"])
def test_doctor_compares_mpiexec_with_mpi4py(mpi: Mpi, other: str, tmp_path: Path) -> None:
    if reason := MPIS[other].cannot():
        pytest.skip(reason)
    env = {**os.environ, **MPIS[other].variables(tmp_path / "ipython")}
    words = [mpi.python, "-c", DOCTOR]
    said = subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout
    assert said.startswith("ok" if mpi.name == other else "unusable"), said
    assert ("each process would be alone" in said) == (mpi.name != other), said
    assert "mpi4jax" not in said, said
