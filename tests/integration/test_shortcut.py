"""The short way of recorded dispatches, against JAX's own paths, each in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys

import jax
import pytest

pytestmark = pytest.mark.timing


PRELUDE = """
import gc, inspect, weakref
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding
from jaxnb.compat import jax_dispatch
from jaxnb.compat import jax_fast_path

jax.config.update("jax_num_cpu_devices", 2)

class Hooks:
    looks_at_values = False
    # Told of what is called "told": by either way, and how often JAX's Python path was gone.
    def __init__(self):
        self.told, self.python, self.noted, self.raised = [], 0, None, []
    def is_recorded(self, executable):
        return "told" in jax_dispatch.executable_name(executable)
    def depth(self): return 0
    def before(self, executable, arguments):
        if self.is_recorded(executable):
            self.python += 1
            if self.noted is not executable:
                self.told.append(len(jax_dispatch.executable_inputs(executable, arguments)))
            self.noted = None
    def again(self, executable, first):
        used, count = len(jax_dispatch.executable_inputs(executable, first)), len(first)
        def tell(arguments):
            assert len(arguments) == count
            self.told.append(used)
            self.noted = executable
        return tell
    def made(self, depth, results, written): pass
    def failed(self, depth, error): self.raised.append(type(error).__name__)
    def done(self, depth): self.noted = None

def count(hooks):
    told, python = len(hooks.told), hooks.python
    hooks.told.clear(); hooks.python = 0
    return told, python

hooks = Hooks()
short = jax_fast_path.Shortcut(hooks)
"""
INSTALL = """
WAY = "Shortcut._way.<locals>.<lambda>"
assert jax_dispatch.hook_dispatches(hooks) == ""
assert short.install() == ""
def ways():
    gc.collect()
    return [f for f in gc.get_objects() if getattr(f, "__qualname__", "") == WAY]
"""


def python(code: str, install: str = INSTALL) -> list[str]:
    """Runs code in a fresh interpreter; returns the lines that it printed."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + install + code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_every_call_is_told_of_and_few_take_the_python_path() -> None:
    code = """
def told(x, y, unused): return {"product": x * y, "sum": [x + y]}
f = jax.jit(told)
x, y = jnp.ones(3), jnp.full(3, 2.0)
for i in range(5): z = f(x, y, 1)
print(jax.tree.map(np.asarray, z), count(hooks))
for i in range(5): z = f(x, np.full(3, i, np.float32), unused=0)
print(z["product"], count(hooks))
for i in range(5): z = f(x, float(i), 0)
print(z["product"], count(hooks))
"""
    assert python(code) == [
        "{'product': array([2., 2., 2.], dtype=float32), "
        "'sum': [array([3., 3., 3.], dtype=float32)]} (5, 1)",
        "[4. 4. 4.] (5, 1)",
        "[4. 4. 4.] (5, 1)",
    ]


# What a call is given, or what it is called under, so that another program must run than before:
# a first call, the change, a second one. ``f`` must return what JAX alone returns.
CHANGES = {
    "values": "x = x + 1",
    "shape": "x = jnp.ones(7)",
    "dtype": "x = jnp.ones(8, jnp.int32)",
    "weak type": "x = 2.0",
    "sharding": "x = jax.device_put(x, shardings[0])",
    "another sharding": "x = jax.device_put(x, shardings[1])",
    "committed": "x = jax.device_put(x, jax.devices()[0])",
    "device": "x = jax.device_put(x, jax.devices()[1])",
    "memory of NumPy": "x = np.ones(8, np.float32)",
    "NumPy's double": "x = np.ones(8)",
    "structure": "x = {'a': x, 'b': [x]}",
    "mesh": "jax.set_mesh(jax.make_mesh((2,), ('q',), axis_types=(jax.sharding.AxisType.Auto,)))",
    "x64": "jax.config.update('jax_enable_x64', True)",
    "default device": "jax.config.update('jax_default_device', jax.devices()[1])",
    "precision": "jax.config.update('jax_default_matmul_precision', 'highest')",
    "keys": "x = jax.random.split(jax.random.key(3), 8)",
    "key data": "x = jax.random.key_data(jax.random.key(3))",
    "static argument": "n = 3",
    "caches": "jax.clear_caches()",
    "the function's own cache": "f.clear_cache()",
    "bool": "x = True",
    "layout": "x = jax.device_put(jnp.ones((4, 2)), layout)",
    "token": "x = jnp.zeros((0,))",
}


