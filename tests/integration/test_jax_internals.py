"""Every private JAX name that jaxnb uses, against the installed JAX.

What starts a backend or a service runs in a process of its own.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from jaxnb.compat import (
    jax_arrays,
    jax_compiling,
    jax_dispatch,
    jax_pitfalls,
    jax_programs,
    jax_runtime,
)
from support.fixtures import until

FORKS = str(Path(__file__).with_name("forked_python.py"))

PRELUDE = """
import atexit, os, shutil, socket, tempfile
from jaxnb.compat import jax_runtime as internals
from jaxnb.errors import StartError
folder = tempfile.mkdtemp()
atexit.register(shutil.rmtree, folder)
address = f"unix:{folder}/service"
"""


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


MODULES = (
    jax_arrays, jax_compiling, jax_dispatch, jax_pitfalls, jax_programs, jax_runtime
)  # fmt: skip


PROVED_ELSEWHERE = {
    "comparable", "literal_lines", "literals_digest", "program_lines", "reporting",
    "separate_main_thread", "is_ready", "wait_until_ready",
}  # fmt: skip
"""Of texts, in `unit`; what each hook is wrapped in; what each process with a thread does,
and each read of an array."""


def test_every_function_has_a_test_here() -> None:
    names = [
        name
        for module in MODULES
        for name, each in inspect.getmembers(module, inspect.isfunction)
        if each.__module__ == module.__name__ and not name.startswith("_")
    ]
    tests = {
        node.func.attr
        for node in ast.walk(
            ast.parse(PRELUDE + "".join(snippet for snippet, _ in PRINTS.values()))
        )
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    assert set(names) - PROVED_ELSEWHERE <= tests


def is_private(node: ast.AST) -> bool:
    """Whether a piece of code reaches into JAX."""
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").startswith(("jax._src", "jaxlib"))
    if isinstance(node, ast.Import):
        return any(alias.name.startswith(("jax._src", "jaxlib")) for alias in node.names)
    return isinstance(node, ast.Attribute) and node.attr == "_src"


def test_private_names_are_used_in_these_modules_only() -> None:
    package = Path(jax_runtime.__file__).parents[1]
    users = {
        file.relative_to(package).as_posix()
        for file in package.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if is_private(node)
    }
    assert users == {f"compat/{module.__name__.rpartition('.')[2]}.py" for module in MODULES}


SERVICE = """
service = internals.start_coordination_service(address, 1)
socket.socket(socket.AF_UNIX).connect(f"{folder}/service")
print("listens")
"""

CONNECT = """
from jax._src import distributed
service = internals.start_coordination_service(address, 1)
internals.connect_coordination_service(address, 0, 1, timeout_seconds=60)
state = distributed.global_state
print(state.coordinator_address == address, state.process_id, state.num_processes)
state.client.key_value_set("greeting", "hello")
print(state.client.blocking_key_value_get("greeting", 60_000))
"""

GLOO = """
import jax
service = internals.start_coordination_service(address, 1)
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_cpu_collectives_implementation", "gloo")
internals.connect_coordination_service(address, 0, 1, timeout_seconds=60)
runtime, made = internals.runtime(), []
make = runtime.make_gloo_tcp_collectives
def record(**settings):
    made.append(settings["hostname"])
    return make(**settings)
runtime.make_gloo_tcp_collectives = record
internals.bind_gloo_to("127.0.0.1")
print(jax.device_count(), jax.process_count(), made)
"""

INITIALIZED = """
import jax
print(internals.backends_are_initialized())
jax.config.update("jax_platforms", "cpu")
jax.devices()
print(internals.backends_are_initialized())
"""

PRELOAD = """
import sys
import jax.numpy
internals.preload()
print("jaxlib.mlir.dialects.mhlo" in sys.modules, internals.backends_are_initialized())
"""

KEYS = """
service = internals.start_coordination_service(address, 1)
internals.connect_coordination_service(address, 0, 1, timeout_seconds=60)
client = internals.coordination_client()
client.key_value_set("word", "said")
assert client.blocking_key_value_get("word", 60_000) == "said"
client.key_value_delete("word")
try: client.blocking_key_value_get("word", 1)
except Exception as error: print("DEADLINE_EXCEEDED" in str(error))
"""

JIT = """
import jax
@jax.jit
def f(x): return x + 1
print(internals.jit_settings(f).out_shardings_leaves[0] is not None, internals.jit_settings(len))
settings = internals.jit_settings(f)._replace(static_argnums=(0,))
again = internals.jit_again(f, settings)
print(again is not f, int(again(1)), internals.jit_settings(again) is settings)
"""

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

COMPILING = """
from jaxnb.compat import jax_compiling as compiling, jax_programs as hlo
import jax, numpy as np
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
kept, told = {}, []
def make(wanted):
    if wanted.program != "jit(f)":
        return wanted.compile()
    if wanted.key not in kept:
        executable = wanted.compile()
        kept[wanted.key] = compiling.serialized(executable), wanted.lines
        told.append("compiled")
        return executable
    data, places = kept[wanted.key]
    executable = wanted.load(data)
    told.append(compiling.has_lines_of(executable, places, wanted.lines))
    return executable
