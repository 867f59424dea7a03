"""What the processes of a row run: variables, faults, and the cells around them."""

from __future__ import annotations

from textwrap import indent

from faults.table.rows import DEVICES, PROCESSES, QUEUED, WAITS_IN_JAX, Row

SETUP = """
for name in ("odd", "faulty", "Faulty", "a", "b", "factor", "lock", "late", "spin", "swallow"):
    globals().pop(name, None)  # of the row before
import ctypes, os, signal, subprocess, sys, threading, time, types
from jax.experimental import multihost_utils
n = jax.device_count()
mesh = jax.make_mesh((n,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

def make(size, spec, start=0):
    whole = np.arange(float(start), float(start) + size, dtype=np.float32)
    return jax.make_array_from_callback((size,), NamedSharding(mesh, spec), lambda i: whole[i])

x, long, r = make(2 * n, P("d")), make(4 * n, P("d")), make(5, P())
mine = jnp.full(3, process_index)
plain = 41
state = {{"r": [r], "plain": plain}}
def total(a): return a.sum()
def doubled(a): return (2 * a).sum()
total, doubled = jax.jit(total), jax.jit(doubled)
step, scaled = jax.jit(lambda a: a + 1), jax.jit(lambda a, b: a * b)

def gate():
    with open({folder!r} + f"/{{process_index}}") as pipe:
        pipe.read()

sys.modules["faults_of_the_table"] = types.ModuleType("faults_of_the_table")
assert float(total(x)) == n * (2 * n - 1) and float(doubled(x)) == n * (4 * n - 2)
"""
"""Variables of each kind, and ``gate()``: waits until somebody opens this process's FIFO."""

LESS_PATIENCE = "import jaxnb.recovery.process_recovering as of; of.SPIN_SECONDS = 0.5"
"""On who packs values that take too long."""

HOST = """
n, plain = jax.device_count(), 41
state = {"r": [r], "plain": plain}
def make(size, spec, start=0):
    whole = np.arange(float(start), float(start) + size, dtype=np.float32)
    return jax.make_array_from_callback((size,), NamedSharding(mesh, spec), lambda i: whole[i])
"""
"""What a new process is not given where only one other has it: a user makes it there again."""

CHECK = """
def check(new):
    assert plain == 41 and state["plain"] == 41 and state["r"][0] is r and mesh is r.sharding.mesh
    assert all(np.asarray(s.data).tolist() == [0, 1, 2, 3, 4] for s in r.addressable_shards)
    assert float(total(r)) == 10 and r.sharding.device_set == set(jax.devices())
    if process_index in new:
        return
    assert mine.tolist() == [process_index] * 3
    for v, size in ((x, 2 * n), (long, 4 * n)):
        for index, part in v.shards if new else [(s.index, s.data) for s in v.addressable_shards]:
            assert np.asarray(part).tolist() == list(range(*index[0].indices(size)))
check({new})
float(total(make(2 * n, P("d"), start=1)))
"""
"""Fails where a variable is not what it was; its value is a sum over all processes.

``new`` are the indices of processes that are new: they cannot have their shards of ``x``.
"""

SUM = float(sum(range(1, 2 * PROCESSES * DEVICES + 1)))

SWALLOW = """
def spin():
    while True: pass
while True:
    try: spin()
    except KeyboardInterrupt: pass
""".strip()

SWALLOW_ALL = """
def spin():
    while True: pass
def swallow():
    while True:
        try: spin()
        except: pass
while True:
    try: swallow()
    except: pass
""".strip()

CLIENT = "jax._src.distributed.global_state.client"

FAULTS = {
    "raise": "raise ValueError('boom')",
    "sys.exit": "sys.exit(3)",
    "os._exit": "os._exit(7)",
    "SIGSEGV": "ctypes.string_at(0)",
    "SIGKILL": "signal.pause()",  # until somebody sends it
    "SIGSTOP": "signal.pause()",
    "loop": "while True: pass",
    "collective": "float(total(x))",
    "device_put": "jax.device_put(np.ones(2 * n, np.float32), x.sharding)",
    "allgather": "multihost_utils.process_allgather(np.ones(3))",
    "first compile": "float(jax.jit(lambda a: (a * 3).sum())(x))",
    "sync_global_devices": "multihost_utils.sync_global_devices('here')",
    "barrier": f"{CLIENT}.wait_at_barrier('here', 600_000)",
    "key": f"{CLIENT}.blocking_key_value_get('nobody', 600_000)",
    "subprocess": "subprocess.run(['sleep', '1000'])",
    "lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "swallow": SWALLOW,
    "swallow all": SWALLOW_ALL,
}
"""What one process does."""


