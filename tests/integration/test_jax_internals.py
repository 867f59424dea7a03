"""Every private JAX name that jaxnb uses, against the installed JAX.

What starts a backend or a service runs in a process of its own.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from jaxnb.engine import _jax_internals

PRELUDE = """
import socket
from jaxnb.engine import _jax_internals as internals
from jaxnb.engine.coordination import free_port
from jaxnb.errors import StartError
port = free_port("127.0.0.1")
address = f"127.0.0.1:{port}"
"""


def python(code: str) -> str:
    """Runs code in a fresh interpreter; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_function_has_a_test_here() -> None:
    names = [
        name
        for name, _ in inspect.getmembers(_jax_internals, inspect.isfunction)
        if _.__module__ == _jax_internals.__name__ and not name.startswith("_")
    ]
    tests = {
        node.func.attr
        for node in ast.walk(ast.parse(PRELUDE + "".join(SNIPPETS)))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    assert set(names) <= tests


def is_private(node: ast.AST) -> bool:
    """Whether a piece of code reaches into JAX."""
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").startswith(("jax._src", "jaxlib"))
    if isinstance(node, ast.Import):
        return any(alias.name.startswith(("jax._src", "jaxlib")) for alias in node.names)
    return isinstance(node, ast.Attribute) and node.attr == "_src"


def test_private_names_are_used_in_this_module_only() -> None:
    package = Path(_jax_internals.__file__).parents[1]
    users = {
        file.relative_to(package).as_posix()
        for file in package.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if is_private(node)
    }
    assert users == {"engine/_jax_internals.py"}


SERVICE = """
service = internals.start_coordination_service(address, 1)
socket.create_connection(("127.0.0.1", port)).close()
print("listens")
"""

CONNECT = """
from jax._src import distributed
service = internals.start_coordination_service(address, 1)
internals.connect_coordination_service(address, 0, 1, timeout_seconds=20)
state = distributed.global_state
print(state.coordinator_address == address, state.process_id, state.num_processes)
state.client.key_value_set("greeting", "hello")
print(state.client.blocking_key_value_get("greeting", 1000))
"""

GLOO = """
import jax
service = internals.start_coordination_service(address, 1)
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_cpu_collectives_implementation", "gloo")
internals.connect_coordination_service(address, 0, 1, timeout_seconds=20)
runtime, made = internals._runtime(), []
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

LEAVE = """
from jax._src import distributed
service = internals.start_coordination_service(address, 1)
internals.connect_coordination_service(address, 0, 1, timeout_seconds=20)
internals.leave_coordination_service()
print(distributed.global_state.client)
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

SNIPPETS = (SERVICE, CONNECT, GLOO, INITIALIZED, PRELOAD, LEAVE, JIT)


def test_preload_imports_and_starts_no_backend() -> None:
    assert python(PRELOAD) == "True False"


def test_get_distributed_runtime_service_listens() -> None:
    assert python(SERVICE) == "listens"


def test_get_distributed_runtime_client_joins_and_global_state_takes_it() -> None:
    assert python(CONNECT).splitlines() == ["True 0 1", "hello"]


def test_the_client_is_gone_when_it_was_left() -> None:
    assert python(LEAVE) == "None"


def test_what_a_function_was_jitted_with_is_known_and_can_be_changed() -> None:
    assert python(JIT).splitlines() == ["True None", "True 2 True"]


def test_global_state_has_the_fields_that_are_set() -> None:
    from jax._src import distributed

    for field in ("coordinator_address", "process_id", "num_processes", "client"):
        assert hasattr(distributed.global_state, field)


def test_backend_factories_make_gloo_with_an_address() -> None:
    assert python(GLOO) == "1 1 ['127.0.0.1']"


def test_make_cpu_client_takes_collectives() -> None:
    from jax._src import xla_bridge

    assert "collectives" in inspect.signature(xla_bridge.make_cpu_client).parameters
    factory = xla_bridge._backend_factories["cpu"]
    assert callable(factory.factory)


def test_backends_are_initialized_by_the_first_use() -> None:
    assert python(INITIALIZED).split() == ["False", "True"]


def test_a_jax_without_the_service_is_told() -> None:
    code = """
internals._runtime = lambda: object()
try:
    internals.start_coordination_service(address, 1)
except StartError as error:
    print(error)
"""
    assert python(code).startswith("This jaxlib has no get_distributed_runtime_service")


@pytest.mark.parametrize(
    "state", ["del xla_bridge._backend_factories", "xla_bridge._backend_factories.clear()"]
)
def test_a_jax_without_backend_factories_is_told(state: str) -> None:
    code = f"""
from jax._src import xla_bridge
{state}
try:
    internals.bind_gloo_to("127.0.0.1")
except StartError as error:
    print(error)
"""
    assert python(code).startswith("This JAX offers no way to bind gloo to an address")