print(repr(compiling.hook_compilations(make)))
def defined(lines, factor=2, order=slice(None)):
    mesh = jax.sharding.Mesh(jax.devices()[order], ("x",))
    code = chr(10) * lines + "def f(x):" + chr(10) + f"    return jax.lax.psum(x, 'x') * {factor}"
    space = {"jax": jax}
    exec(compile(code, "<cell 1>", "exec"), space)
    return jax.jit(jax.shard_map(space["f"], mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P()))
def line(f):
    compiled = f.lower(x).compile()
    (program,) = hlo.programs(compiled)
    found = [each for known in program.computations.values() for each in known if each.kind]
    return found[0].source.line, len(hlo.moved_in(compiled.runtime_executable())) > 0
x = np.arange(4, dtype=np.float32)
for f in defined(0), defined(5), defined(0, 3), defined(0, 2, slice(None, None, -1)), defined(0):
    print(f(x).tolist(), line(f), told)
    told.clear()
compiled = jax.jit(lambda a: a).lower(x).compile().runtime_executable()
print(compiling.has_lines_of(compiled, (("a", 1, 1),), (("a", 2, 1), ("a", 3, 1))))
"""

PITFALLS = """
from jaxnb.compat import jax_pitfalls as pitfalls
import jax, numpy as np
import jax.numpy as jnp
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)

class Hooks:
    def __getattr__(self, name): return lambda *_: print(name)
    def lowered(self, read):
        found = read()
        if found.name == "step":
            print(found.name, found.source.split()[0], found.file)
"""

LISTENED = (
    PITFALLS
    + """
print(pitfalls.hook_pitfalls(Hooks()))
table = np.ones((3, 4), np.float32)
inner = jax.jit(lambda a: a @ table)
@jax.jit
def step(tree, rate): return inner(tree["w"]) * rate
mesh = jax.make_mesh((2,), ("d",))
w = jax.device_put(np.ones((2, 3), np.float32), jax.NamedSharding(mesh, jax.P("d")))
for _ in range(2): step({"w": w}, 2.0)
step.lower({"w": np.ones((1, 3), np.float32)}, 2.0)
jax.pmap(lambda a: a)(jnp.ones(2)); jax.jit(jax.pmap(lambda a: a))(jnp.ones(2))
from jax.experimental import multihost_utils
multihost_utils.assert_equal(np.ones(2))
"""
)

ITERATED = (
    PITFALLS
    + """
def raised(call):
    try: call()
    except BaseException as error: return pitfalls.iterates_over_parts(error)
def fail(): assert False
class Spread:
    ndim = 1
    is_fully_replicated = is_fully_addressable = False
print(raised(lambda: type(jnp.ones(2)).__iter__(Spread())), raised(fail))
"""
)

NAMED = """
from jaxnb.compat import jax_pitfalls as pitfalls
import jax, jax.numpy as jnp
jax.config.update("jax_traceback_filtering", "tracebackhide")  # as JAX does under IPython
mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
def mapped(f):
    return jax.shard_map(f, mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P("d"))
def raised(told, call):
    try: call()
    except BaseException as error: return told(error)
def fail(a): raise ValueError
psum = lambda a: jax.lax.psum(a, "q")
print(raised(lambda e: pitfalls.unbound_axis(e), lambda: psum(1.0)),
      raised(lambda e: pitfalls.unbound_axis(e), lambda: mapped(psum)(jnp.ones(2))),
      raised(lambda e: pitfalls.unbound_axis(e), lambda: fail(1)),
      raised(lambda e: pitfalls.in_eager_shard_map(e), lambda: mapped(fail)(jnp.ones(2))),
      raised(lambda e: pitfalls.in_eager_shard_map(e), lambda: jax.jit(mapped(fail))(jnp.ones(2))))