def only(row: Row, code: str, otherwise: str = "pass") -> str:
    """Returns code for the row's process, and other code for the others."""
    return (
        f"if process_index == {row.index}:\n{indent(code, '    ')}\n"
        f"else:\n{indent(otherwise, '    ')}"
    )


def cell(row: Row) -> str:
    """Returns the cell of a row of ``Python`` or ``collective``."""
    if row.how.startswith("mismatch"):
        return parting(row)
    fault = f"gate()\n{FAULTS[row.kind]}"
    if row.when == "Python":
        is_death = row.then == "recover"
        return only(row, fault, "gate()\nsignal.pause()" if is_death else "gate()")
    queue = f"for _ in range({QUEUED}): total(x)\n" if QUEUED else ""
    if row.kind in WAITS_IN_JAX:  # the others are in it, and this one never comes
        return only(row, "gate()\nsignal.pause()", FAULTS[row.kind])
    return only(row, fault, queue + FAULTS["collective"])


def parting(row: Row) -> str:
    """Returns a cell in which one process does not dispatch what the others do."""
    odd = f"process_index == {row.index}"
    if row.kind == "replicas":
        return odd_value(row) + "\nodd"
    return {
        "order": f"if {odd}:\n    a, b = doubled(x), total(x)\n"
        "else:\n    a, b = total(x), doubled(x)\nfloat(a), float(b);",
        "constant": f"factor = 4 if {odd} else 3\nfloat(jax.jit(lambda a: (a * factor).sum())(x));",
        "one more": f"step(x)\nif {odd}:\n    float(total(x))",
        "one fewer": f"step(x)\nif not ({odd}):\n    float(total(x))",
        "shape": f"float(total(long if {odd} else x));",
        "some ranks": "step(x);",
        "scalars": f"scaled(x, 1.0 if {odd} else 0.0);",
        "NumPy arrays": f"scaled(x, np.full(2 * n, {odd}, np.float32));",
        "keys": f"scaled(x, jax.random.bits(jax.random.key(int({odd})), (2 * n,)));",
    }[row.kind]


def odd_value(row: Row) -> str:
    """Returns code that makes ``odd``, which is another on one process."""
    odd = f"process_index == {row.index}"
    return {
        "shape": f"odd = long if {odd} else x",
        "some ranks": f"if {odd}: odd = np.ones(3)",
        "scalars": f"odd = int({odd})",
        "NumPy arrays": f"odd = np.full(3, int({odd}))",
        "keys": f"odd = jax.random.key(int({odd}))",
        "replicas": f"odd = jax.make_array_from_callback(\n"
        f"    (3,), NamedSharding(mesh, P()), lambda i: np.full(3, {odd}, np.float32)[i])",
    }[row.kind]


def reducing(row: Row, *, gated: bool = True) -> str:
    """Returns code that makes ``faulty``, whose pickling does what the row says."""
    fault = f"gate()\n{FAULTS[row.kind]}" if gated else FAULTS[row.kind]
    return (
        "class Faulty:\n"
        "    def __reduce__(self):\n"
        f"        if process_index == {row.index}:\n{indent(fault, ' ' * 12)}\n"
        "        return int, (7,)\n"
        "faulty = Faulty()"
    )


def making(row: Row) -> str:
    """Returns code that makes what :data:`PUSHED` calls do what the row says."""
    fault = f"gate()\n{FAULTS[row.kind]}"
    return (
        f"def act():\n    if process_index == {row.index}:\n{indent(fault, ' ' * 8)}\n"
        "    return 'new'\n"
        "sys.modules['faults_of_the_table'].act = act"
    )


MAKE = "__import__('faults_of_the_table').act()"

PLUGIN = """
import ctypes, os, signal, sys
from jax._src.distributed import global_state
if global_state.process_id == {index}:
    {fault}
"""
"""A module that JAX imports while it makes its backends, as it does for hardware."""


def plugin(row: Row) -> str:
    """Returns the source of a plugin of JAX's that does what the row says on one process."""
    sent = {"SIGKILL": "SIGKILL", "SIGSTOP": "SIGSTOP"}
    fault = FAULTS[row.how]
    if row.how in sent:
        fault = f"os.kill(os.getpid(), signal.{row.how})"
    return PLUGIN.format(index=row.index, fault=fault)


def lines(source: str, row: Row) -> dict[str, str]:
    """Returns the line numbers of the fault and of the others' wait, as text."""
    found = {"fault": "", "wait": ""}
    wait = FAULTS[row.kind] if row.kind in WAITS_IN_JAX else FAULTS["collective"]
    for number, line in enumerate(source.splitlines(), 1):
        if line.strip() == FAULTS.get(row.kind, "-").splitlines()[0]:
            found["fault"] = str(number)
        if line.strip() == wait:
            found["wait"] = str(number)
    return found
