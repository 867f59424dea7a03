"""A host is lost, or the notebook of a group over two: who runs is told, and nothing is left."""

from __future__ import annotations

import os
import re
import signal
import sys

import pytest

from support.faults import begin_loop
from support.fixtures import until
from support.hosts import ROOT, Host, Hosts
from support.remote import CELL, Program, RaisedError

pytestmark = pytest.mark.may_be_skipped

START = "session = jaxnb.start(3, hosts='hostA:2,hostB:1', platform='cpu')"


def oldest(host: Host, words: str) -> int:
    """Returns the oldest process of a host whose command line has words, as this machine counts."""
    return min(pid for pid, line in host.processes().items() if words in line)


def running(host: Host) -> list[int]:
    """Returns the processes of a host that run jaxnb, as this machine counts."""
    return [pid for pid, line in host.processes().items() if "jaxnb" in line]


@pytest.mark.parametrize(
    ("on", "words"),
    [
        pytest.param("a", "ssh -T", id="ssh"),
        pytest.param("b", "jaxnb.launch.agent", id="agent", marks=pytest.mark.thorough),
    ],
)
def test_the_processes_of_a_lost_host_are_replaced_on_the_others(
    program: Program, hosts: Hosts, on: str, words: str
) -> None:
    begin_loop(program, hosts)
    os.kill(oldest(getattr(hosts, on), words), signal.SIGKILL)
    with pytest.raises(RaisedError, match=r"Process 2 of 3 \(pid \d+ on hostB\) was lost with its"):
        program.end()
    assert program.do("session.recover().died") == [2]
    assert "hostB is lost" in program.do("session.group.notes[0]")
    assert program.do("[each.host for each in session.processes]") == ["hostA"] * 3
    assert program.do("session.run('both').value") == "both"
    assert program.do(f"session.run({CELL!r}).value") == 66


@pytest.mark.thorough
def test_without_the_first_host_a_restart_starts_all_again(program: Program, hosts: Hosts) -> None:
    begin_loop(program, hosts)
    os.kill(oldest(hosts.a, "jaxnb.launch.forkserver"), signal.SIGKILL)
    told = r"The fork server \(pid \d+ on hostA\) was killed by SIGKILL.*`%spmd_restart`"
    with pytest.raises(RaisedError, match=told):
        program.end()
    with pytest.raises(RaisedError, match=told):
        program.do("session.recover()")
    program.do("session.restart()")
    assert program.do(f"session.run({CELL!r}).value") == 66


@pytest.mark.thorough
def test_after_its_first_host_was_silent_a_group_starts_again(hosts: Hosts) -> None:
    program = Program(hosts.a)
    program.do(START.replace("3, hosts='hostA:2,hostB:1'", "2, hosts='hostB:1,hostA:1'").replace(
        ")", ", lost_after=5)"))  # fmt: skip
    hosts.cut()
    until(lambda: program.do("session.state") == "broken", "the host is given up")
    told = "was given up: hostB has not answered for 5 s.*`%spmd_restart`.*`%spmd_stop`, then"
    with pytest.raises(RaisedError, match=told):
        program.do("session.run('1')")
    again = r"(?s)No agent could be started on hostB.*`%spmd_restart` to try again, or `%spmd_stop`"
    with pytest.raises(RaisedError, match=again):
        program.do("session.restart()")
    with pytest.raises(RaisedError, match=r"A restart .* has failed: .*`%spmd_restart`"):
        program.do("session.recover()")
    hosts.restore()
    program.do("session.restart()")
    assert program.do("session.run('num_processes').value") == 2
    program.close()


@pytest.mark.parametrize(
    "in_cell", [True, pytest.param(False, marks=pytest.mark.thorough)], ids=["in a cell", "idle"]
)
def test_nothing_is_left_on_any_host_if_the_notebook_is_killed(
    program: Program, hosts: Hosts, in_cell: bool
) -> None:
    if in_cell:
        begin_loop(program, hosts)
    os.kill(hosts.a.outer(program.process), signal.SIGKILL)  # the fixture looks what is left


INTERRUPTED = """
import threading

class Presses(Says):
    def notice(self, text):
        super().notice(text)
        if "Interrupt again" in text:
            interrupted.set()

    def waits(self, waits):
        said.append(waits.stopped)
        if "hostB has not answered" in waits.stopped:
            interrupted.set()

interrupted = threading.Event()
"""


@pytest.mark.thorough
def test_a_silent_host_is_told_of_and_a_second_interrupt_gives_it_up(
    program: Program, hosts: Hosts
) -> None:
    program.do(INTERRUPTED)
    runs = hosts.shared / "runs"
    cell = f"open({str(runs)!r}, 'w').close()\nwhile True: total(x)"
    program.begin(f"session.run({cell!r}, sink=Presses(), interrupted=interrupted)")
    until(runs.exists, "the cell runs")
    hosts.cut()
    with pytest.raises(RaisedError, match="did not end the cell"):
        program.end()
    assert any("hostB has not answered for" in each for each in program.do("said"))
    assert program.do("session.state") == "ready"
    assert program.do("[each.host for each in session.processes]") == ["hostA"] * 3
    assert program.do("session.run('both').value") == "both"
    hosts.restore()


