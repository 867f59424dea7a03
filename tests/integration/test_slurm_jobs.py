"""Groups in jobs that jaxnb submits: real Slurm, two nodes."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator

import pytest

from support.faults import begin_loop
from support.fixtures import until
from support.hosts import Hosts
from support.remote import CELL, Program, RaisedError
from support.slurm import PLACES, users, variables

pytestmark = [pytest.mark.may_be_skipped, pytest.mark.thorough]

START = "session = jaxnb.start(4, launcher='slurm', platform='cpu', nodes=2)"


def jobs(nodes: Hosts, what: str = "%T %r") -> list[str]:
    """Returns what Slurm says of each job in its queue."""
    return nodes.a.run("squeue", "-h", "-o", what, env=variables(nodes)).stdout.splitlines()


@pytest.fixture
def notebook(nodes: Hosts) -> Iterator[Callable[[], Program]]:
    """Returns what starts a program on hostA, in no allocation.

    Fails a test that leaves a process, a file or a job.
    """
    programs = []

    def start() -> Program:
        ipython = {"IPYTHONDIR": str(nodes.shared / "ipython")}
        programs.append(Program(nodes.a, env={**variables(nodes), **ipython}))
        return programs[-1]

    yield start
    for program in programs:
        program.close()

    def left() -> list[str]:
        found = [word for host in (nodes.a, nodes.b) for word in users(host).values()]
        return [*jobs(nodes), *found, *nodes.a.files(), *nodes.b.files()]

    until(lambda: not left(), f"nothing is left: {left()}")


Notebook = Callable[[], Program]


@pytest.fixture
def full(notebook: Notebook, nodes: Hosts) -> Iterator[None]:
    """Has another job take both nodes, until before the notebook's end."""
    env = variables(nodes)
    words = ["sbatch", "--parsable", "-N2", "--exclusive", "--output=/dev/null", "--wrap"]
    job = nodes.a.run(*words, "srun sleep 600", env=env).stdout.strip()
    until(lambda: jobs(nodes) == ["RUNNING None"], "the job runs")
    yield
    nodes.a.run("scancel", job, env=env)


def test_the_last_minutes_of_a_job_are_told(notebook: Notebook) -> None:
    program = notebook()
    program.do(START.replace(")", ", time_limit='5')"))
    until(lambda: program.do("session.group.notes"), "Slurm has been asked")
    (note,) = [each for each in program.do("session.group.notes") if "ends in" in each]
    assert re.fullmatch(r"Slurm job \d+ ends in 4 min, and all .* `%spmd_save`\.", note)


def test_a_job_of_the_users_has_an_agent_for_each_process(notebook: Notebook, nodes: Hosts) -> None:
    profile = nodes.shared / "ipython" / "profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    config = profile / "ipcluster_config.py"
    template = (
        "#!/bin/sh\n#SBATCH --ntasks={n} --nodes=2 --job-name=mine --output=/dev/null\n"
        "srun {program_and_args}\n"
    )
    config.write_text(f"c.SlurmEngineSetLauncher.batch_template = {template!r}\n")
    program = notebook()
    program.do("session = jaxnb.start(3, launcher='slurm', platform='cpu')")
    config.unlink()
    assert jobs(nodes, "%j %C") == ["mine 3"]
    assert sorted(program.do(PLACES)) in (["hostA"] * 2 + ["hostB"], ["hostA"] + ["hostB"] * 2)
    assert program.do(f"session.run({CELL!r}).value") == 66


def test_a_drained_node_is_waited_for_and_named(notebook: Notebook, nodes: Hosts) -> None:
    env = variables(nodes)
    drain = ["scontrol", "update", "nodename=hostB", "reason=x"]
    nodes.a.run(*drain, "state=DRAIN", env=env)
    stages = nodes.shared / "drained"
    stages.touch()
    program = notebook()
    program.do(f"stages = open({str(stages)!r}, 'a')")
    told = "progress=lambda *stage: print(*stage, file=stages, flush=True)"
    program.begin(START.replace(")", f", {told})"))
    until(lambda: re.search("PENDING .*DRAIN", stages.read_text()), "the reason is told")
    nodes.a.run(*drain[:3], "state=RESUME", env=env)
    program.end()
    assert program.do(PLACES) == ["hostA", "hostA", "hostB", "hostB"]


def test_a_script_gets_a_job(notebook: Notebook, nodes: Hosts) -> None:
    script = nodes.shared / "script.py"
    script.write_text("import socket, jax\nprint(socket.gethostname(), jax.process_count())\n")
    words = [sys.executable, "-m", "jaxnb", "run", str(script), "-n", "4", "--launcher", "slurm"]
    program = notebook()
    program.do("import subprocess")
    run = f"subprocess.run({[*words, '--nodes', '2']!r}, capture_output=True, text=True)"
    assert program.do(f"sorted({run}.stdout.splitlines())") == ["[0-1] hostA 4", "[2-3] hostB 4"]


