"""Groups on the nodes of an allocation: real Slurm, two nodes."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator

import pytest

from support.faults import begin_loop
from support.fixtures import until
from support.hosts import ROOT, Hosts
from support.remote import CELL, Program, RaisedError
from support.slurm import PLACES, users, variables

pytestmark = [pytest.mark.may_be_skipped, pytest.mark.thorough]

START = "session = jaxnb.start(launcher='slurm', platform='cpu')"


Allocate = Callable[..., Program]


@pytest.fixture
def allocate(nodes: Hosts) -> Iterator[Allocate]:
    """Returns what starts a program on hostA, in an allocation of both nodes or with other options.

    Fails a test that leaves a process, a file or a job.
    """
    programs = []

    def allocate(*options: str) -> Program:
        words = ["salloc", "-Q", *(options or ("-N2", "--ntasks-per-node=2"))]
        programs.append(Program(nodes.a, *words, env=variables(nodes)))
        return programs[-1]

    yield allocate
    for program in programs:
        program.close()

    def left() -> list[str]:
        jobs = nodes.a.run("squeue", "-h", env=variables(nodes)).stdout.splitlines()
        found = [word for host in (nodes.a, nodes.b) for word in users(host).values()]
        return [*jobs, *found, *nodes.b.files()]

    until(lambda: not left(), f"nothing is left: {left()}")


def test_a_group_has_the_nodes_and_tasks_of_the_allocation(allocate: Allocate) -> None:
    program = allocate("-N2", "--ntasks-per-node=2", "--mem-per-cpu=100", "--cpus-per-task=1")
    program.do(START)
    assert program.do(PLACES) == ["hostA", "hostA", "hostB", "hostB"]
    assert program.do("session.group.launcher") == "slurm"
    assert program.do(f"session.run({CELL!r}).value") == 66
    program.do("import os; os.kill(session.processes[0].pid, 9)")
    until(lambda: program.do("session.state") == "broken", "the death was known")
    assert program.do("session.recover().died") == [0]
    assert program.do("session.run('both').value") == "both"
    program.do("session.close()")
    program.do(START.replace("(", "(3, ", 1))
    assert len(program.do(PLACES)) == 3
    assert program.do(f"session.run({CELL!r}).value") == 66
    program.do("session.close()")
    program.do(START.replace("(", "(hosts='hostB', "))
    assert program.do(PLACES) == ["hostB"] * 2


def test_who_ends_the_job_ends_the_group_and_is_named(allocate: Allocate, nodes: Hosts) -> None:
    program = allocate()
    program.do(START)
    program.do(f"session.run({CELL!r})")
    begin_loop(program, nodes)
    (job,) = nodes.a.run("squeue", "-h", "-o", "%i", env=variables(nodes)).stdout.split()
    nodes.a.run("scancel", job, env=variables(nodes))
    with pytest.raises(RaisedError, match=r"on hostB\) was lost with its host: .*CANCELLED"):
        program.end()
    assert program.do("session.recover().died") == [2, 3]
    assert program.do(PLACES) == ["hostA"] * 4
    assert program.do("session.run('both').value") == "both"


def test_nothing_is_left_if_the_notebook_is_killed(allocate: Allocate, nodes: Hosts) -> None:
    allocate().do(START)
    notebooks = [pid for pid, words in users(nodes.a).items() if "-m support.remote" in words]
    os.kill(max(notebooks), signal.SIGKILL)  # the fixture looks what is left


@pytest.mark.parametrize(
    ("options", "arguments", "told"),
    [
        (["-N1", "-w", "hostA"], "hosts='hostA,hostB', ", "hostB: it is no node of the allocation"),
        (["-N1"], "hosts='nowhere', ", "nowhere: it is no node of the allocation"),
    ],
)
def test_what_the_allocation_has_not_is_refused(
    allocate: Allocate, options: list[str], arguments: str, told: str
) -> None:
    program = allocate(*options)
    with pytest.raises(RaisedError, match=f"StartError: No agent could be started on {told}"):
        program.do(START.replace("(", f"({arguments}"))


def test_a_script_runs_on_the_nodes(allocate: Allocate, nodes: Hosts) -> None:
    script = nodes.shared / "script.py"
    script.write_text("import socket, jax\nprint(socket.gethostname(), jax.process_count())\n")
    words = [sys.executable, "-m", "jaxnb", "run", str(script), "--launcher", "slurm"]
    program = allocate()
    program.do("import subprocess")
    done = program.do(f"subprocess.run({words!r}, capture_output=True, text=True).stdout")
    assert sorted(done.splitlines()) == ["[0-1] hostA 4", "[2-3] hostB 4"]


DOCTOR = """
from jaxnb.cli import launchers
(slurm,) = (each for each in launchers.look() if each.launchers == ("slurm",))
print(slurm)
"""


def test_doctor_says_whether_slurm_can_be_used(nodes: Hosts) -> None:
    def said(*before: str, **settings: str) -> str:
        env = {**variables(nodes), "PYTHONPATH": str(ROOT), **settings}
        return nodes.a.run(*before, sys.executable, "-c", DOCTOR, env=env).stdout

    def control(command: str) -> None:
        nodes.a.run("sh", "-c", command, env=variables(nodes))

    assert said() == (
        "ok       launcher slurm: Slurm answers, and `--launcher slurm --nodes 2` submits a job\n"
    )
    inside = said("salloc", "-Q", "-N2", "--ntasks-per-node=2")
    assert re.fullmatch(r"ok       launcher slurm: in job \d+, on hostA,hostB\n", inside)
    assert "Start it once, without srun" in said("salloc", "-Q", "-n2", "srun")
    conf = nodes.shared / "slurm" / "slurm.conf"
    nobody = nodes.shared / "slurm" / "nobody.conf"
    nobody.write_text(f"{conf.read_text()}SlurmctldPort=1\n")  # scontrol tries for 9 s
    silent = said(SLURM_CONF=str(nobody))
    assert "controller has not answered within 1.5 s: it is down, or busy" in silent
    control("echo SlurmdTimeout=30 >> $SLURM_CONF; scontrol reconfigure")
    try:
        assert "30 s ends the job (SlurmdTimeout)\n         fix: --lost-after 30" in said()
    finally:
        control("sed -i '/^SlurmdTimeout/d' $SLURM_CONF; scontrol reconfigure")