"""

INITIALIZE = """
import jax
internals.accept_initialize(1, 2)
jax.distributed.initialize()
jax.distributed.initialize("localhost:1234", num_processes=2, process_id=1)
try: jax.distributed.initialize(num_processes=3)
except RuntimeError as error: print("but this is process 1 of 2" in str(error))
jax.distributed.shutdown()
print(jax.distributed.is_initialized())
"""

EXACT = """
from jaxnb.compat import jax_arrays as exact
import jax, jax.numpy as jnp
weak = jnp.asarray(2.0)
again = exact.make_array(weak.aval, weak.sharding, [weak], committed=False)
print(again.aval == weak.aval, again.weak_type, again.committed)
gone = jnp.ones(3)
gone.delete()
print(exact.is_deleted(weak), exact.is_deleted(gone))
ref = exact.make_ref(jnp.arange(3.0))
ref[0] = 5.0
print(type(ref) is type(jax.new_ref(1.0)), jax.jit(lambda r: r[...])(ref))
"""

PYTREES = """
from jaxnb.compat import jax_arrays as pytrees
import collections, dataclasses, jax
tree = jax.tree_util
@tree.register_dataclass
@dataclasses.dataclass
class Data:
    a: int
    b: int = dataclasses.field(metadata=dict(static=True))
class Keyed(list): pass
key = tree.SequenceKey(0)
tree.register_pytree_with_keys(
    Keyed, lambda v: (((key, v[0]),), None), lambda _, parts: Keyed(parts))
class Plain(list): pass
tree.register_pytree_node(Plain, lambda v: (v, None), lambda _, parts: Plain(parts))
print(pytrees.is_registered(Data), pytrees.is_registered(int), pytrees.registration_of(int))
for kind in (Data, Keyed, Plain):
    flatten, unflatten = pytrees.registration_of(kind)
    value = kind(1, 2) if kind is Data else kind([1])
    parts, rest = flatten(value)
    print([*parts], unflatten(rest, parts) == value)
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

OF_TWO = """
index = int(os.fork() == 0)
from jaxnb.compat import jax_arrays as arrays
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
if index == 0: service = internals.start_coordination_service(address, 2)
internals.connect_coordination_service(address, index, 2, timeout_seconds=60)
internals.bind_gloo_to("127.0.0.1")
mesh = jax.sharding.Mesh(jax.devices(), ("d",))
if index == 1:
    internals.coordination_client().wait_at_barrier("end", 40_000)
    os._exit(0)
told, parts = [], []
def take():
    taken = [each.shape for each in told]
    told.clear()
    return taken
def created(array, of):
    if not array.is_fully_addressable: told.append(array)
print(repr(arrays.hook_creations(created)))
print(repr(arrays.hook_parts(lambda array, those: parts.append((array.shape, len(those))))))
split, whole = jax.NamedSharding(mesh, jax.P("d")), jax.NamedSharding(mesh, jax.P())
x = jax.make_array_from_callback((8,), split, lambda i: np.arange(8)[i]); print(take())
y = jax.make_array_from_callback((), whole, lambda i: np.float32(3)); print(take())
parts = arrays.device_arrays(x)
z = jax.make_array_from_single_device_arrays((8,), split, parts); print(take())
here = jax.device_put(np.ones(2), jax.local_devices()[0]) + 1; print(take())
print([arrays.host_words(each).tolist() for each in parts], take())
parts.clear(); x.addressable_shards, y.addressable_data(0); print(parts)
from jaxnb.compat import jax_runtime as barriers
import contextlib
met = []
@contextlib.contextmanager
def around(name, who): met.append((name, who)); yield; met.append("over")
print(repr(barriers.hook_barriers(around)))
internals.coordination_client().wait_at_barrier("mine", 9_000, [0]); print(met)
puts, given = [], []; print(repr(arrays.hook_puts(
    lambda array, before: puts.append((array, before)), lambda *those: given.append(those))))
local = jax.NamedSharding(jax.sharding.Mesh(jax.local_devices(), ("d",)), jax.P("d"))
w = jax.device_put(np.ones(2), local); print(puts[0][0] is w, puts[0][1].shape, len(puts))
print(given[0][0] is w, given[0][1].tolist(), len(given))
internals.coordination_client().wait_at_barrier("end", 40_000)
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

UNCHECKED = (
    """
import jax
jax.config.update("jax_num_cpu_devices", 4)
"""
    + HOOKS
    + """
import jax.export
from jaxnb.compat import jax_dispatch as unchecked
dispatch.hook_dispatches(hooks)
print(repr(unchecked.note_unchecked_results()))
auto = (jax.sharding.AxisType.Auto,) * 2
mesh, P = jax.make_mesh((2, 2), ("x", "y"), axis_types=auto), jax.P
def mapped(out, check=False, f=lambda v: v * 2, axes={"x", "y"}):
    return jax.jit(jax.shard_map(
        f, mesh=mesh, in_specs=P("x"), out_specs=out, check_vma=check, axis_names=axes))