@pytest.mark.parametrize("donate", ["", ", donate_argnums=0"])
@pytest.mark.parametrize("static", [True, False])
def test_what_runs_is_what_jax_would_run(donate: str, static: bool) -> None:
    """After any change, in both directions, on 2 devices; three times each.

    The second and third call go the short way.
    """
    changes = [code for name, code in CHANGES.items() if static or name != "static argument"]
    settings = f"static_argnums=1{donate}" if static else donate.removeprefix(", ")
    code = f"""
from jax.experimental.layout import Format, Layout
mesh = jax.make_mesh((2,), ("p",), axis_types=(jax.sharding.AxisType.Auto,))
shardings = [NamedSharding(mesh, jax.P("p")), NamedSharding(mesh, jax.P())]
layout = Format(Layout((0, 1)), NamedSharding(mesh, jax.P("p", None)))
settings = {{each: getattr(jax.config, each) for each in
            ("jax_enable_x64", "jax_default_device", "jax_default_matmul_precision")}}

def told(x, n):
    if jax.dtypes.issubdtype(jax.tree.leaves(x)[0].dtype, jax.dtypes.prng_key):
        return jax.random.key_data(x), x
    return jax.tree.map(lambda leaf: leaf * n + 1, x), jnp.arange(3) / 2

def facts(y):
    return [(type(leaf).__name__, str(leaf.aval), str(leaf.sharding), leaf._committed,
             leaf.weak_type if hasattr(leaf, "weak_type") else None,
             np.asarray(jax.random.key_data(leaf) if "key" in str(leaf.dtype) else leaf).tolist())
            for leaf in jax.tree.leaves(y)]

def again(function, x, n):  # a donated argument can be used once
    return facts(function(jax.tree.map(lambda leaf: leaf.copy() if hasattr(leaf, "copy") else leaf,
                                       x), *([n] if {static} else [])))

if not {static}:
    both = told
    def told(x): return both(x, 2)
for change in {changes!r}:
    f = jax.jit(told, {settings})
    alone = jax.jit(lambda *given: told(*given), {settings})
    start, n = jnp.ones(8), 2
    x = start
    for _ in range(3): assert again(f, x, n) == again(alone, x, n)
    exec(change)
    for _ in range(3): assert again(f, x, n) == again(alone, x, n), change
    for name, value in settings.items(): jax.config.update(name, value)
    jax.set_mesh(None) if "set_mesh" in change else None
    for _ in range(3): assert again(f, start, 2) == again(alone, start, 2), change
    told_of, of_python = count(hooks)
    assert told_of == 9, (change, told_of)
    print(of_python < 9, end=" ")
"""
    assert python(code) == ["True " * len(changes)]


def test_meshes_that_are_alike_are_told_apart() -> None:
    """Meshes of one shape and one set of names, over devices in another order, or over others."""
    install = INSTALL.replace("assert", "jax.config.update('jax_num_cpu_devices', 4)\nassert", 1)
    code = """
from jax.sharding import AxisType, Mesh
devices = np.array(jax.devices())
P = jax.P

def constrained(x): return jax.lax.with_sharding_constraint(x * 2, P("p"))
def plain(x): return x * 2
def add_index(x): return x + jax.lax.axis_index("p")
def mapped(x): return jax.shard_map(add_index, in_specs=P("p"), out_specs=P("p"))(x)
def told(function):
    def told(*given): return function(*given)
    return told

def facts(function, *given):
    try: y = function(*given)
    except ValueError as error: return str(error)[:40]
    return [(shard.device.id, np.asarray(shard.data).tolist()) for shard in y.addressable_shards]

for kind in AxisType.Auto, AxisType.Explicit:
    meshes = [Mesh(each, ("p",), axis_types=(kind,))
              for each in (devices[:2], devices[1::-1], devices[2:])]
    with jax.set_mesh(meshes[0]): committed = jax.device_put(np.arange(8.0), P("p"))
    cases = [(plain, {"out_shardings": P("p")}, jnp.arange(8.0)),
             (plain, {"out_shardings": P("p")}, committed), (plain, {}, committed),
             (lambda: jnp.arange(8.0), {"out_shardings": P("p")})]
    if kind is AxisType.Auto:
        cases += [(each, {}, given) for each in (constrained, mapped)
                  for given in (jnp.arange(8.0), np.arange(8.0))]
    for function, settings, *given in cases:
        f, alone = jax.jit(told(function), **settings), jax.jit(function, **settings)
        seen = []
        for number in 0, 0, 0, 1, 1, 1, 2, 2, 0, 1:
            with jax.set_mesh(meshes[number]):
                seen.append(facts(f, *given))
                assert seen[-1] == facts(alone, *given), (kind, number, settings)
        print(len({str(each) for each in seen}), end=" ")
"""
    assert python(code, install) == ["3 2 2 3 3 3 3 3 3 2 2 3 "]


