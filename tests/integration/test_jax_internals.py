"""The private names of JAX by which every call is reported, against the installed JAX.

Whether the others do their work is shown by the tests of what they are for.
"""

from __future__ import annotations

import subprocess
import sys

import pytest


def printed(code: str) -> str:
    """Runs code in a process of its own; returns what it prints."""
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


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
}  # fmt: skip
"""Each snippet, and what it prints."""


@pytest.mark.parametrize("what", PRINTS)
def test_a_snippet_prints_what_it_should(what: str) -> None:
    snippet, expected = PRINTS[what]
    assert printed(snippet) == expected
