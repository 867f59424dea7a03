"""The private names of JAX that lockstep and transfers stand on, against the installed JAX.

Each snippet runs in a process of its own. Whether the other names do their work, the tests of
starts, pitfalls, plans, the compile cache and recoveries show.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from support.fixtures import until

FORKS = str(Path(__file__).with_name("forked_python.py"))

PRELUDE = "from jaxnb.compat import jax_runtime as internals"

Python = Callable[[str], str]
"""Runs code in a process of its own; returns what it printed."""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Python]:
    """Each time a fork of one process, which has imported JAX and has used no backend."""
    outputs = (tmp_path_factory.mktemp("outputs") / str(i) for i in itertools.count())
    command = [sys.executable, "-W", "ignore::RuntimeWarning", FORKS, PRELUDE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as it:
        # By that it is known as one that was there before the first test.
        until(psutil.Process(it.pid).environ, "it had its environment")

        def run(code: str) -> str:
            assert it.stdin is not None
            assert it.stdout is not None
            output = next(outputs)
            it.stdin.write(json.dumps([code, str(output)]) + "\n")
            it.stdin.flush()
            status = it.stdout.readline()
            assert status == "0\n", output.with_name(f"{output.name}.errors").read_text()
            return output.read_text().strip()

        yield run
        it.stdin and it.stdin.close()


HOOKS = """
from jaxnb.compat import jax_dispatch as dispatch
import jax, numpy as np
import jax.numpy as jnp

class Hooks:
    told, executables, on = [], [], True
    looks_at_values, looked = False, []
    def look_before(self, arguments): return len(arguments)
    def look_after(self, executable, depth, had, results):
        self.looked.append((dispatch.executable_name(executable), depth, had, len(results)))
    def is_recorded(self, executable):
        return self.on and "local" not in dispatch.executable_name(executable)
    def depth(self): return 7
    def before(self, executable, arguments):
        self.executables.append(executable)
        if "local" not in dispatch.executable_name(executable):
            self.told.append(len(dispatch.executable_inputs(executable, arguments)))
    def made(self, depth, results, written): pass
    def failed(self, depth, error): self.told.append((depth, type(error).__name__))
    def done(self, depth): assert depth == 7

def f(x, y, unused=0): return x * y + 1
def local(x): return x - 1
hooks = Hooks()
"""

TOLD = (
    HOOKS
    + """
print(repr(dispatch.hook_dispatches(hooks)))
f, local = jax.jit(f), jax.jit(local)
x = np.ones(3, np.float32)
for _ in range(3): y = f(x, 2.0, 5)
print(y, hooks.told); hooks.told.clear()
for _ in range(3): y = local(x)
print(y, hooks.told, len(hooks.executables))
for _ in range(3): jax.vmap(f)(x, x)
print(hooks.told); hooks.told.clear()
gone = jnp.ones(3) + 0; gone.delete(); hooks.told.clear()
try: f(gone, 2.0)
except RuntimeError: pass
print(hooks.told); hooks.told.clear()
compiled = f.lower(x, 2.0).compile(); compiled(x, 2.0); compiled(x, 2.0)
print(hooks.told); hooks.told.clear()
jnp.sin(x); jnp.sin(x); print(hooks.told); hooks.told.clear()
hooks.on = False; dispatch.choose_paths_again()
for _ in range(3): f(x, 3.0); jnp.cos(x)
print(hooks.told); hooks.told.clear()
hooks.on = True; jnp.cos(x); f(x, 3.0); print(hooks.told)
dispatch.choose_paths_again(); jnp.cos(x); f(x, 3.0); print(hooks.told)
print(hooks.looked); hooks.looks_at_values = True; f(x, 3.0); print(hooks.looked)
"""
)

EXECUTABLE = (
    HOOKS
    + """