def test_a_function_whose_cache_is_cleared_is_traced_anew() -> None:
    """With what it refers to changed: its arguments are the same."""
    code = """
def told(x): return x * scale
f, x, scale = jax.jit(told), jnp.ones(3), 2
for _ in range(3): f(x)
scale = 3
print(f(x)[0])
f.clear_cache()
print(f(x)[0])
count(hooks)
for _ in range(3): assert f(x)[0] == 3
print(count(hooks), len(ways()))
f.clear_cache()
print(len(ways()))
"""
    assert python(code) == ["2.0", "3.0", "(3, 0) 1", "0"]


def test_a_function_may_be_jitted_again() -> None:
    """With the same settings it goes the same way; with others another."""
    code = """
def told(x): return x + 1
for _ in range(4): assert jax.jit(told)(jnp.ones(3))[0] == 2
print(count(hooks), len(ways()))
for _ in range(4):
    x = jnp.ones(3)
    jax.jit(told, donate_argnums=0)(x)
    assert x.is_deleted()
print(count(hooks), len(ways()))
for _ in range(20): jax.jit(told)(jnp.ones(3))
print(len(ways()))  # nothing is kept of each
"""
    donated = "(4, 1) 2" if jax.__version_info__ < (0, 11) else "(4, 2) 2"  # C++ keeps it later
    assert python(code) == ["(4, 1) 1", donated, "2"]


def test_keys_on_other_devices_are_told_apart() -> None:
    """Their arrays lie inside of them."""
    code = """
from jax.sharding import Mesh
def told(key): return jax.random.key_data(key)
f = jax.jit(told)
def key(devices):
    sharding = NamedSharding(Mesh(np.array(devices), ("x",)), jax.P())
    return jax.random.wrap_key_data(jax.device_put(np.array([0, 7], np.uint32), sharding))
executables = []
hooks.again = lambda executable, first: lambda arguments: executables.append(executable)
for device in 0, 0, 1, 1:
    assert f(key([jax.devices()[device]])).tolist() == [0, 7]
print(len(executables), len({*map(id, executables)}), len(ways()))
"""
    assert python(code) == ["2 2 2"]


def test_caches_may_be_cleared_while_a_function_compiles() -> None:
    code = """
def told(x):
    jax.clear_caches()  # as another thread may
    return x + 1
for _ in range(3): print(jax.jit(told)(jnp.ones(3))[0])
"""
    assert python(code) == ["2.0"] * 3


def test_donated_arguments_are_gone() -> None:
    code = """
def told(x, y): return x + y
f = jax.jit(told, donate_argnums=0)
for _ in range(4):
    x = jnp.ones(8) * 2
    y = f(x, 1.0)
    print(x.is_deleted(), y[0])
try: f(x, 1.0)
except (RuntimeError, ValueError) as error: print("deleted" in str(error), hooks.raised)
print(count(hooks))
"""
    found = python(code)
    assert found[:4] == ["True 3.0"] * 4
    assert found[4].startswith("True ['")
    assert found[5].startswith("(5, ")


def test_a_function_is_not_looked_at() -> None:
    """Its repr, or that of what its method is of, is code of the user's."""
    code = """
class Net:
    def __repr__(self): raise AttributeError("not set up yet")
    def told(self, x): return x * 2
f = jax.jit(Net().told)
for _ in range(3): print(f(jnp.ones(2)))
print(count(hooks))
"""
    assert python(code) == ["[2. 2.]", "[2. 2.]", "[2. 2.]", "(3, 1)"]


