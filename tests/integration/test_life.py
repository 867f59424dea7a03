"""What is said while a group starts, restarts and recovers, by a group of this module's own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import jaxnb
from jaxnb.errors import CellError, ProcessDiedError, RecoveryInterrupted, UsageError
from jaxnb.session import Session
from jaxnb.wire import asking
from support.fixtures import assert_usable, until

Stages = list[tuple[str, str]]


@pytest.fixture(scope="module")
def stages() -> Stages:
    """What the start of the group was told of its stages, and whatever is told to it later."""
    return []


@pytest.fixture(scope="module")
def group(stages: Stages) -> Iterator[Session]:
    def progress(stage: str, detail: str) -> None:
        stages.append((stage, detail))

    with jaxnb.start(2, platform="cpu", progress=progress) as session:
        yield session


def test_the_progress_of_a_start_is_not_told_of_what_comes_later(
    group: Session, stages: Stages
) -> None:
    """In a notebook it would write over the start's card."""
    at_start = list(stages)
    assert "checking" in [stage for stage, _ in at_start]
    with pytest.raises(CellError, match="no data"):
        group.run(
            "import jax.experimental.multihost_utils as mh\n"
            "if process_index == 1:\n    raise ValueError('no data')\n"
            "mh.process_allgather(np.ones(3))"
        )
    assert_usable(group)
    group.recover()
    assert stages == at_start


@pytest.mark.parametrize("call", ["restart", "recover"])
def test_a_working_directory_that_is_gone_is_told_of_and_nothing_has_changed(
    group: Session, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.run("kept = 1")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(UsageError, match=r"working directory is gone .*Nothing was started or ch"):
        getattr(group, call)()
    with pytest.raises(UsageError, match="working directory is gone"):
        jaxnb.start(1, platform="cpu")
    monkeypatch.undo()
    assert group.run("kept").value == 1


def test_what_old_processes_wrote_is_not_shown_by_the_first_cell_after_a_restart(
    group: Session,
) -> None:
    group.run(
        "import threading, time\n"
        "def write():\n"
        "    while True: print('old'); time.sleep(0.01)\n"
        "threading.Thread(target=write, daemon=True).start()"
    )
    until(lambda: group._life.work._strays._kept, "output has come between cells")
    group.restart()
    assert group.run("print('new')").per_process[0].stdout == "new\n"


def test_an_interrupted_replay_says_how_far_it_came(group: Session) -> None:
    group.restart()
    group.run("x = 1", cell=1)
    group.run("x += 1", cell=2)

    def interrupt(stage: str, detail: str) -> None:
        if stage == "replaying" and detail.startswith("cell [2]"):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as caught:
        group.restart(interrupt, replay=True)
    assert "1 of 2 cells had been run again when cell [2]" in caught.value.__notes__[-1]
    assert_usable(group)
    assert group.restart(replay=True) >= 2
    assert group.run("x").value == 2


def test_an_interrupt_of_a_recovery_does_not_hide_what_it_did(group: Session) -> None:
    def interrupt(stage: str, detail: str) -> None:
        if stage == "launching":
            signal.raise_signal(signal.SIGINT)

    group.run("y = 3")
    with pytest.raises(RecoveryInterrupted) as caught:
        group.recover(interrupt)
    assert "y" in caught.value.recovered.kept
    assert group.run("y").value == 3
    assert_usable(group)


LONG = """
import os, signal
class Long:
    def __reduce__(self):
        if process_index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        open({gate!r}).close()  # which nobody opens
        return int, (7,)
long = Long()
"""


def test_a_death_ends_the_wait_for_a_long_pickle(
    group: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    group.run(LONG.format(gate=str(gate)))
    monkeypatch.setattr(asking, "REPLY_SECONDS", 1e6)
    with pytest.raises(ProcessDiedError, match="while `long` was pulled"):
        group.pull("long")
    group.restart()
    assert_usable(group)