SHOWS = """
import signal

def show(text):
    said.append(text)
    if "hostB has not answered" in text:
        signal.raise_signal(signal.SIGINT)

session.show_waits_by(show)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("moved", ["session.pull('both')", "session.push(both='both')"])
def test_an_interrupt_ends_a_pull_or_push_that_waits_for_a_silent_host(
    program: Program, hosts: Hosts, moved: str
) -> None:
    program.do(SHOWS)
    hosts.cut()
    with pytest.raises(RaisedError, match="KeyboardInterrupt"):
        program.do(moved)
    told = program.do("said")
    assert any("waits for process 2: no answer for" in each for each in told), told
    assert program.do("session.state") == "ready"
    hosts.restore()
    assert program.do("session.pull('both')") == "both"
    assert program.do(f"session.run({CELL!r}).value") == 66


FAILS_ONCE = """
import os
def unpacked():
    import os
    if os.path.exists({flag!r}): os.kill(os.getpid(), 9)
    return "unpacked"
class Fails:
    def __reduce__(self): return unpacked, ()
if process_index == 1: fails = Fails()
mine = process_index
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("on", "told"),
    [("hostA:1,hostB:1", "hostA and hostB"), ("hostB:2", "hostB and this machine")],
)
def test_variables_that_new_processes_could_not_take_are_loaded_as_the_error_says(
    hosts: Hosts, on: str, told: str
) -> None:
    program, flag = Program(hosts.a), hosts.shared / "flag"
    program.do(START.replace("3, hosts='hostA:2,hostB:1'", f"2, hosts={on!r}"))
    flag.touch()
    program.do(f"session.run({FAILS_ONCE.format(flag=str(flag))!r})")
    with pytest.raises(RaisedError, match="new processes could not take the variables") as error:
        program.do("session.recover()")
    flag.unlink()
    found = re.search(r"are in (\S+) on (.*)\. Type `%spmd_restart`, then `%spmd_load (\S+)`",
                      str(error.value))  # fmt: skip
    assert found
    folder, names, loaded = found.groups()
    assert (folder, names) == (loaded, told)
    program.do("session.restart()")
    program.do(f"session.load({loaded!r})")
    assert program.do("session.run('mine == process_index').value") is True
    assert program.do("session.run('fails', ranks=[1]).value") == "unpacked"
    program.close()
    for host in (hosts.a, hosts.b):
        host.run("rm", "-r", folder)


@pytest.mark.thorough
def test_a_host_is_given_up_after_as_many_seconds_as_was_said(hosts: Hosts) -> None:
    program = Program(hosts.a)
    program.do(START.replace(")", ", lost_after=5)"))
    assert program.do(f"session.run({CELL!r}).value") == 66
    begin_loop(program, hosts)
    hosts.cut()
    told = r"Process 2 of 3 \(pid \d+ on hostB\) was lost .* hostB has not answered for \d s"
    with pytest.raises(RaisedError, match=told):
        program.end()
    until(lambda: not running(hosts.b), "the agent has ended itself")
    hosts.restore()
    assert program.do("session.recover().died") == [2]
    assert program.do("session.run('both').value") == "both"
    program.do("session.close()")  # raises nothing: what it says of hostB is on standard error
    program.close()


@pytest.mark.thorough
def test_a_link_that_comes_back_loses_nothing(program: Program, hosts: Hosts) -> None:
    program.do(INTERRUPTED)
    runs, told = hosts.shared / "runs", hosts.shared / "told"
    # The cell ends once the link was seen to be cut, and is there again.
    cell = (
        "import os\nfrom jax.experimental.multihost_utils import broadcast_one_to_all as first\n"
        f"open({str(runs)!r}, 'w').close()\n"
        f"while not first(np.array(os.path.exists({str(told)!r}))): total(x)\n{CELL}"
    )
    program.do(
        f"Presses.waits = lambda self, waits: waits.stopped and open({str(told)!r}, 'w').close()"
    )
    program.begin(f"session.run({cell!r}, sink=Presses()).value")
    until(runs.exists, "the cell runs")
    hosts.cut()
    until(told.exists, "it was told that the host is silent")
    hosts.restore()
    assert program.end() == 66
    assert program.do("session.recover().lost") == []  # the agent answers later than its processes
    assert program.do("[each.host for each in session.processes]") == ["hostA", "hostA", "hostB"]


def test_a_script_runs_on_both_hosts(hosts: Hosts) -> None:
    script = hosts.shared / "script.py"
    script.write_text("import jax, socket\nprint(jax.device_count(), socket.gethostname())\n")
    words = ["jaxnb", "run", "-n", "2", "--hosts", "hostA,hostB", "--platform", "cpu", str(script)]
    ran = hosts.a.run(sys.executable, "-m", *words, folder=str(ROOT))
    assert sorted(ran.stdout.splitlines()) == ["[0] 2 hostA", "[1] 2 hostB"]


@pytest.mark.thorough
def test_a_group_recovers_though_the_disk_with_its_sockets_is_full(
    program: Program, hosts: Hosts
) -> None:
    hosts.b.run("mount", "-o", "remount,size=16m", "/tmp")
    hosts.b.run("sh", "-c", "cat /dev/zero >/tmp/full", check=False)
    assert program.do("session.recover().lost") == []
    assert program.do(f"session.run({CELL!r}).value") == 66
    hosts.b.run("rm", "/tmp/full")
    hosts.b.run("mount", "-o", "remount,size=50%", "/tmp")