dispatch.hook_dispatches(hooks)
def g(x, y): return x * y + 1
def h(x, y): return x * y + 2
for each in (f, g, h): jax.jit(each)(np.ones(3, np.float32), 2.0)
a, b, c = hooks.executables[-3:]
print(dispatch.executable_name(a), dispatch.executable_devices(a) == set(jax.devices()))
print([(r.shape, str(r.dtype)) for r in dispatch.executable_results(a)])
texts = [dispatch.executable_text(each) for each in (a, b, c)]
print(texts[0] == texts[1], texts[0] == texts[2], "ENTRY" in texts[0])
arrays = [np.arange(1e6, dtype=np.float32) for _ in range(3)]
arrays[2][777777] += 1
for each in arrays: jax.jit(lambda x, each=each: x * each)(np.ones(3, np.float32)[0])
a2, b2, c2 = map(dispatch.executable_text, hooks.executables[-3:])
print(a2 == b2, a2 == c2, len(a2) < 3000)
key = jax.random.key(7)
print(dispatch.key_words(key).tolist(), dispatch.key_words(3))
print(internals.coordination_client())
print(dispatch.executable_order(a) == (jax.devices()[0].id,))
print(repr(dispatch.note_compiler_options()))
for given in ({}, {"xla_cpu_enable_fast_math": True}, {"xla_cpu_enable_fast_math": True}):
    jax.jit(lambda x: x * 3, compiler_options=given)(np.ones(3, np.float32))
plain, fast, fast_again = map(dispatch.executable_text, hooks.executables[-3:])
print(plain == fast, fast == fast_again)
print(dispatch.executable_options(hooks.executables[-1])[0][1:], "multiply" in
      str(dispatch.executable_lines(hooks.executables[-1])()))
print(dispatch.not_compared(), dispatch.executable_kept(a, 2), dispatch.executable_kept(a, 3))
kinds, kept = set(), hooks.failed
hooks.failed = lambda depth, error: kinds.add(dispatch.is_of_results(error))
jax.config.update("jax_debug_nans", True)
try: jax.jit(f)(np.full(3, np.nan, np.float32), 2.0)
except FloatingPointError: print(kinds, dispatch.is_of_results(ValueError()))
jax.config.update("jax_debug_nans", False); hooks.failed = kept
dispatch.replace(np, "sin", lambda x: 7); print(np.sin(0), np.sin.__name__)
dispatch.choose_paths_again()
before = len(hooks.executables); dispatch.unhook_dispatches(); jax.jit(f)(np.ones(4), 2.0)
print(len(hooks.executables) - before, np.sin(0))
"""
)

HLO = """
from jaxnb.compat import jax_programs as hlo
import jax, jax.numpy as jnp
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.sharding.Mesh(jax.devices()[::-1], ("x",))
def made(number):
    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"))
    def f(x):
        return jax.lax.fori_loop(0, number, lambda i, x: jax.lax.all_to_all(
            x, "x", 0, 0, tiled=True), x)
    return f.lower(jax.ShapeDtypeStruct((16,), jnp.float32)).compile()
compiled = made(3)
program, = hlo.programs(compiled)
found = [each for known in program.computations.values() for each in known]
print(program.name, program.replicas, program.partitions, program.entry in program.computations)
print([(each.opcode, str(each.source), each.groups, each.trip_count) for each in found
       if each.opcode in ("while", "all-to-all")])
print(hlo.device_ids(compiled), hlo.device_ids(None))
print(hlo.fingerprint(compiled) == hlo.fingerprint(made(3)),
      hlo.fingerprint(compiled) == hlo.fingerprint(made(4)))
class NoPrinter:
    as_text = compiled.as_text
print(len(hlo.fingerprint(NoPrinter())))
modules = compiled.runtime_executable().hlo_modules()
print(hlo.modules_text(modules) == hlo.modules_text(made(3).runtime_executable().hlo_modules()),
      "all-to-all" in hlo.modules_text(modules), "fori_loop" in hlo.modules_text(modules))
print([line.source for line in hlo.modules_lines(modules) if "all-to-all" in line.text][-1])
"""


ARRAYS = """
from jaxnb.compat import jax_arrays as arrays
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
from jaxnb.compat import jax_dispatch as dispatch
x, key = jnp.arange(3), jax.random.key(7)
print(arrays.array_class() is type(x), isinstance(key, arrays.array_class()))
ref = jax.new_ref(x)
print(arrays.buffer_of(x), arrays.buffer_of(key).tolist(), arrays.buffer_of(ref).tolist(),
      arrays.array_of_ref(ref) is arrays.buffer_of(ref), arrays.array_of_ref(key))
def shard(array):
    return np.asarray(array.addressable_shards[0].data).tolist()
