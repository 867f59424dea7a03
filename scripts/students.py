"""Simulates students on this machine: a kernel and a group each, and a cell every few seconds.

Prints for each number of students how long cells took, the memory that a student adds, and the
the share of a processor that it uses: python scripts/students.py 1 2 4 --think 10 --minutes 2
"""

from __future__ import annotations

import argparse
import random
import statistics
import threading
import time
from typing import Any

import psutil
from jupyter_client.manager import start_new_kernel

START = "%load_ext jaxnb\n%spmd_start -n 4 --devices-per-process 2 --platform cpu"
MESH = """%%spmd
mesh = jax.make_mesh((8,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
x = jax.device_put(np.arange(64.0).reshape(16, 4), NamedSharding(mesh, P("i")))
"""
GATHER = """%%spmd
def my_all_gather(x, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    out = jnp.zeros((n, *x.shape), x.dtype).at[me].set(x)
    for k in range(1, n):
        x = jax.lax.ppermute(x, axis, [(j, (j + 1) % n) for j in range(n)])
        out = out.at[(me - k) % n].set(x)
    return out.reshape(-1, *x.shape[1:])
"""
CELLS = (
    MESH + "x",
    "%%spmd\njax.jit(lambda x: jnp.sum(x * NUMBER))(x)",
    GATHER,
    "from jaxnb import course\nassert course.all_gather.check()",
    "%spmd_collectives jax.jit(lambda x: (x * NUMBER).sum())(x)",
    "%spmd print(process_index, x.addressable_data(0)[0])",
)

IDLE_SECONDS = 10.0


class Student(threading.Thread):
    """Runs cells in a kernel of its own until it is told to stop.

    Args:
        seed: Of its random times.
        think: Seconds between the end of a cell and the next one, on average.
        stop: Ends it.
    """

    def __init__(self, seed: int, think: float, stop: threading.Event) -> None:
        super().__init__()
        self._think, self._told = think, stop
        self._random = random.Random(seed)
        self.seconds: list[float] = []
        self.manager: Any
        self.manager, self._client = start_new_kernel()
        self._run(START)
        self._run(CELLS[0])

    def run(self) -> None:
        """Runs cells, one after the other."""
        number = 0
        while not self._told.wait(self._random.expovariate(1 / self._think)):
            number += 1
            code = CELLS[number % len(CELLS)]
            self.seconds.append(self._run(code.replace("NUMBER", str(self._random.random()))))

    def _run(self, code: str) -> float:
        began = time.monotonic()
        reply = self._client.execute_interactive(code, output_hook=lambda _: None, timeout=600)
        assert reply["content"]["status"] == "ok", reply["content"]
        return time.monotonic() - began

    def processes(self) -> list[psutil.Process]:
        """Returns the kernel and all that it has started."""
        kernel = psutil.Process(self.manager.provisioner.pid)
        return [kernel, *kernel.children(recursive=True)]

    def close(self) -> None:
        """Ends the kernel and its group."""
        self._client.stop_channels()
        self.manager.shutdown_kernel()


def usage(students: list[Student]) -> tuple[float, float]:
    """Returns the students' memory in GiB, shared pages once, and the processor seconds so far."""
    memory = seconds = 0.0
    for process in (p for student in students for p in student.processes()):
        memory += process.memory_full_info().pss
        times = process.cpu_times()
        seconds += times.user + times.system
    return memory / 2**30, seconds


def main() -> None:
    """Measures each number of students in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("students", type=int, nargs="+")
    parser.add_argument("--think", type=float, default=10.0)
    parser.add_argument("--minutes", type=float, default=1.0)
    asked = parser.parse_args()
    print("students  start s  cells  median s  95 % s  GiB each  CPU % each  idle CPU % each")
    for count in asked.students:
        stop, began = threading.Event(), time.monotonic()
        students = [Student(seed, asked.think, stop) for seed in range(count)]
        started = (time.monotonic() - began) / count
        _, before = usage(students)
        time.sleep(IDLE_SECONDS)
        memory, idle = usage(students)
        for student in students:
            student.start()
        time.sleep(60 * asked.minutes)
        stop.set()
        for student in students:
            student.join()
        memory, after = usage(students)
        cells = sorted(seconds for student in students for seconds in student.seconds)
        working = (after - idle) / (60 * asked.minutes) / count
        print(
            f"{count:8}  {started:7.1f}  {len(cells):5}  {statistics.median(cells):8.2f}  "
            f"{cells[int(0.95 * (len(cells) - 1))]:6.2f}  {memory / count:8.2f}  "
            f"{100 * working:10.1f}  {100 * (idle - before) / IDLE_SECONDS / count:15.1f}",
            flush=True,
        )
        for student in students:
            student.close()


if __name__ == "__main__":
    main()
