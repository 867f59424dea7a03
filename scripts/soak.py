"""Runs mixed healthy work on a group for a while, and fails on any false alarm.

Cells that compile, compute, read, sleep, print, wait for a straggler or run on some processes
only; pulls, pushes, background cells, and the group formed anew now and then. Cells without an end
are interrupted at any moment, once (unchecked ones again if they are told to be). Every result is
checked. A notice of jaxnb's, a divergence, a replaced process, an error, a warning, a wrong number
or an interrupt that ends nothing ends the soak with status 1, and says which work it was.

The seed decides what is done in which order, and is printed: the same one does the same again.
"""

from __future__ import annotations

import argparse
import random
import re
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import jaxnb
from jaxnb.cells.result import CellResult
from jaxnb.cells.sinks import NoSink, SaysWaits
from jaxnb.errors import CellError, CellTimeoutError
from jaxnb.model.dispatches import CheckMode
from jaxnb.model.group import Waits
from jaxnb.session import Session

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from faults.unequal.inputs import SETUP as SETUP_OF_TWINS
from faults.unequal.rows import ROWS

PROCESSES = 4
CELL_TIMEOUT_SECONDS = 300.0
INTERRUPT_TIMEOUT_SECONDS = 60.0  # it takes half a second where nothing else runs
REPORT_SECONDS = 60.0
LENGTHS = (1, 30, 777, 20_000, 300_000)
"""Of arrays: JAX keeps for good what it compiles for each, 1 to 3 MB, with or without jaxnb."""

WAITS_FOR_ITS_TURN = re.compile(r"waits for cell \[\d+\] to end")

DID_NOT_ANSWER = re.compile(".* did not answer the interrupt within")

SAID_OF_INTERRUPTS = {
    "strict": re.compile(".* stopped at the same step"),
    "off": re.compile(f"New processes in|{DID_NOT_ANSWER.pattern}"),
}

ENDLESS = [
    "while True: float(total(x))",
    "own = x\nwhile True: own = step(own)",
    "while True: multihost_utils.process_allgather(np.ones(3))",
    "while True: multihost_utils.sync_global_devices('again')",
    "while True: spread(np.ones(4 * n, np.float32))",
    "while True: jax.device_put(np.ones(4 * n), NamedSharding(mesh, P('data')))",
    "if process_index == 1: time.sleep(1000)\nfloat(total(x))",
    "@jax.jit\ndef fresh(a):\n    while True: a = jnp.sin(a) * 2\nfresh(x)",
    "jaxnb.compare(lambda a: time.sleep(1000), (x,), specs={'as it is': None})",
    "while True: jaxnb.compare(lambda a: a.sum(), (x,), specs={'whole': P()}, repeats=1)",
    "while True: pass",
    "while True:\n    a = []\n    a.append(a)\n    gc.collect(0)",
    "while True: print('on')",
    "while True: subprocess.run(['sleep', '0.01'])",
    "while True: await asyncio.sleep(0.01)",
]
"""Cells that end when they are interrupted. None makes threads: Python's own locks may raise
RuntimeError where a KeyboardInterrupt strikes them."""

SETUP = """
import asyncio, gc, jaxnb, os, subprocess, sys, threading, time
from jax.experimental import multihost_utils
n = jax.device_count()
mesh = jax.make_mesh((n,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

def spread(whole):
    return jax.make_array_from_callback(
        whole.shape, NamedSharding(mesh, P("data")), lambda index: whole[index])

x = spread(np.arange(4.0 * n, dtype=np.float32))
steps = spread(np.zeros(n, np.float32))
total = jax.jit(jnp.sum)
step = jax.jit(lambda a: a + 1)
matrix = spread(np.full((32 * n, 256), 1 / 256, np.float32))

@jax.jit
def grind(a, times):
    weights = jnp.full((256, 256), 1 / 256)
    return jax.lax.fori_loop(0, times, lambda i, a: a @ weights, a).sum()
"""


class FalseAlarmError(AssertionError):
    """Something was called wrong that is not, or came out wrong."""


