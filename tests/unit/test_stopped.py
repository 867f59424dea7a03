"""Who is stopped is told with what lets it go on."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from jaxnb.launch.host import is_stopped, stopped_text
from jaxnb.recovery.messages import MOST_NAMED, Lost, Recovered
from jaxnb.session.reasons import silent_text
from jaxnb.session.starting import WAITING, untold


def test_who_is_stopped_is_told_with_the_command() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = psutil.Process(child.pid)
        assert not is_stopped(child.pid)
        process.suspend()
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        assert is_stopped(child.pid)
        assert stopped_text({0: os.getpid(), 2: child.pid}) == (
            f"process 2 is stopped: `kill -CONT {child.pid}` lets it go on"
        )
        process.resume()
        child.kill()
    assert not is_stopped(child.pid)
    assert stopped_text({0: os.getpid(), 2: child.pid}) == ""


def test_who_asks_for_no_progress_hears_who_is_waited_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    untold("joining", "3 processes")
    untold(WAITING, "process 2 is stopped: `kill -CONT 77` lets it go on")
    told = capsys.readouterr().err
    assert "process 2 is stopped: `kill -CONT 77` lets it go on; new processes wait" in told
    assert "joining" not in told


def test_all_that_is_lost_is_named() -> None:
    lost = [Lost(f"v{i}", "lock", (0,), f"reason {i}") for i in range(MOST_NAMED)]
    lost += [Lost(f"state['{i}']", "lock", (0,), f"reason {i}") for i in range(100, 103)]
    lost += [Lost("other", "lock", (0,), "another reason")]
    lost += [Lost(f"old[{i}]", "lock", (0,), "a reason", is_old=True) for i in range(2)]
    text = str(Recovered((), (), tuple(lost), 0.5))
    assert "`v7` (lock) on process 0: reason 7; and 4 more, `state` (3 values) and `other`." in text
    assert "Lost before, and still: `old` (2 values)." in text


def test_after_an_interrupt_a_stopped_process_is_told_as_one() -> None:
    stopped = "process 1 is stopped (`kill -CONT 7`)"
    said = silent_text([1], {}, 4.0, caught=False, press="Interrupt", stopped=stopped)
    assert "Process 1 is stopped (`kill -CONT 7`). Interrupt again" in said
