"""Recoveries with values that do not let themselves be packed, and deaths beside them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import jaxnb
from jaxnb.errors import (
    CellError,
    JaxnbError,
    ProcessDiedError,
    SessionBrokenError,
    SessionClosedError,
)
from jaxnb.launch.cluster import ProcessGroup
from jaxnb.recovery.messages import Recovered
from jaxnb.session import Session
from support.faults import cleared, missing, pressing_beside, without_replica
from support.fixtures import PATIENT_SECONDS, assert_usable, until

SETUP = """
import os
n = jax.device_count()
mesh = jax.make_mesh((n,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
whole = np.arange(2 * n, dtype=np.float32)
x = jax.make_array_from_callback((2 * n,), NamedSharding(mesh, P("d")), lambda i: whole[i])
mine, plain = jnp.arange(3.0) + process_index, process_index
total = jax.jit(jnp.sum)
expected = float(total(x))
weak, strong = jnp.asarray(2.0), jnp.asarray(np.float32(2))
full = jax.lax.full((n,), 2.0)
weak_split, weak_whole = (
    jax.jit(lambda: jax.lax.full((n,), 2.0), out_shardings=NamedSharding(mesh, spec))()
    for spec in (P("d"), P()))
"""
WEAK = """
assert [each.weak_type for each in (weak, strong, full, weak_whole)] == [True, False, True, True]
assert (jnp.ones(2, jnp.bfloat16) * weak).dtype == jnp.bfloat16
assert weak_split.weak_type
"""
CHECK = f"""
assert (mine[0], plain) == (process_index, process_index)
assert float(total(x)) == expected
{WEAK}
"""

HARD = """
import threading, time
class Blocks:
    def __reduce__(self): threading.Event().wait()
class Raises:
    def __reduce__(self): raise RuntimeError("told")
class Computes:
    def __reduce__(self): return int, (int(total(x)),)
class Garbage:
    def __reduce__(self): return 3
class Iterates:
    def __reduce__(self): return list, (), None, self.parts()
    def parts(self):
        yield 1
        threading.Event().wait()
class Leaves:
    def __reduce__(self): raise SystemExit(3)
hard = {"blocks": Blocks(), "raises": Raises(), "garbage": Garbage(), "leaves": Leaves(), "one": 1}
computes, iterates, deep = Computes(), Iterates(), []
for _ in range(5000): deep = [deep]
many = [jnp.full(2, i) for i in range(1000)]
"""


@pytest.fixture(scope="module")
def shared_group() -> Iterator[Session]:
    with jaxnb.start(3, platform="cpu", devices_per_process=2) as session:
        yield session


@pytest.fixture
def group(shared_group: Session) -> Session:
    session = cleared(shared_group)
    session.run(SETUP)
    return session


def kill(session: Session, which: int) -> Recovered:
    """Kills a process, and recovers."""
    os.kill(session.processes[which].pid, signal.SIGKILL)
    until(lambda: session.state == "broken", "the death was known")
    return session.recover()


def test_values_that_cannot_be_packed_cost_nothing_but_themselves(group: Session) -> None:
    group.run(HARD)
    recovered = group.recover()
    told = {lost.path: lost.reason for lost in recovered.lost}
    assert told.keys() == {
        "hard['blocks']", "hard['raises']", "hard['garbage']", "hard['leaves']", "iterates", "deep",
    }  # fmt: skip
    assert told["hard['raises']"] == "RuntimeError: told"
    assert told["hard['blocks']"].startswith("pickling it does not end")
    assert told["iterates"].startswith("pickling it does not end")
    assert told["deep"] == "nested too deep"
    group.run("assert hard['one'] == 1 and computes == expected and len(many) == 1000")
    group.run("assert [int(each[0]) for each in many] == [*range(1000)]")
    group.run(CHECK)
    assert_usable(group)


def test_who_is_stopped_beside_a_death_counts_for_dead(group: Session) -> None:
    """Else the others would compute with what it has and they have not."""
    np.asarray(group["x"])  # that the notebook knows of an array does not keep it from being lost
    os.kill(group.processes[0].pid, signal.SIGSTOP)
    recovered = kill(group, 2)
    assert recovered.died == (0, 2)
    assert recovered.given_up == {0: "was stopped"}
    assert "x" in without_replica(recovered)
    assert missing(recovered, 0, 2)["mine"].startswith("only one process holds it")
    group.run("assert (mine[0], plain) == (process_index, process_index)", ranks=[1])
    group.run(SETUP + CHECK)


def test_what_is_pending_for_ever_is_lost_and_named(group: Session) -> None:
    """The process is in C++, and in a computation that no other process begins."""
    code = "y = x * 2\nif process_index == 1: total(x).block_until_ready()"
    group.run("before = x + 1")
    with pytest.raises(CellError):
        group.run(code, check="off", timeout=1)
    if group.state != "ready":
        with pytest.raises(SessionBrokenError, match="process 1 did not end what ran before"):
            group.run("1")
        group.recover()
    group.run("assert float(total(before)) == expected + x.size")
    group.run(CHECK)
    assert_usable(group)


def once(there: Path) -> Callable[[Callable[[], None]], None]:
    """Returns what presses Interrupt as soon as a process has made a file."""

    def press(interrupt: Callable[[], None]) -> None:
        until(there.exists, f"a process has made {there}")
        interrupt()

    return press


def test_what_others_lost_a_part_of_is_not_given_and_says_so(group: Session) -> None:
    group.run("import threading\nmodel = {'n': 1, 'lock': process_index or threading.Lock()}")
    recovered = kill(group, 2)
    assert missing(recovered, 2)["model"] == "process 0 has lost a part of it, `model['lock']`"


def test_what_refers_to_what_cannot_be_made_is_lost_with_it(group: Session) -> None:
    group.run(
        "class Child: pass\n"
        "class Odd:\n    def __setstate__(self, state):\n        raise ValueError('no')\n"
        "odd, kid = Odd(), Child()\nkid.parent, odd.child, odd.sound = odd, kid, [1, 2]\n"
        "sound, kids = odd.sound, (kid,)"
    )
    (lost,) = group.recover().lost
    assert (lost.path, {*lost.also}) == ("odd", {"kid", "kids"})
    assert group.run("sound").value == [1, 2]
    with pytest.raises(
        CellError, match=r"`odd` \(value, also in `kids?` and `kids?` until bound again"
    ):
        group.run("kid.parent")
    group.run(CHECK)


def test_an_interrupt_while_it_packs_changes_nothing(group: Session) -> None:
    pids = [process.pid for process in group.processes]

    def press(stage: str, detail: str) -> None:
        if stage == "packing":
            signal.raise_signal(signal.SIGINT)

    group.run(HARD)
    with pytest.raises(KeyboardInterrupt):
        group.recover(press)
    assert group.state == "ready"
    assert [process.pid for process in group.processes] == pids
    group.run("assert float(total(x)) == expected and type(hard['blocks']) is Blocks")
    assert_usable(group)


def test_what_ends_a_save_from_outside_leaves_the_directory_as_it_was(
    group: Session, tmp_path: Path
) -> None:
    saved, there = tmp_path / "state", tmp_path / "there"
    group.save(saved, ["mine"])
    before = (saved / "variables.json").read_bytes()
    group.run(
        "import time\nclass Ends:\n    def __reduce__(self):\n"
        f"        if process_index == 1: open({str(there)!r}, 'w').close(); ended()\n"
        "        return int, ()\nends = Ends()\ndef ended(): time.sleep(1000)"
    )

    with pressing_beside(once(there)), pytest.raises(KeyboardInterrupt) as interrupted:
        group.save(saved, ["ends"], overwrite=True)
    group.run("def ended(): os._exit(3)")
    with pytest.raises(ProcessDiedError) as died:
        group.save(saved, ["ends"], overwrite=True)
    for each in (interrupted, died):
        assert each.value.__notes__ == [f"Nothing was saved: {saved} is as it was."]
    assert (saved / "variables.json").read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [saved, there]


def test_without_room_for_a_second_copy_nothing_changes(
    group: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = [process.pid for process in group.processes]
    make = ProcessGroup.make_scratch
    monkeypatch.setattr(
        ProcessGroup,
        "make_scratch",
        lambda self, sizes, _: make(self, dict.fromkeys(sizes, 1 << 60)),
    )
    with pytest.raises(JaxnbError, match=r"take 3072 PiB, and there is no room .* Nothing was"):
        group.recover()
    assert [process.pid for process in group.processes] == pids
    group.run(CHECK)
    monkeypatch.undo()
    assert group.recover().lost == ()
    group.run(CHECK)


@pytest.mark.thorough
def test_where_new_processes_cannot_start_the_variables_are_in_files(
    make_session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session = make_session(2)
    session.run("own = process_index")

    def fail(stage: str, detail: str) -> None:
        if stage == "joining":
            raise OSError("no room")

    with pytest.raises(OSError, match="no room") as caught:
        session.recover(fail)
    assert session.state == "closed"
    (note,) = caught.value.__notes__
    folder = Path(note.partition("variables are in ")[2].partition(":")[0])
    again = make_session(2)
    again.load(folder)
    assert again.run("own").per_process[1].value == 1
    for each in folder.iterdir():
        each.unlink()
    folder.rmdir()


BLOCKS = """
import threading
class Blocks:
    def __reduce__(self): threading.Event().wait()
blocks = Blocks()
"""


@pytest.mark.thorough
@pytest.mark.parametrize("ends", ["restart", "close"])
def test_a_recovery_ends_with_the_processes_that_pack(
    make_session: Callable[..., Session], ends: str
) -> None:
    """What they pack would never come."""
    session = make_session(2)
    session.run(BLOCKS)
    packing = threading.Event()
    with ThreadPoolExecutor() as pool:
        recovering = pool.submit(session.recover, lambda stage, _: packing.set())
        assert packing.wait(PATIENT_SECONDS)
        getattr(session, ends)()
        kind = SessionBrokenError if ends == "restart" else SessionClosedError
        assert type(recovering.exception(PATIENT_SECONDS)) is kind
    if ends == "restart":
        assert_usable(session)


def test_where_nobody_is_left_to_be_asked(group: Session) -> None:
    for process in group.processes:
        os.kill(process.pid, signal.SIGKILL)
    until(lambda: len(group.deaths) == 3, "all deaths were known")
    for ask in (group.pull, group.layout):
        with pytest.raises(ProcessDiedError):
            ask("x")