class Alarms(SaysWaits, NoSink):
    """Keeps what jaxnb says of its own accord; healthy work gives it no reason to.

    That a cell waits for its turn is no alarm, nor who waits for whom while somebody is at work.
    """

    def __init__(self) -> None:
        self.notices: list[str] = []

    def notice(self, text: str) -> None:
        """Keeps a sentence."""
        if not WAITS_FOR_ITS_TURN.match(text):
            self.notices.append(text)

    def waits(self, waits: Waits) -> None:
        """Takes where processes wait; keeps it if nobody is at work for whom they could."""
        if not waits.is_neutral:
            super().waits(waits)


class PressesAgain(Alarms):
    """Presses Interrupt once more if it is told to: an unchecked cell may need two."""

    def __init__(self, interrupted: threading.Event) -> None:
        super().__init__()
        self._interrupted = interrupted

    def notice(self, text: str) -> None:
        """Keeps a sentence, and does what it says."""
        super().notice(text)
        if DID_NOT_ANSWER.match(text):
            self._interrupted.set()


@dataclass
class Soak:
    """A group, and what it should have come to.

    Attributes:
        session: The group.
        chance: Decides.
        folder: For files that cells read.
        steps: How often ``steps`` was counted up.
        cells: How many cells were run.
        pids: Of the processes; they change with a recovery only.
    """

    session: Session
    chance: random.Random
    folder: Path
    steps: int = 0
    cells: int = 0
    pids: list[int] = field(init=False)

    def __post_init__(self) -> None:
        """Takes down which processes there are."""
        self.pids = self.current_pids()

    def current_pids(self) -> list[int]:
        """The processes that there are now."""
        return [process.pid for process in self.session.processes]

    @property
    def devices(self) -> int:
        """Devices of the whole group."""
        return sum(len(process.devices) for process in self.session.processes)

    @property
    def sum_of_x(self) -> float:
        """What ``total(x)`` has to give."""
        return float(sum(range(4 * self.devices)))

    def seconds(self, low: float, high: float) -> float:
        """A time to take."""
        return round(self.chance.uniform(low, high), 2)

    def some(self) -> list[int]:
        """Some of the processes, and not all."""
        count = self.chance.randint(1, PROCESSES - 1)
        return sorted(self.chance.sample(range(PROCESSES), count))

    def run(
        self, code: str, ranks: list[int] | None = None, check: CheckMode | None = None
    ) -> CellResult:
        """Runs a cell that has to end well, in silence; one in four unchecked."""
        sink, check = Alarms(), check or self.chance.choice(["strict", "strict", "strict", "off"])
        settings: dict[str, Any] = {"sink": sink, "timeout": CELL_TIMEOUT_SECONDS}
        result = self.session.run(code, ranks=ranks, check=check, **settings)
        self.cells += 1
        require(not sink.notices, f"jaxnb said: {sink.notices}")
        require(result.divergence is None, f"a divergence was seen: {result.divergence}")
        return result

    def value(self, code: str, expected: object) -> None:
        """Runs a cell, whose value has to be this on every process."""
        found = self.run(code).value
        require(found == expected, f"{found!r} is not {expected!r}")


def require(condition: bool, text: str) -> None:
    """Fails the soak unless a condition holds."""
    if not condition:
        raise FalseAlarmError(text)


def dispatch(soak: Soak) -> None:
    """Many small computations on a global array, and a collective."""
    count = soak.chance.randint(1, 300)
    soak.run(f"for _ in range({count}): steps = step(steps)")
    soak.steps += count
    soak.value("float(total(steps))", float(soak.steps * soak.devices))


def compile_anew(soak: Soak) -> None:
    """A function that has never been compiled, of up to a few seconds."""
    depth, constant = soak.chance.choice([1, 50, 400]), soak.chance.randrange(1000)
    soak.value(
        "@jax.jit\ndef fresh(a):\n    b = a\n"
        f"    for i in range({depth}): b = jnp.sin(b) * {constant} + i\n"
        "    return (b - b).sum() + a.sum()\nfloat(fresh(x))",
        soak.sum_of_x,
    )