before = shard(arrays.array_of_ref(ref))
ref[0] = 9
print(before, shard(arrays.array_of_ref_now(ref)))
ref[0] = 0
read = arrays.host_words(x)
print(type(read) is np.ndarray, read.tolist(), x._npy_value is None)
whole = jax.NamedSharding(jax.make_mesh((2,), ("d",)), jax.P())
parts = [jax.device_put(np.full(2, i), d) for i, d in enumerate(jax.devices())]
unequal = jax.make_array_from_single_device_arrays((2,), whole, parts)
held = arrays.device_arrays(unequal)
print([(arrays.host_words(each).tolist(), *each.devices()) for each in held] ==
      [([i, i], d) for i, d in enumerate(jax.devices())])

class Hooks:
    looks_at_values, seen = False, []
    def is_recorded(self, executable): return True
    def depth(self): return 0
    def before(self, executable, arguments):
        if "fill" in dispatch.executable_name(executable):
            self.seen.append([each is arrays.buffer_of(ref)
                              for each in arrays.refs_written(executable, arguments)])
    def made(self, depth, results, written): self.seen.append(len(written))
    def failed(self, depth, error): pass
    def done(self, depth): pass

dispatch.hook_dispatches(Hooks())
@jax.jit
def fill(r, unused, y): r[...] = y * 2
@jax.jit
def fill_closed(y): ref[...] = y * 3
fill(ref, 5, x); fill_closed(x); jax.jit(lambda y: y + 1)(x)
print(Hooks.seen, arrays.buffer_of(ref).tolist())
"""


LANES = """
import threading, jax, jax.numpy as jnp
from jax._src import pjit
from jaxnb.compat.jax_runtime import separate_main_thread
print(repr(separate_main_thread()), repr(separate_main_thread()))
run, waits, go, traced = pjit._run_python_pjit, threading.Event(), threading.Event(), []
def call(*rest):
    is_main = threading.current_thread() is threading.main_thread()
    if rest[2].__name__ == "f" and not is_main: waits.set(); go.wait()
    return run(*rest)
pjit._run_python_pjit = call
@jax.jit
def f(x): traced.append(x); return x + 1
found = []
thread = threading.Thread(target=lambda: found.append(float(f(1.0)))); thread.start()
waits.wait(); print(float(f(1.0)), found); go.set(); thread.join(); print(found, len(traced))
"""


PRINTS = {
    "the main thread does not wait for another's first call": (LANES, """\
'' ''
2.0 []
[2.0] 1"""),
    "what an array holds is known and read without a copy that is kept": (ARRAYS, """\
True False
None [0, 7] [0, 1, 2] True None
[0, 1, 2] [9, 1, 2]
True [0, 1, 2] True
True
[[True], 1, [True], 1, 0] [0, 3, 6]"""),
    "every call is reported, its used arguments, and what it raised": (TOLD, """\
''
[3. 3. 3.] [2, 2, 2]
[0. 0. 0.] [] 4
[2, 2, 2]
[2, (7, 'RuntimeError')]
[2, 2]
[1, 1]
[2, 1]
[]
[1, 2]
[]
[('jit(f)', 7, 2, 1)]"""),
    "an executable says what it is": (EXECUTABLE, """\
jit(f) True
[((3,), 'float32')]
True False True
True False True
[0, 7] None
None
True
''
False True
('xla_cpu_enable_fast_math=True',) True
[] None (0, 1)
…
{True} False
7 sin
0 0.0"""),
    "programs are read from their serialized form": (HLO, """\
jit_f 1 4 True
[('all-to-all', '<string>:11', ((0, 1, 2, 3),), None), ('while', '<string>:11', (), 3)]
(3, 2, 1, 0) None
True False
32
True True False
<string>:11"""),
}  # fmt: skip
"""Each snippet, and what it prints; anything may stand for `…`."""


def test_snippets_print_what_they_should(python: Python) -> None:
    printed = {name: python(snippet) for name, (snippet, _) in PRINTS.items()}
    for name, (_, expected) in PRINTS.items():
        pattern = ".*".join(map(re.escape, expected.split("…")))
        assert re.fullmatch(pattern, printed[name]), f"{name}:\n{printed[name]}"


def test_a_jax_that_tells_of_no_dispatches_is_told(python: Python) -> None:
    state = "from jax._src import pjit; del pjit._get_fastpath_data"
    assert python(f"{HOOKS}\n{state}\nprint(dispatch.hook_dispatches(hooks) != '')") == "True"
