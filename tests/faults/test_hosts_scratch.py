"""Variables on their way over two hosts: no room, a shared folder, a link that is cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import pytest

from support.fixtures import until
from support.hosts import Host, Hosts
from support.remote import Program, RaisedError

pytestmark = [pytest.mark.may_be_skipped, pytest.mark.thorough]

START = "session = jaxnb.start(3, hosts='hostA:2,hostB:1', platform='cpu')"

CELL = "both, big = 'both', np.ones(1_000_000) + process_index"


@contextmanager
def small(host: Host, *folders: str) -> Iterator[None]:
    """Leaves no room in file systems in memory for the block."""
    for each in folders:
        host.run("mount", "-o", "remount,size=2m", each)
    yield
    for each in folders:
        host.run("mount", "-o", "remount,size=50%", each)


@contextmanager
def started(hosts: Hosts, env: Mapping[str, str] = {}) -> Iterator[Program]:
    """Has a group, ``session``, for the block."""
    program = Program(hosts.a, env=env)
    try:
        program.do(START)
        program.do(f"session.run({CELL!r})")
        yield program
    finally:
        program.close()


@contextmanager
def temporary(host: Host, folder: str) -> Iterator[None]:
    """Has ``TMPDIR`` name a folder in what is started there over ssh, for the block."""
    host.path(".bashrc").write_text(f"export TMPDIR={folder}\n")
    yield
    host.path(".bashrc").unlink()


def kill(program: Program, host: Host, index: int) -> None:
    host.run("kill", "-9", str(program.do(f"session.processes[{index}].pid")))
    until(lambda: program.do("session.state") == "broken")


def test_hosts_that_share_a_folder_need_no_copies(hosts: Hosts) -> None:
    shared = hosts.shared / "tmp"
    shared.mkdir()
    with ExitStack() as stack:
        for host in (hosts.a, hosts.b):
            stack.enter_context(small(host, "/dev/shm"))
        stack.enter_context(temporary(hosts.b, str(shared)))
        program = stack.enter_context(started(hosts, {"TMPDIR": str(shared)}))
        assert program.do("session.recover().lost") == []
        assert program.do("session.run('bool(big[0] == 1 + process_index)').value") is True
        kill(program, hosts.b, 2)
        assert program.do("session.recover().died") == [2]
        assert program.do("session.run('both', ranks=[2]).value") == "both"
        program.do("session.close()")
    assert not list(shared.iterdir())
    shared.rmdir()


def test_the_error_says_which_host_has_no_room_and_which_has_not_the_folder(hosts: Hosts) -> None:
    hosts.b.run("mkdir", "/tmp/mine")
    with ExitStack() as stack:
        stack.enter_context(small(hosts.b, "/dev/shm"))
        stack.enter_context(temporary(hosts.b, "/tmp/mine"))
        program = stack.enter_context(started(hosts))
        told = "hostB has no room .* in /dev/shm, and hostA has no folder /tmp/mine.*Nothing was"
        with pytest.raises(RaisedError, match=told):
            program.do("session.recover()")
        hosts.a.run("mkdir", "/tmp/mine")
        assert program.do("session.recover().lost") == []
    for host in (hosts.a, hosts.b):
        host.run("rmdir", "/tmp/mine")


def test_what_the_error_says_works_without_room_after_a_death(hosts: Hosts) -> None:
    with started(hosts) as program:
        kill(program, hosts.a, 0)
        with ExitStack() as stack:
            stack.enter_context(small(hosts.b, "/dev/shm", "/tmp"))
            told = "on hostB take .*Make room, .*type the same again.*`%spmd_pull NAMES` works"
            with pytest.raises(RaisedError, match=told):
                program.do("session.recover()")
            assert "2" in program.do("str(session.pull('big'))")
        assert program.do("session.recover().died") == [0]
        assert program.do("session.run('both', ranks=[0]).value") == "both"