v = jax.device_put(np.ones(4), jax.NamedSharding(mesh, P("x")))
pair = lambda v: (v, v + 1)
for each in (mapped(P()), mapped(P("x")), mapped(P(("x", "y"))), mapped(P("x"), axes={"x"}),
             mapped(P("x"), True), mapped((P("x"), P(("x", "y"))), f=pair)):
    each(v)
    print(unchecked.unchecked_axes(hooks.executables[-1]))
jax.jit(lambda v: (mapped(P())(v), mapped(P("y"))(v)))(v)
print(unchecked.unchecked_axes(hooks.executables[-1]))
jax.shard_map(lambda v: v * 2, mesh=mesh, in_specs=P("x"), out_specs=P("y"), check_vma=False)(v)
print([unchecked.unchecked_axes(each) for each in hooks.executables[-3:]])
print(len(jax.export.export(mapped(P()))(v).out_avals))
"""
)

PRINTS = {
    "programs tell over which axes they declare results replicated, unchecked": (UNCHECKED, """\
''
('x', 'y')
('y',)
()
()
()
('y',)
('x', 'y')
[(), (), ('x',)]
1"""),
    "an executable is loaded for an equal program, with that program's lines": (COMPILING, """\
''
[12.0] (2, False) ['compiled']
[12.0] (7, True) [True]
[18.0] (2, False) ['compiled']
[12.0] (2, False) [True]
[12.0] (2, False) [True]
False"""),
    "the main thread does not wait for another's first call": (LANES, """\
'' ''
2.0 []
[2.0] 1"""),
    "preload imports and starts no backend": (PRELOAD, """\
True False"""),
    "the service listens": (SERVICE, """\
listens"""),
    "a client joins and the global state takes it": (CONNECT, """\
True 0 1
hello"""),
    "keys of the service are read, deleted and waited for": (KEYS, """\
True"""),
    "what a function was jitted with is known and can be changed": (JIT, """\
True None
True 2 True"""),
    "arrays can be made exactly as they were": (EXACT, """\
True True False
False True
True [5. 1. 2.]"""),
    "how a class was registered is known and can be done again": (PYTREES, """\
True False None
[1] True
[1] True
[1] True"""),
    "what an array holds is known and read without a copy that is kept": (ARRAYS, """\
True False
None [0, 7] [0, 1, 2] True None
[0, 1, 2] [9, 1, 2]
True [0, 1, 2] True
True
[[True], 1, [True], 1, 0] [0, 3, 6]"""),
    "arrays of two processes are reported once when they are made": (OF_TWO, """\
''
''
[(8,)]
[()]
[(8,)]
[]
[[0, 1], [2, 3]] []
[((8,), 2), ((), 1)]
''
[('mine', [0]), 'over']
''
True (2,) 1
True [1.0, 1.0] 1"""),
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
    "what is lowered, traced and moved is reported": (LISTENED, """\
{}
step step <string>
traced_pmap…"""),
    "going through an array not all here is no other assertion": (ITERATED, """\
True False"""),
    "an axis without a meaning and an eager shard_map": (NAMED, """\
q q  True False"""),
    "initialize is taken once processes are joined": (INITIALIZE, """\
True
False"""),
    "gloo has the address": (GLOO, """\
1 1 ['127.0.0.1']"""),
    "backends are initialized by the first use": (INITIALIZED, """\
False
True"""),
}  # fmt: skip
"""Each snippet, and what it prints; anything may stand for `…`."""


def printed(python: Python, snippet: str) -> list[str]:
    """Returns what a snippet prints, or why it has failed."""
    try:
        return python(snippet).splitlines()
    except AssertionError as error:
        return str(error).splitlines()


def is_as(line: str, expected: str) -> bool:
    return line == expected or (expected.endswith("…") and line.startswith(expected[:-1]))


def test_snippets_print_what_they_should(python: Python) -> None:
    other = {}
    for name, (snippet, expected) in PRINTS.items():
        lines, wanted = printed(python, snippet), expected.splitlines()
        if len(lines) != len(wanted) or not all(map(is_as, lines, wanted)):
            other[name] = lines
    assert other == {}


def test_a_jax_that_tells_of_no_dispatches_is_told(python: Python) -> None:
    state = "from jax._src import pjit; del pjit._get_fastpath_data"
    assert python(f"{HOOKS}\n{state}\nprint(dispatch.hook_dispatches(hooks) != '')") == "True"


def test_a_jax_that_does_not_tell_of_a_pitfall_tells_of_the_others(python: Python) -> None:
    state = "from jax._src.interpreters import pxla; del pxla.lower_sharding_computation"
    code = f"{PITFALLS}\n{state}\nprint(*pitfalls.hook_pitfalls(Hooks()))"
    assert python(code) == "recompiled"