def test_errors_are_jaxs() -> None:
    """Of checks for NaN, of callbacks, of a callee: raised, told of, and the next call is right."""
    code = """
def told(x): return jnp.log(x)
f = jax.jit(told)
for _ in range(3): f(jnp.ones(3))
jax.config.update("jax_debug_nans", True)
try: f(-jnp.ones(3))
except FloatingPointError as error: print("nan" in str(error))
jax.config.update("jax_debug_nans", False)
print(np.isnan(f(-jnp.ones(3))).all(), set(hooks.raised))
hooks.raised.clear()

def fail(x):
    if x.sum() > 5: raise ValueError("too much")
    return np.asarray(x)
def told(x): return jax.pure_callback(fail, x, x)
g = jax.jit(told)
for _ in range(3): g(jnp.ones(3)).block_until_ready()
try: g(jnp.full(3, 4.0)).block_until_ready()
except Exception as error: print("too much" in str(error))
print(g(jnp.ones(3)))
"""
    found = [line for line in python(code) if "Invalid nan value" not in line]  # said by JAX
    assert found == ["True", "True {'InternalFloatingPointError'}", "True", "[1. 1. 1.]"]


def test_transformations_go_jaxs_way() -> None:
    code = """
def told(x): return (x ** 2).sum()
f = jax.jit(told)
x = jnp.arange(3.0)
for _ in range(3):
    f(x)
    print(jax.grad(f)(x), jax.vmap(f)(jnp.ones((2, 3))), jax.jit(lambda x: f(x) + 1)(x),
          jax.eval_shape(f, x).shape)
"""
    assert python(code) == ["[0. 2. 4.] [3. 3.] 6.0 ()"] * 3


def test_nothing_is_held_but_programs() -> None:
    """Neither what a call was given or returned, nor anything after the caches were cleared."""
    code = """
def told(x): return x + 1
f = jax.jit(told)
x = jnp.ones(1000); held = [weakref.ref(x)]
for _ in range(3): y = f(x); held.append(weakref.ref(y))
mesh = jax.make_mesh((2,), ("p",)); sharding = NamedSharding(mesh, jax.P("p"))
z = jax.device_put(np.ones(8), sharding)
for _ in range(3): f(z)
del x, y, z; gc.collect()
print([ref() is None for ref in held], len(ways()))
jax.clear_caches(); gc.collect()
print(len(ways()))
"""
    assert python(code) == ["[True, True, True, True] 2", "0"]


def test_a_functions_programs_go_with_it() -> None:
    """A notebook's cell that makes a function anew leaves nothing of the one before."""
    code = """
def programs(): return len(jax.devices()[0].client.live_executables())
x = jnp.ones(8)
def stays_told(x): return x - 1
stays = jax.jit(stays_told)
stays(x), stays(x)
gc.collect(); before = programs()
for number in range(5):
    def told(x): return x + number
    f = jax.jit(told)
    for _ in range(3): f(x)
print(len(ways()) >= 2, programs() > before)
del f, told; gc.collect()
print(len(ways()), programs() - before)
count(hooks); stays(x)
print(count(hooks))
"""
    assert python(code) == ["True True", "1 0", "(1, 0)"]


def test_the_ways_are_bounded() -> None:
    code = """
def told(x): return x + 1
f = jax.jit(told)
for size in range(20):
    for _ in range(2): assert f(jnp.ones(size)).shape == (size,)
    assert 0 < len(ways()) <= 4
print(count(hooks))
"""
    assert python(code, f"jax_fast_path.MAX_WAYS = 4\n{INSTALL}") == ["(40, 20)"]


@pytest.mark.parametrize(
    ("home", "name"),
    [
        ("jax._src.util", "weakref_lru_cache"),
        ("jax._src.pjit", "_run_python_pjit"),
        ("jax._src.pjit", "jit_evict_fn"),
        ("jax._src.tree_util", "tracing_registry"),
        ("jax._src.dispatch", "needs_check_special"),
        ("jax._src.interpreters.pxla", "cc_shard_arg"),
    ],
)
def test_without_a_name_all_take_the_python_path(home: str, name: str) -> None:
    install = f"""
import {home} as home
assert jax_dispatch.hook_dispatches(hooks) == ""
kept = home.{name}; del home.{name}
assert short.install()
home.{name} = kept  # JAX itself needs it
"""
    code = """
def told(x): return x + 1
f = jax.jit(told)
for _ in range(3): f(np.ones(3, np.float32))
print(count(hooks))
"""
    assert python(code, install) == ["(3, 3)"]
