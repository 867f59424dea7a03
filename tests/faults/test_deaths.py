"""Processes that die, beside the rows of the table: aborts, helpers, last words."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from jaxnb.errors import ProcessDiedError, SessionBrokenError
from jaxnb.session import Session
from support.faults import cleared
from support.fixtures import assert_usable, still_running, until

PROCESSES = 3


@pytest.fixture
def group(shared_group: Session) -> Session:
    return cleared(shared_group)


def wait_until_broken(session: Session) -> None:
    """Waits until the fork server's report of a death has arrived."""
    until(lambda: session.state == "broken", "the session was broken")


def test_the_others_come_to_the_end_of_a_cell_in_which_one_aborts(group: Session) -> None:
    which = PROCESSES - 1
    pid = group.processes[which].pid
    code = "import os\nos.write(2, b'the last words\\n'); os.abort()".replace("\n", "\n    ")
    with pytest.raises(ProcessDiedError) as caught:
        group.run(f"print('before')\nif process_index == {which}:\n    {code}")
    error = caught.value
    assert (error.process_index, error.pid) == (which, pid)
    for part in (
        f"Process {which} of {PROCESSES} (pid {pid})",
        "was killed by SIGABRT",
        "%spmd_recover",
        "%spmd_restart",
        "the last words",
        "Fatal Python error: Aborted",
    ):
        assert part in str(error)
    assert "out of memory" not in str(error)  # the kernel has not said so
    assert error.result is not None
    assert f"cell [{error.result.cell}]" in str(error)
    assert "before" in error.result.stdout
    survivors = [r for i, r in error.result.per_process.items() if i != which]
    assert all(r.error is None for r in survivors)
    assert group.state == "broken"
    assert [p.state == "dead" for p in group.processes] == [i == which for i in range(PROCESSES)]
    group.restart()
    assert_usable(group)


@pytest.mark.parametrize(
    "helper",
    ["controller", pytest.param("service", marks=pytest.mark.thorough), "fork server"],
)
def test_a_helper_process_that_dies_is_named(group: Session, helper: str) -> None:
    """And the processes end with the fork server, whose children they are."""
    processes = [psutil.Process(p.pid) for p in group.processes]
    pid = group.helper_pids()[helper]
    os.kill(pid, signal.SIGKILL)
    wait_until_broken(group)
    with pytest.raises(SessionBrokenError, match=rf"pid {pid}\) was killed by SIGKILL"):
        group.run("1")
    if helper == "fork server":
        assert still_running(processes) == []
    # The next test restarts it, and uses it.