def straggle(soak: Soak) -> None:
    """One process comes late to a collective in which the others wait."""
    late, how = soak.chance.randrange(PROCESSES), soak.chance.choice(_delays(soak.seconds(0.1, 6)))
    soak.value(f"if process_index == {late}:\n    {how}\nfloat(total(x))", soak.sum_of_x)


def leave_early(soak: Soak) -> None:
    """Some are through at once; the others go on with something of their own for a while."""
    how = soak.chance.choice(_delays(soak.seconds(0.1, 6)))
    soak.value(f"if process_index in {soak.some()}:\n    {how}\n'through'", "through")


def _delays(seconds: float) -> list[str]:
    until = f"end = time.monotonic() + {seconds}\n    while time.monotonic() < end:"
    return [
        f"time.sleep({seconds})",
        f"subprocess.run(['sleep', '{seconds}'])",
        f"{until} pass",
        f"t = threading.Timer({seconds}, int); t.start(); t.join(); del t",
        f"own = jnp.full((300, 300), 1 / 300); {until} own = own @ own",
    ]


def read_data(soak: Soak) -> None:
    """Each process reads its part of a file and makes a global array of it."""
    rows = PROCESSES * 2 * soak.chance.randint(100, 20_000)
    path = soak.folder / "data.npy"
    np.save(path, np.arange(rows, dtype=np.float32))
    soak.value(
        f"data = np.load({str(path)!r}, mmap_mode='r')\nbatch = spread(data)\n"
        "last = float(jax.jit(lambda a: a[-1])(batch))\ndel data  # no recovery keeps it\nlast",
        float(rows - 1),
    )


def plain(soak: Soak) -> None:
    """A call that ends in a collective, JAX's own helpers, or nothing that JAX has to do with."""
    times, count = soak.chance.choice([10, 500, 3000]), soak.chance.randint(10_000, 3_000_000)
    child = f"import time; time.sleep({soak.seconds(0, 2)}); print(7)"
    cells: list[tuple[str, object]] = [
        (f"round(float(grind(matrix, {times})), 1)", 32.0 * soak.devices),
        (f"time.sleep({soak.seconds(0.1, 12)})\n'awake'", "awake"),
        (f"sum(range({count}))", sum(range(count))),
        (f"int(subprocess.run([sys.executable, '-c', {child!r}], capture_output=True).stdout)", 7),
        (
            "multihost_utils.sync_global_devices('soak')\n"
            "multihost_utils.process_allgather(np.array([process_index])).ravel().tolist()",
            list(range(PROCESSES)),
        ),
    ]
    soak.value(*soak.chance.choice(cells))


def on_some(soak: Soak) -> None:
    """A cell on some processes, with arrays of their own."""
    ranks, count = soak.some(), soak.chance.choice(LENGTHS)
    result = soak.run(f"float(jnp.ones({count}).sum()) + process_index", ranks)
    found = {i: process.value for i, process in result.per_process.items()}
    wanted = {i: float(count + i) for i in ranks}
    require(found == wanted, f"{found} is not {wanted}")


def print_much(soak: Soak) -> None:
    """Many lines, or one that is long."""
    if soak.chance.random() < 0.5:
        count = soak.chance.randint(1000, 20_000)
        result = soak.run(f"for i in range({count}): print('step', i, process_index % 2)")
    else:
        count, length = 1, soak.chance.randint(1000, 5_000_000)
        result = soak.run(f"print('-' * {length})")
    came = {process.stdout.count("\n") for process in result.per_process.values()}
    require(came == {count}, f"{came} of {count} lines came")


def pull(soak: Soak) -> None:
    """An array with one element for each of very many."""
    rows = PROCESSES * 2 * soak.chance.randint(1, 300_000)
    soak.run(f"big = spread(np.arange({rows}, dtype=np.float32))")
    big = soak.session.pull("big", lazy=soak.chance.random() < 0.5)
    require(np.array_equal(big, np.arange(rows, dtype=np.float32)), "the pulled array differs")


