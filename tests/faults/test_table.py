"""The table: when × how × which -> exception, what it names, state; then usable again.

The rows are data, in ``faults.table.rows``. ``make test`` plays some of them, always the same, and
``make test-all`` all; ``JAXNB_TABLE_SHAPE=4x2`` has them played in another group, and
``faults.table.places`` says how over several hosts, and by other launchers.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import jaxnb
from faults.table import code as codes
from faults.table import places
from faults.table.rows import DEVICES, PROCESSES, ROWS, Row, has_meaning, in_the_gate
from faults.table.stage import SCENES, Stage
from jaxnb.errors import JaxnbError, ProcessDiedError, SessionBrokenError, StartError
from jaxnb.labels import processes_label, ranks_label
from jaxnb.session import Session
from support.faults import assert_kept, missing, without_replica
from support.fixtures import (
    PATIENT_SECONDS,
    Left,
    assert_nothing_left,
    processes_of_tests,
    until,
    whereabouts,
)
from support.memory_group import memory_group

START_SECONDS = 6.0
"""How long a start may take whose processes never come, at least; 60 unless told otherwise."""

STARTS = 4
"""So many times as long as another start has taken, on a busy machine."""


def start(**settings: Any) -> Session:
    """Starts a group of the table's shape."""
    settings |= {"devices_per_process": DEVICES, **places.options()}
    return jaxnb.start(PROCESSES, platform="cpu", **settings)


LOST = "`mine` (int32[3])" if PROCESSES > 2 else "`mine`, `plain` and `state`"
NOT_GIVEN = (
    "differs by process"
    if PROCESSES > 2
    else "only one process holds it, so it may not be the same for all"
)
"""Why a new process does not get ``mine``."""


