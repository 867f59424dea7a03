"""Whatever way the notebook's process ends, all processes of its group end too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from support.fixtures import processes_of_tests, still_running, until

OWNER = """\

import sys, jaxnb
session = jaxnb.start(2, platform="cpu", launcher={launcher!r})
session.run('''
import subprocess, threading, time
child = subprocess.Popen(['sleep', '1000'], start_new_session=True)
threading.Thread(target=time.sleep, args=(1000,)).start()
''')
print("ready", flush=True)
{then}
"""

ENDS = {
    "clean exit": "sys.stdin.readline()",
    "exception": "sys.stdin.readline(); raise RuntimeError('the notebook failed')",
    "os._exit": "import os; sys.stdin.readline(); os._exit(0)",
    "SIGTERM": "import signal; signal.pause()",
    "SIGKILL": "import signal; signal.pause()",
    "SIGINT": "import signal; signal.pause()",
    "SIGKILL in a cell": "session.run('import time; print(1); time.sleep(1000)', sink=Sink())",
}
SINK = """
from jaxnb.cells.sinks import NoSink
class Sink(NoSink):
    def lines(self, lines): print("ready", flush=True)
"""


@contextmanager
def owner(launcher: str, end: str) -> Iterator[subprocess.Popen[str]]:
    """A process that owns a group, and has got as far as the kind of end asks for."""
    then = SINK + ENDS[end] if end == "SIGKILL in a cell" else ENDS[end]
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER.format(launcher=launcher, then=then)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    with process.stdout, process.stdin:
        for _ in range(2 if end == "SIGKILL in a cell" else 1):
            assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()
            process.wait()


# How an owner ends matters to the fork server, whatever its children are.
LOCAL_ENDS = ("clean exit", "SIGKILL", "SIGKILL in a cell")

CASES = [*(("fork", end) for end in ENDS), *(("local", end) for end in LOCAL_ENDS)]
IN_THE_GATE = (("fork", "clean exit"), ("fork", "SIGKILL in a cell"))


@pytest.mark.parametrize(
    ("launcher", "end"),
    [pytest.param(*c, marks=() if c in IN_THE_GATE else pytest.mark.thorough) for c in CASES],
)
def test_no_process_outlives_its_owner(launcher: str, end: str) -> None:
    before = set(processes_of_tests())
    with owner(launcher, end) as process:
        group = [p for pid, p in processes_of_tests().items() if pid not in before]
        assert len(group) > 5  # the owner, two processes, their children, helpers
        if end.startswith("SIG"):
            os.kill(process.pid, getattr(signal, end.split(maxsplit=1)[0]))
        else:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        assert still_running(group) == []


@pytest.mark.thorough
@pytest.mark.parametrize("launcher", ["fork", "local"])
def test_a_dead_owner_that_nobody_reaps_counts_as_ended(launcher: str) -> None:
    before = set(processes_of_tests())
    with owner(launcher, "SIGKILL") as process:
        mine = process.pid
        group = [p for pid, p in processes_of_tests().items() if pid not in {*before, mine}]
        assert len(group) > 4
        os.kill(mine, signal.SIGKILL)
        assert still_running(group) == []
        assert psutil.Process(mine).status() == psutil.STATUS_ZOMBIE


RECOVERS = """
import os, signal, sys
import jaxnb
from jaxnb.launch.cluster import ProcessGroup
session = jaxnb.start(2, platform="cpu")
session.run("own = process_index")
stage, changes = sys.argv[1:]
if changes:
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"

make_scratch, made = ProcessGroup.make_scratch, []
ProcessGroup.make_scratch = lambda *args: made.append(make_scratch(*args)) or made[-1]

def end(now, detail):
    if now == stage:
        print(made[0], len(os.listdir(made[0])), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

session.recover(end)
"""


@pytest.mark.parametrize(
    ("stage", "changes"),
    [
        ("joining", ""),
        pytest.param("stopping", "", marks=pytest.mark.thorough),
        pytest.param("unpacking", "another fork server", marks=pytest.mark.thorough),
    ],
)
def test_an_owner_that_is_killed_amid_a_recovery_leaves_no_variables(
    stage: str, changes: str
) -> None:
    words = [sys.executable, "-c", RECOVERS, stage, changes]
    ended = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL
    folder, *files = ended.stdout.split()
    assert files == ["4"]  # of two processes, the manifest, and the mark
    until(lambda: not os.path.exists(folder), "its fork server had removed the variables")


WATCHES = """
import os, sys, time
from jaxnb.launch.lifeline import end_with_parent
end_with_parent(int(sys.argv[1]))
print(os.getpid(), flush=True)
time.sleep(1000)
"""
STARTS = """
import os, subprocess, sys
subprocess.run([sys.executable, "-c", sys.argv[1], str(os.getpid())])
"""


def test_a_program_notices_that_its_parent_has_ended() -> None:
    words = [sys.executable, "-c", STARTS, WATCHES]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    assert still_running([child]) == []