def push(soak: Soak) -> None:
    """An array spread over the processes, and a value for each."""
    rows = PROCESSES * 2 * soak.chance.choice(LENGTHS)
    host = np.arange(rows, dtype=np.float32)
    soak.session.push(pushed=host, spec=("data",), mesh="mesh")
    soak.session.push(plain={"rows": rows, "text": "as it is"})
    soak.value("(float(jax.jit(jnp.max)(pushed)), plain['rows'])", (float(rows - 1), rows))


def background(soak: Soak) -> None:
    """A cell in another thread; one more waits for its turn, and somebody looks on."""
    with ThreadPoolExecutor(2) as pool:
        slow = f"time.sleep({soak.seconds(0.1, 4)})\nfloat(total(x))"
        # The threads must not draw from one source of chance: the seed would not decide.
        first = pool.submit(soak.run, slow, check="strict")
        second = pool.submit(soak.run, "float(total(x)) + 1", check="off")
        soak.session.stats()
        soak.session.where()
        found = sorted([first.result().value, second.result().value])
    require(found == [soak.sum_of_x, soak.sum_of_x + 1], f"the background cells gave {found}")


def compare(soak: Soak) -> None:
    """A comparison of shardings; one process is late to it, or goes on for a while after it."""
    who, before, after = soak.chance.randrange(PROCESSES), soak.seconds(0, 4), soak.seconds(0, 4)
    soak.value(
        "def slow(a):\n"
        f"    if process_index == {who}: time.sleep({before})\n"
        "    return a.sum()\n"
        "found = jaxnb.compare(slow, (x,), specs={'as it is': None, 'whole': P()}, repeats=2)\n"
        f"if process_index == {soak.chance.randrange(PROCESSES)}: time.sleep({after})\n"
        "[each.failure for each in found.variants]",
        [None, None],
    )


def twin(soak: Soak) -> None:
    """Cells that look like those of the table of what is unequal, and are healthy."""
    row = soak.chance.choice(ROWS)
    kept = "_of_soak = {k: v for k, v in globals().items() if not k.startswith('_')}"
    for code in (kept, SETUP_OF_TWINS, *row.twin, "globals().update(_of_soak)\ndel _of_soak"):
        soak.run(code)


def interrupt(soak: Soak) -> None:
    """A cell without an end, interrupted at first or within two seconds; unchecked, maybe twice."""
    code, interrupted = soak.chance.choice(ENDLESS), threading.Event()
    seconds = soak.chance.choice([0.0, soak.seconds(0, 0.1), soak.seconds(0, 2)])
    timer = threading.Timer(seconds, interrupted.set)
    timer.start()
    found: set[str] = set()
    check: CheckMode = soak.chance.choice(["strict", "off"])
    sink = PressesAgain(interrupted) if check == "off" else Alarms()
    try:
        limit = seconds + INTERRUPT_TIMEOUT_SECONDS
        soak.session.run(code, check=check, sink=sink, interrupted=interrupted, timeout=limit)
    except CellTimeoutError:
        raise FalseAlarmError(f"the interrupt after {seconds} s was lost: {code!r}") from None
    except CellError as error:
        soak.cells += 1
        found = {each.type_name for each in error.result.errors.values()}
        require(len(error.result.errors) == PROCESSES, f"some ended by themselves: {error}")
    except KeyboardInterrupt:  # before its turn came
        require(seconds == 0, "the cell was never begun")
    timer.join()
    if any(map(DID_NOT_ANSWER.match, sink.notices)):  # a second interrupt gives those up
        found -= {"NoAnswer"}
    require(found <= {"KeyboardInterrupt"}, f"{code!r} raised {found}")
    said = [text for text in sink.notices if not SAID_OF_INTERRUPTS[check].match(text)]
    require(not said, f"jaxnb said: {said}")
    if any(text.startswith("New processes in") for text in sink.notices):
        soak.pids = soak.current_pids()
    soak.value("float(total(x))", soak.sum_of_x)