def test_a_job_is_submitted_for_a_group(notebook: Notebook, nodes: Hosts) -> None:
    program = notebook()
    program.do(START.replace(")", ", time_limit='30', partition='debug')"))
    assert program.do(PLACES) == ["hostA", "hostA", "hostB", "hostB"]
    assert jobs(nodes, "%j %P %D %C %l") == ["jaxnb debug 2 4 30:00"]
    assert program.do(f"session.run({CELL!r}).value") == 66
    with pytest.raises(RaisedError, match=r"Process 3 of 4 \(pid \d+ on hostB\) was killed"):
        program.do("session.run('import os; process_index == 3 and os.kill(os.getpid(), 9)')")
    assert program.do("session.recover().died") == [3]
    assert program.do("session.run('both').value") == "both"
    assert program.do(PLACES) == ["hostA", "hostA", "hostB", "hostB"]
    program.do("session.restart()")
    assert program.do(f"session.run({CELL!r}).value") == 66
    program.do("session.close()")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("partition='nope'", "invalid partition specified: nope"),
        ("hosts='hostA'", "`--hosts` names nodes of an allocation"),
    ],
)
def test_what_slurm_refuses_is_told(notebook: Notebook, arguments: str, told: str) -> None:
    with pytest.raises(RaisedError, match=told):
        notebook().do(f"jaxnb.start(4, launcher='slurm', platform='cpu', {arguments})")


def begin_waiting(program: Program, nodes: Hosts) -> int:
    """Begins a start whose job waits; returns the notebook's process."""
    stages = nodes.shared / "stages"
    stages.touch()
    program.do(f"stages = open({str(stages)!r}, 'a')")
    program.begin(
        START.replace(")", ", progress=lambda *stage: print(*stage, file=stages, flush=True))")
    )
    waits = r"queued Slurm job \d+: PENDING \(Resources\)"
    until(lambda: re.search(waits, stages.read_text()), "it was told that the job waits")
    stages.unlink()
    return min(pid for pid, words in users(nodes.a).items() if "-m support.remote" in words)


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGKILL])
def test_a_job_that_waits_is_cancelled(
    notebook: Notebook, nodes: Hosts, sig: signal.Signals
) -> None:
    program = notebook()
    os.kill(begin_waiting(program, nodes), sig)
    if sig == signal.SIGINT:
        with pytest.raises(RaisedError, match="KeyboardInterrupt"):
            program.end()
    until(lambda: len(jobs(nodes)) == 1, "the job was cancelled")


@pytest.mark.usefixtures("full")
def test_a_job_that_cannot_be_cancelled_is_told(notebook: Notebook, nodes: Hosts) -> None:
    fails = nodes.shared / "fails"
    fails.mkdir(exist_ok=True)
    (fails / "scancel").write_text("#!/bin/sh\nexit 1\n")
    (fails / "scancel").chmod(0o755)
    program = notebook()
    program.do("import io, os, sys\nsys.stderr = io.StringIO()")
    program.do(f"os.environ['PATH'] = '{fails}:' + os.environ['PATH']")
    os.kill(begin_waiting(program, nodes), signal.SIGINT)
    with pytest.raises(RaisedError, match="KeyboardInterrupt"):
        program.end()
    (job,) = (each for each in jobs(nodes, "%i %j") if each.endswith(" jaxnb"))
    job = job.split()[0]
    told = program.do("sys.stderr.getvalue()")
    assert f"Slurm job {job} could not be cancelled. It may still be there" in told
    assert f"`scancel {job}`" in told
    nodes.a.run("scancel", job, env=variables(nodes))


def test_nothing_is_left_of_a_killed_notebook(notebook: Notebook, nodes: Hosts) -> None:
    notebook().do(START)
    notebooks = [pid for pid, words in users(nodes.a).items() if "-m support.remote" in words]
    os.kill(min(notebooks), signal.SIGKILL)  # the fixture looks what is left


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("scancel JOB", r"SessionBrokenError: Slurm job \d+ has ended: CANCELLED"),
        (
            "scontrol update nodename=hostB state=DOWN reason=x",
            r"Slurm job \d+ has ended: NODE_FAIL",
        ),
        (
            "sbatch --partition=urgent -N2 --exclusive --output=/dev/null --wrap=true",
            r"Slurm job \d+ has ended: PREEMPTED",
        ),
    ],
)
def test_the_end_of_a_job_is_told_as_what_it_is(
    notebook: Notebook, nodes: Hosts, command: str, told: str
) -> None:
    program = notebook()
    program.do(START)
    program.do(f"session.run({CELL!r})")
    begin_loop(program, nodes)
    (job,) = jobs(nodes, "%i")
    nodes.a.run(*command.replace("JOB", job).split(), env=variables(nodes))
    try:
        with pytest.raises(RaisedError, match=told):
            program.end()
        program.do("session.close()")
    finally:
        resume = ["scontrol", "update", "nodename=hostB", "state=RESUME"]
        nodes.a.popen(*resume, env=variables(nodes)).wait()
