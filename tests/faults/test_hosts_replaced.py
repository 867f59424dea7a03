"""A host is lost, or what serves a group ends, while the processes are being replaced."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from support.fixtures import until
from support.hosts import Host, Hosts
from support.remote import CELL, Program

pytestmark = [pytest.mark.may_be_skipped, pytest.mark.thorough]

START = "session = jaxnb.start(4, hosts='hostA:2,hostB:2', platform='cpu')"

ENDS_SLOWLY = """
import atexit, os, time
def wait():
    open({going!r}, "w").close()
    while not os.path.exists({flag!r}): time.sleep(0.01)
if process_index == 3: atexit.register(wait)
"""


def unmade(hosts: Hosts) -> tuple[Path, Path]:
    """Returns two files that are not there."""
    paths = hosts.shared / "going", hosts.shared / "flag"
    for each in paths:
        each.unlink(missing_ok=True)
    return paths


def begin_replacing(program: Program, hosts: Hosts, call: str) -> None:
    """Has the processes replaced; returns while the old ones are ending."""
    going, flag = unmade(hosts)
    program.do(f"session.run({ENDS_SLOWLY.format(going=str(going), flag=str(flag))!r})")
    program.begin(call)
    until(going.exists, "the old processes are ending")


def door_of(host: Host) -> int:
    """Returns the process of a host that the tunnel's other ends connect to: it listens first."""
    return min(pid for pid, words in host.processes().items()
               if "jaxnb.launch" in words and listens(pid))  # fmt: skip


def listens(pid: int) -> bool:
    rows = [row.split() for row in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    listening = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A"}
    return any(os.readlink(each) in listening for each in Path(f"/proc/{pid}/fd").iterdir())


def test_a_host_that_is_lost_while_old_processes_end_takes_only_its_variables(
    program: Program, hosts: Hosts
) -> None:
    begin_replacing(program, hosts, "recovered = session.recover()")
    (ssh,) = [pid for pid, words in hosts.a.processes().items() if words.startswith("ssh -T")]
    os.kill(ssh, signal.SIGKILL)
    program.end()
    assert program.do("recovered.died") == [2, 3]
    assert program.do("[each.path for each in recovered.lost]") == ["x"]
    assert program.do("[each.host for each in session.processes]") == ["hostA"] * 4
    assert program.do("session.run('both').value") == "both"
    assert program.do(f"session.run({CELL!r}).value") == 66
    until(lambda: not hosts.b.processes() and not hosts.b.files(), "nothing is left on hostB")


DIES_IN_START = """
from jaxnb.launch.hosts import Agents
request, killed = Agents.request, []
def killing(self, op, *args, **arguments):
    asked = request(self, op, *args, **arguments)
    if op == "engines" and not killed:
        self._members[1].client._process.kill()
        killed.append(op)
    return asked
Agents.request = killing
"""


@pytest.mark.parametrize("call", ["recover", "restart"])
def test_a_host_that_is_lost_while_new_processes_start_is_done_without(
    program: Program, call: str
) -> None:
    program.do(DIES_IN_START)
    program.do(f"session.{call}()")
    assert program.do("[each.host for each in session.processes]") == ["hostA"] * 4
    if call == "recover":
        assert program.do("session.run('both').value") == "both"
    assert program.do(f"session.run({CELL!r}).value") == 66


TAKES_SLOWLY = """
import os, time
def unpacked():
    import os, time
    open({going!r}, "w").close()
    while not os.path.exists({flag!r}): time.sleep(0.01)
    return "unpacked"
class Slow:
    def __reduce__(self): return unpacked, ()
if process_index == 1: slow = Slow()
"""


def test_a_host_that_is_lost_while_variables_are_taken_is_done_without(
    program: Program, hosts: Hosts
) -> None:
    going, flag = unmade(hosts)
    program.do(f"session.run({TAKES_SLOWLY.format(going=str(going), flag=str(flag))!r})")
    program.begin("recovered = session.recover()")
    until(going.exists, "new processes take the variables")
    (ssh,) = [pid for pid, words in hosts.a.processes().items() if words.startswith("ssh -T")]
    os.kill(ssh, signal.SIGKILL)
    until(lambda: not hosts.b.processes(), "the host is lost")
    flag.touch()
    program.end()
    assert program.do("recovered.died") == [2, 3]
    assert program.do("session.run('both').value") == "both"
    assert program.do("session.run('slow', ranks=[1]).value") == "unpacked"
    assert program.do(f"session.run({CELL!r}).value") == 66


@pytest.mark.parametrize("call", ["recover", "restart"])
@pytest.mark.parametrize("on", ["a", "b"])
def test_a_door_that_ends_while_old_processes_end_is_opened_again(
    program: Program, hosts: Hosts, on: str, call: str
) -> None:
    door = door_of(getattr(hosts, on))
    begin_replacing(program, hosts, f"session.{call}()")
    os.kill(door, signal.SIGKILL)
    program.end()
    assert program.do("[each.host for each in session.processes]") == ["hostA"] * 2 + ["hostB"] * 2
    if call == "recover":
        assert program.do("session.run('both').value") == "both"
    assert program.do("session.recover().lost") == []
    assert program.do(f"session.run({CELL!r}).value") == 66