class Group:
    """One group for all rows; a fresh one after a row that has failed or is about a start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._session: Session | None = None
        self._before, self._elsewhere = Left.now(), places.elsewhere()
        self._counts = self._count()
        self.start_seconds = 0.0
        for index in range(PROCESSES):
            os.mkfifo(folder / str(index))

    def get(self) -> Session:
        """Returns a healthy group with variables in it."""
        session = self._session
        if session is None or session.state != "ready":
            self.close()
            begun = time.monotonic()
            session = self._session = start()
            self.start_seconds = time.monotonic() - begun
            self._counts, self._elsewhere = self._count(), places.elsewhere()
        session.run(codes.SETUP.format(folder=str(self.folder)), timeout=PATIENT_SECONDS)
        return session

    def _count(self) -> dict[str, int]:
        """Returns how many there are of what a group has, zombies apart.

        Which they are changes: a recovery may start agents again, too. And Python's
        ``subprocess.run`` does not reap its child when it is interrupted.
        """
        now, living = Left.now(), 0
        for process in processes_of_tests().values():
            with contextlib.suppress(psutil.NoSuchProcess):
                living += process.status() != psutil.STATUS_ZOMBIE
        parts = {"folders": now.folders, "sockets": now.sockets, "threads": now.threads}
        return {"processes": living, **{what: len(each) for what, each in parts.items()}}

    def assert_nothing_left(self) -> None:
        """Fails if there is anything but what a fresh group has; processes may take a moment."""
        until(lambda: self._count() == self._counts, f"there were {self._counts}")
        places.assert_elsewhere_is(self._elsewhere)

    def close(self) -> None:
        """Ends the group, if there is one."""
        if self._session is not None:
            self._session.close()
            self._session = None
            assert_nothing_left(self._before)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with places.engines(tmp_path_factory.mktemp("engines")):
        group = Group(places.shared(tmp_path_factory.mktemp("gates")))
        yield group
        group.close()


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    """In the place of the one for all tests, which takes the group for left behind."""


def played(is_start: bool) -> list[Any]:
    """Returns the rows, as parameters: a change waits for some, all take some minutes."""
    gate = in_the_gate()
    return [
        pytest.param(row, id=str(row), marks=() if row in gate else pytest.mark.thorough)
        for row in ROWS
        if has_meaning(row) and (row.when == "starting") is is_start
    ]


@pytest.mark.parametrize("row", played(is_start=False))
def test_a_fault_is_told_and_the_group_computes_again(row: Row, group: Group) -> None:
    session = group.get()
    stage = Stage(session, row, group.folder)
    try:
        play(row, stage)
        group.assert_nothing_left()
    except BaseException:
        print(whereabouts(session))
        group.close()  # the next row must not suffer from this one
        raise


def play(row: Row, stage: Stage) -> None:
    session = stage.session
    pids = [p.pid for p in session.processes]
    raised, shown = None, []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            shown = SCENES[row.when](stage)
        except (JaxnbError, KeyboardInterrupt, UserWarning) as error:
            raised = error
    assert type(raised).__name__ == (row.raises or "NoneType"), raised
    told = "\n".join([*shown, *stage.sink.texts, str(raised)])
    print(told)
    for name in row.names:
        assert name.format(**words_of(stage)) in told
    assert "out of memory" not in told
    assert session.state == row.state
    if row.state == "broken":
        assert_broken(row, stage, raised)
    what_the_user_types(row, stage)
    new = replaced(row, stage)
    assert session.state == "ready"
    assert [p.state for p in session.processes] == ["ready"] * PROCESSES
    if row.then == "restart":
        session.run(codes.SETUP.format(folder=stage.folder))
    else:
        is_new = "New processes in" in told or row.then == "recover" or stage.recovered is not None
        kept = [p.pid == pid for p, pid in zip(session.processes, pids, strict=True)]
        assert kept == [not is_new] * PROCESSES
    without = set() if row.is_rescued else new
    if row.then != "restart":
        define_again(session, without)
    assert_kept(session, codes.CHECK.format(new=without), codes.SUM)


def define_again(session: Session, new: set[int]) -> None:
    """Does by hand what a process that is new is not given, where there is only one other."""
    if new and PROCESSES - len(new) == 1:
        session.run(codes.HOST, ranks=sorted(new))


def assert_broken(row: Row, stage: Stage, raised: BaseException | None) -> None:
    """Fails unless it shows everywhere who is dead, and what to type."""
    session = stage.session
    with pytest.raises(SessionBrokenError, match=f"%spmd_{row.then}"):
        session.run("1")
    if not isinstance(raised, ProcessDiedError):
        return
    assert (raised.process_index, raised.pid) == (stage.which, stage.process.pid)
    notes = [stats.note for stats in session.stats()][::DEVICES]  # one for each device
    for process, note in zip(session.processes, notes, strict=True):
        is_dead = process.process_index == stage.which
        assert (process.state == "dead") is is_dead
        assert bool(note) is is_dead
        assert not is_dead or note.startswith(f"process {stage.which}: ")


def words_of(stage: Stage) -> dict[str, object]:
    """Returns what the fragments of a row are filled with."""
    others = processes_label(stage.others)
    return {
        "which": stage.which,
        "pid": places.named(stage.process),
        "cell": stage.cell,
        "others": others,
        "Others": others.capitalize(),
        "ranks": ranks_label(stage.others),
        "other": next((i for i in stage.others if i != 1), None),
        "parts": f"{ranks_label(stage.others)} / {stage.which}" if PROCESSES > 2 else "0 / 1",
        "have": "have" if PROCESSES > 2 else "has",
        "count": PROCESSES,
        "mine": f"{LOST} on process {stage.which}: {NOT_GIVEN}",
        "x": 2 * PROCESSES * DEVICES,
        "long": 4 * PROCESSES * DEVICES,
        **codes.lines(stage.source, stage.row),
    }


def what_the_user_types(row: Row, stage: Stage) -> None:
    """Does what the message said, and looks whether what was lost is named."""
    if row.then == "restart":
        stage.session.restart()
    elif row.then == "recover":
        recovered = stage.session.recover()
        names = {"r", "total", "mesh"} | ({"plain", "state"} if PROCESSES > 2 else set())
        if row.is_rescued:
            assert (recovered.died, recovered.unended) == ((), (row.index,))
            assert names | {"state", "x", "long", "mine"} <= set(recovered.kept)
            return
        assert recovered.died == (row.index,)
        assert without_replica(recovered) == {"x", "long"}
        absent = missing(recovered, row.index)
        assert absent["mine"] == NOT_GIVEN
        assert PROCESSES == 2 or set(absent) == {"mine"}
        assert names <= set(recovered.given)


def replaced(row: Row, stage: Stage) -> set[int]:
    """Returns which processes are new, and cannot have all variables."""
    if stage.recovered is not None:
        return set(stage.recovered.died)
    return {row.index} if row.is_replaced else set()


@pytest.mark.parametrize("row", played(is_start=True))
def test_a_fault_in_a_start_is_told_and_nothing_is_left(row: Row, group: Group) -> None:
    package = group.folder / str(row) / "jax_plugins" / "of_the_table"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(codes.plugin(row))
    never_come = row.how in ("SIGSTOP", "loop")
    if never_come:
        group.get()  # of a start that comes to its end, to know how long one takes
    group.close()
    before, before_elsewhere = Left.now(), places.elsewhere()
    seconds = max(START_SECONDS, STARTS * group.start_seconds) if never_come else 60
    with places.importing_from(group.folder / str(row)), pytest.raises(StartError) as caught:
        start(timeout=seconds)
    print(caught.value)
    assert row.raises == "StartError"
    for name in row.names:
        assert name.format(which=row.index, count=PROCESSES) in str(caught.value)
    assert_nothing_left(before)
    places.assert_elsewhere_is(before_elsewhere)


def test_after_faults_in_starts_the_next_one_starts(group: Group) -> None:
    """What is in no process, but in this one, would show here."""
    assert_kept(group.get(), codes.CHECK.format(new=set()), codes.SUM)


MIB = 1 << 20


@pytest.mark.thorough  # takes root, and a control group of the kernel's
@pytest.mark.may_be_skipped
@pytest.mark.parametrize("which", [0, PROCESSES - 1])
def test_who_is_killed_for_want_of_memory(group: Group, which: int) -> None:
    """By the kernel itself. In this file: beside a row it would be taken for the row's reason."""
    session = group.get()
    process = session.processes[which]
    with memory_group(64 * MIB) as file:
        places.ran(process.host, f"echo {process.pid} >{file}")
        code = f"if process_index == {which}:\n    hog = np.ones({256 * MIB}, np.uint8)"
        with pytest.raises(ProcessDiedError) as caught:
            session.run(f"{code}\nmultihost_utils.sync_global_devices('here')")
    assert (caught.value.process_index, caught.value.pid) == (which, process.pid)
    who = f"Process {which} of {PROCESSES} (pid {places.named(process)})"
    assert f"{who} was killed by SIGKILL" in str(caught.value)
    assert "Likely out of memory: the kernel has just killed" in str(caught.value)
    assert "Type `%spmd_recover` to replace it" in str(caught.value)
    session.recover()
    define_again(session, {which})
    assert_kept(session, codes.CHECK.format(new={which}), codes.SUM)
    group.assert_nothing_left()