def recover(soak: Soak) -> None:
    """New processes: all variables are still there."""
    recovered = soak.session.recover()
    require(not recovered.lost, f"recover() lost {recovered.lost}")
    soak.pids = soak.current_pids()
    soak.value("float(total(steps))", float(soak.steps * soak.devices))
    soak.value("float(total(x))", soak.sum_of_x)


def forget(soak: Soak) -> None:
    """What IPython and JAX keep of cells for their user: results, and what was compiled."""
    soak.run("get_ipython().run_line_magic('reset', '-f out'); jax.clear_caches()")


Work = Callable[[Soak], None]

WORK: dict[Work, int] = {
    dispatch: 6,
    forget: 1,
    compile_anew: 4,
    straggle: 4,
    leave_early: 4,
    read_data: 3,
    plain: 12,
    on_some: 3,
    print_much: 3,
    pull: 3,
    push: 3,
    background: 2,
    compare: 2,
    twin: 8,
    interrupt: 4,
    recover: 1,
}
"""Each kind of work, and how often it comes."""


def say(text: str) -> None:
    """Prints a line at once."""
    print(text, flush=True)


def require_same_processes(soak: Soak) -> None:
    """Fails if the group is not ready, or if a process was replaced."""
    require(soak.session.state == "ready", f"the group is {soak.session.state}")
    now = soak.current_pids()
    require(now == soak.pids, f"the processes are {now}, and were {soak.pids}")


def work_through(soak: Soak, minutes: float, done: Counter[str]) -> None:
    """Does each kind of work once, then any until the time is over."""
    began = told = time.monotonic()
    first = soak.chance.sample(list(WORK), len(WORK))
    while first or time.monotonic() < began + 60 * minutes:
        work = first.pop() if first else soak.chance.choices(list(WORK), list(WORK.values()))[0]
        since = time.monotonic()
        try:
            work(soak)
            require_same_processes(soak)
        except Exception as error:
            error.add_note(
                f"in `{work.__name__}`, work {done.total() + 1} and about cell {soak.cells}, "
                f"{time.monotonic() - since:.1f} s after it began"
            )
            raise
        done[work.__name__] += 1
        if time.monotonic() - told > REPORT_SECONDS:
            told = time.monotonic()
            say(f"  {(told - began) / 60:.0f} min: {done.total()} works, {soak.cells} cells")


def main() -> int:
    """Soaks; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=None, help="any by default")
    parser.add_argument("--lockstep", type=int, help="groups to measure how surely cells end in")
    arguments = parser.parse_args()
    if arguments.lockstep:
        from lockstep_rate import measure

        return measure(arguments.lockstep)
    # Unwinds as Ctrl-C does, so that the group is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    warnings.simplefilter("error", UserWarning)
    seed = arguments.seed if arguments.seed is not None else random.randrange(10**6)
    chance = random.Random(seed)
    devices = chance.choice([1, 2])
    say(f"soak: seed {seed}, {arguments.minutes:g} min, {PROCESSES} processes × {devices} devices")
    done: Counter[str] = Counter()
    began = time.monotonic()
    settings: dict[str, Any] = {"devices_per_process": devices, "platform": "cpu"}
    with (
        tempfile.TemporaryDirectory(prefix="jaxnb-soak-") as folder,
        jaxnb.start(PROCESSES, **settings) as session,
    ):
        soak = Soak(session, chance, Path(folder))
        try:
            soak.run(SETUP)
            work_through(soak, arguments.minutes, done)
        except Exception as error:
            say(f"FAILED with seed {seed} after {dict(done)}: {type(error).__name__}: {error}")
            say("\n".join(getattr(error, "__notes__", [])))
            return 1
        minutes = (time.monotonic() - began) / 60
        say(f"{done.total()} works in {soak.cells} cells, {minutes:.1f} min, no false alarm:")
        say("  " + ", ".join(f"{name} {count}" for name, count in done.most_common()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
