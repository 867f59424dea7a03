"""Groups in trouble, timed from inside a fresh Python process.

``python -m benchmarks.troubles_child REPORT PLAN`` starts groups as PLAN (JSON) says, goes
through its steps, and writes what it measured to REPORT.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

from jaxnb.session.standing_since import waits_in_jax

import jaxnb
from jaxnb.cells.sinks import NoSink
from jaxnb.errors import ProcessDiedError
from jaxnb.model.dispatches import CheckMode
from jaxnb.model.group import Whereabouts
from jaxnb.session import Session

ABSENT = 1
GIVE_UP_SECONDS = 60.0
LOOK_SECONDS = 0.01
NOTICE_SECONDS = 0.002
WHERE_CALLS = 100
IDLE_WINDOW_SECONDS = 10.0

SETUP = """
import time
n = jax.device_count()
mesh = jax.make_mesh((n,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

def make(elements):
    return jax.make_array_from_callback(
        (elements,), NamedSharding(mesh, P("data")),
        lambda index: np.arange(elements, dtype=np.float32)[index])

x, mine = make(2 * n), jnp.full(3, process_index)
total = jax.jit(jnp.sum)
expected = n * (2 * n - 1)
assert float(total(x)) == expected
"""
# What is measured last is a collective with what there was before.
USE = "assert float(total(x)) == expected and mine.tolist() == [process_index] * 3"
STUCK = """
if process_index == {absent}:
    time.sleep(1000)
float(total(x))
"""
SWALLOW = """
def spin():
    while True: pass
while True:
    try: spin()
    except BaseException: pass
"""
ARRAYS = "arrays = {{f'a{{i}}': make({elements}) for i in range({count})}}"
ARRAY_ELEMENTS, ARRAY_COUNT = 4 << 20, 4  # 64 MiB of float32 in all
# No name is left that holds a shard: that of an old device could not be kept.
CHECK_ARRAYS = """
def check_shard(size, shard):
    expected = np.arange(*shard.index[0].indices(size), dtype=np.float32)
    assert (np.asarray(shard.data) == expected).all()
[check_shard(a.size, shard) for a in arrays.values() for shard in a.addressable_shards]
None
"""
SENTINEL_THREAD = """
import threading
next(t.native_id for t in threading.enumerate() if t.name == "jaxnb-sentinel")
"""
ADD = """
add = jax.jit(lambda a: a + 1)
def dispatch(count):
    y = x
    for _ in range(100):
        y = add(y)
    wall, own = time.perf_counter(), time.thread_time()
    for _ in range(count):
        y = add(y)
    wall, own = time.perf_counter() - wall, time.thread_time() - own
    y.block_until_ready()
    return wall / count, own / count
"""

PYTHON_PATH = """
# What JAX does where its fast path, in C++, is not to be had; and without what jaxnb has put
# around it.
import gc
from jax._src import pjit
from jax._src.interpreters import pxla
from jaxnb.compat.jax_fast_path import Shortcut
own = next(each._jax for each in gc.get_objects() if type(each) is Shortcut)
pjit._run_python_pjit = own.call
pxla.ExecuteReplicated.__call__ = pxla.ExecuteReplicated.__call__.__wrapped__
pjit._get_fastpath_data = lambda *facts: None
"""
ON_PYTHON_PATH = "JAX's Python path"
PYTHON_ONLY = f"off, {ON_PYTHON_PATH}"

Found = dict[str, Any]
IsStuck = Callable[[Whereabouts], bool]


class Unexpected(RuntimeError):
    """A group did something else than the benchmark is about."""


@contextmanager
def group(**settings: Any) -> Iterator[Session]:
    """Four CPU processes with ``SETUP`` run on them."""
    with jaxnb.start(num_processes=4, platform="cpu", **settings) as session:
        session.run(SETUP)
        yield session


def when_stuck(
    session: Session,
    waiting: Iterable[int],
    call: Callable[[], None],
    is_stuck: IsStuck,
) -> list[float]:
    """Call something once processes are stuck, from another thread; return when, as a list."""
    called: list[float] = []
    wanted = set(waiting)

    def watch() -> None:
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while time.monotonic() < deadline:
            found = session.where(wanted)
            if set(found) == wanted and all(map(is_stuck, found.values())):
                called.append(time.monotonic())
                call()
                return
            time.sleep(LOOK_SECONDS)  # The pace of looking; nothing is timed by it.

    threading.Thread(target=watch, daemon=True).start()
    return called


def waits(where: Whereabouts) -> bool:
    """Whether a process waits in the collective of a cell here."""
    line = where.in_cell
    return line is not None and "total(x)" in line.source and waits_in_jax(where)


def spins(where: Whereabouts) -> bool:
    """Whether a process is in the busy loop of a cell here."""
    return where.in_cell is not None and where.in_cell.function == "spin"


class PressesAgain(NoSink):
    """Interrupts again when that is offered."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def notice(self, text: str) -> None:
        """Take a sentence of jaxnb's."""
        if "Interrupt again" in text:
            self._session.interrupt()


def force(session: Session, code: str, stuck: set[int], is_stuck: IsStuck) -> Found:
    """A cell that a first interrupt does not end, and a second one; then the group used again.

    Without checks: where processes agree, who waits for others waits in Python.
    """
    session.run(USE, check="off")  # compiled: who compiles would be taken for one that waits
    called = when_stuck(session, stuck, session.interrupt, is_stuck)
    sink = PressesAgain(session)
    result = session.run(code, sink=sink, check="off", raise_on_error=False)
    returned = time.monotonic()
    session.run(USE)
    usable = time.monotonic()
    types = {i: error.type_name for i, error in result.errors.items()}
    # On several devices each, JAX waits where an interrupt reaches it.
    expected = {i: types.get(i, "") for i in range(session.num_processes)}
    if not set(expected.values()) <= {"NoAnswer", "KeyboardInterrupt"}:
        raise Unexpected(f"the processes raised {expected}")
    return {"returned": returned - called[0], "usable": usable - called[0]}


def remade(session: Session, remake: Callable[[], Any]) -> Found:
    """A healthy group with arrays, made again by one of its methods; then used."""
    begin = time.monotonic()
    kept = remake()
    returned = time.monotonic()
    session.run(USE)
    usable = time.monotonic()
    session.run(CHECK_ARRAYS)
    if kept.lost:
        raise Unexpected(f"not kept: {kept.lost}")
    return {
        "returned": returned - begin,
        "usable": usable - begin,
        "bytes": kept.nbytes,
    }


def die(session: Session) -> Found:
    """A cell in which all but one wait, and that one is killed; then replaced."""
    others = [i for i in range(session.num_processes) if i != ABSENT]
    pid = session.processes[ABSENT].pid
    noticed: list[float] = []

    def kill() -> None:
        os.kill(pid, signal.SIGKILL)
        while not session.deaths:
            time.sleep(NOTICE_SECONDS)
        noticed.append(time.monotonic())

    called = when_stuck(session, others, kill, waits)
    try:
        session.run(STUCK.format(absent=ABSENT))
    except ProcessDiedError:
        ended = time.monotonic()
    else:
        raise Unexpected("the cell did not end with the death")
    session.recover()
    session.run(SETUP)
    return {"noticed": noticed[0] - called[0], "ended": ended - called[0]}


def where(session: Session) -> list[float]:
    """Seconds of calls of ``session.where()``, which have to name every process."""
    seconds = []
    for _ in range(WHERE_CALLS):
        begin = time.perf_counter()
        found = session.where()
        seconds.append(time.perf_counter() - begin)
        if len(found) != session.num_processes:
            raise Unexpected(f"where() told of processes {sorted(found)} only")
    return seconds


def where_while_stuck(session: Session) -> list[float]:
    """The same while all but one wait in C++."""
    seconds: list[float] = []

    def ask_and_interrupt() -> None:
        seconds.extend(where(session))
        session.interrupt()

    others = [i for i in range(session.num_processes) if i != ABSENT]
    when_stuck(session, others, ask_and_interrupt, waits)
    sink = PressesAgain(session)
    session.run(STUCK.format(absent=ABSENT), sink=sink, check="off", raise_on_error=False)
    return seconds


def sentinel_percent(session: Session, meanwhile: Callable[[], object]) -> list[float]:
    """Percent of a core that each process's sentinel used while something went on."""
    threads = {
        Path(f"/proc/{session.processes[i].pid}/task/{process.value}/schedstat")
        for i, process in session.run(SENTINEL_THREAD).per_process.items()
    }

    def used() -> dict[Path, float]:
        return {path: int(path.read_text().split()[0]) / 1e9 for path in threads}

    before, begin = used(), time.perf_counter()
    meanwhile()
    after, seconds = used(), time.perf_counter() - begin
    return [100 * (after[path] - before[path]) / seconds for path in sorted(threads)]


def dispatches(modes: list[str], calls: dict[str, int], repetitions: int) -> Found:
    """Seconds per call of a jitted function on a global array, by the recorder's mode, in turn.

    A mode is what is done about each dispatch, and in what group: ``"record, no pitfalls"``. There
    are no more groups than needed: processes that idle take time too from those that are measured.
    """
    found: Found = {mode: [] for mode in modes}
    groups = dict.fromkeys(mode.partition(", ")[2] for mode in modes)
    with ExitStack() as stack:
        sessions = {each: stack.enter_context(group(pitfalls=not each)) for each in groups}
        for each, session in sessions.items():
            session.run(PYTHON_PATH + ADD if each == ON_PYTHON_PATH else ADD)
        for _ in range(repetitions):
            for mode in modes:
                check, _, each = mode.partition(", ")
                result = sessions[each].run(
                    f"dispatch({calls[mode]})", check=cast(CheckMode, check)
                )
                values = result.per_process.values()
                wall, own = zip(*(process.value for process in values), strict=True)
                found[mode].append({"wall": statistics.median(wall), "own": statistics.median(own)})
    return found


def run(plan: dict[str, Any]) -> Found:
    """All that the plan lists."""
    if modes := plan.get("modes"):
        return {"dispatches": dispatches(modes, plan["calls"], plan["repetitions"])}
    found: Found = {}
    steps, repetitions = plan["steps"], plan["repetitions"]
    with group(devices_per_process=plan["devices"]) as session:
        if "where" in steps:
            found["where idle"] = where(session)
            found["where stuck"] = where_while_stuck(session)
            code = f"time.sleep({IDLE_WINDOW_SECONDS})"
            idle, watched = partial(time.sleep, IDLE_WINDOW_SECONDS), partial(session.run, code)
            found["sentinel idle"] = sentinel_percent(session, idle)
            found["sentinel watched"] = sentinel_percent(session, watched)
        if "force" in steps:
            everyone = set(range(session.num_processes))
            stuck = STUCK.format(absent=ABSENT), everyone - {ABSENT}, waits
            found["stuck"] = [force(session, *stuck) for _ in range(repetitions)]
            loop = SWALLOW, everyone, spins
            found["loop"] = [force(session, *loop) for _ in range(repetitions)]
        if "recover" in steps:
            session.run(ARRAYS.format(elements=ARRAY_ELEMENTS, count=ARRAY_COUNT))
            found["recover"] = [remade(session, session.recover) for _ in range(repetitions)]
        if "death" in steps:
            found["death"] = [die(session) for _ in range(repetitions)]
    return found


def main() -> None:
    """Follow the plan."""
    report_path, plan = Path(sys.argv[1]), json.loads(sys.argv[2])
    report_path.write_text(json.dumps(run(plan)))


if __name__ == "__main__":
    main()
