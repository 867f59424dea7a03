"""Programs that are compiled to see that processes do not take equal ones for different.

Imported in processes of their own: it starts a backend of four CPU devices.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.scipy import linalg

from jaxnb.compat import jax_dispatch

Program = tuple[Callable[..., Any], dict[str, Any]]

MESH: Any = None
SHAPE = (8, 8)


def start() -> None:
    """Starts the backend and has executables note what they were compiled with."""
    global MESH
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 4)
    MESH = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    assert jax_dispatch.note_options_and_arguments() == ""


def over(*spec: Any) -> jax.sharding.NamedSharding:
    return jax.sharding.NamedSharding(MESH, jax.P(*spec))


def text(function: Callable[..., Any], arguments: int = 2, **settings: Any) -> str:
    """Returns what processes compare of a function of matrices spread over the devices."""
    matrix = jax.ShapeDtypeStruct(SHAPE, jnp.float32, sharding=over("a", "b"))
    jitted = jax.jit(function, **settings)
    compiled = jitted.lower(*[matrix] * arguments).compile()
    executable = compiled._executable.unsafe_call
    return f"{jax_dispatch.executable_order(executable)} {jax_dispatch.executable_text(executable)}"


def mapped(f: Callable[..., Any]) -> Callable[..., Any]:
    return jax.shard_map(
        f, mesh=MESH, in_specs=(jax.P("a", "b"),) * 2, out_specs=jax.P(), check_vma=False
    )


def tagged(**tags: Any) -> Callable[..., Any]:
    def f(x: Any, y: Any) -> Any:
        with set_xla_metadata(**tags):
            return jnp.sin(x) @ y

    return f


def random(kind: str) -> Callable[..., Any]:
    def f(x: Any, y: Any) -> Any:
        key = jax.random.split(jax.random.key(3, impl=kind))[1]
        return x + jax.random.normal(key, SHAPE) + y

    return f


def large(change: float) -> Callable[..., Any]:
    constant = np.arange(1 << 16, dtype=np.float32).reshape(256, 256)
    constant[77, 5] += change
    return lambda x, y: (constant @ jnp.ones((256, 8))) @ x + y[0]


def solve(**settings: Any) -> Callable[..., Any]:
    return lambda x, y: linalg.solve_triangular(x, y, **settings)


def plain(x: Any, y: Any) -> Any:
    return jnp.sin(x) @ y


def is_here(kind: str) -> dict[str, Any]:
    return {"out_shardings": over("a").with_memory_kind(kind)}


FAST = "xla_cpu_enable_fast_math"


def same() -> dict[str, Program]:
    """Programs that are the same in processes whose history differs."""
    kinds: dict[str, Program] = {
        "solve_triangular, lower": (solve(lower=True), {}),
        "random bits": (random("threefry2x32"), {}),
        "memory kind": (plain, is_here("pinned_host")),
        "xla_metadata": (tagged(tag="1"), {}),
        "psum": (mapped(lambda x, y: lax.psum(x @ y, "a")[0, 0]), {}),
        "large constant": (large(0), {}),
    }

    @jax.jit
    def foo(y: Any) -> Any:
        def body(i: Any, carry: Any) -> Any:
            foos, acc = carry
            return foos.at[i].set(acc), acc + y[i]

        return lax.fori_loop(0, y.shape[0], body, (jnp.zeros_like(y), jnp.float32(0)))

    @jax.jit
    def bar(x: Any, y: Any) -> Any:
        foos, acc = foo(y)
        return x * foos[:, None], acc

    def of_40312(x: Any, y: Any) -> Any:
        v = y[0]
        for _ in range(2):
            baz, acc = bar(x, v)
            x = baz + acc
        return bar(x, v)[0] * 5.0

    def callbacks(x: Any, y: Any) -> Any:
        seen = jax.pure_callback(lambda z: z, jax.ShapeDtypeStruct(SHAPE, "float32"), x)
        jax.debug.print("sum {}", seen.sum())
        jax.debug.callback(lambda v: None, y.sum())
        return seen + y

    return {
        **kinds,
        "jax#40312": (of_40312, {}),
        "callbacks": (callbacks, {}),
        "inner jits": (lambda x, y: jnp.where(x > 0, bar(x, y[0])[0], jnp.linalg.norm(y)), {}),
        "grad of a scan": (
            jax.grad(lambda x, y: lax.scan(lambda c, z: (jnp.tanh(c @ x), z.sum()), y, x)[0].sum()),
            {},
        ),
    }


def equal() -> dict[str, tuple[Program, Program]]:
    """Pairs that compute the same in the same way, though JAX's text of them differs."""

    def inner() -> Callable[..., Any]:
        @jax.jit
        def scanned(x: Any, y: Any) -> Any:
            jax.debug.callback(lambda v: None, y.sum())
            return lax.fori_loop(0, 3, lambda i, z: jnp.tanh(z @ x), y)

        return scanned

    def thrice(*calls: Callable[..., Any]) -> Program:
        def f(x: Any, y: Any) -> Any:
            for each in calls:
                y = each(x, y) + x
            return y

        return f, {}

    once, other = inner(), inner()

    def elsewhere(first: Any, second: Any) -> Any:
        return jnp.sin(first) @ second

    return {
        # As JAX lowers one function twice where it has forgotten half of what it traced.
        "jax#40312": (thrice(once, once, once), thrice(other, inner(), other)),
        "names and lines": ((plain, {}), (elsewhere, {})),
        "compiler_options in another order": (
            (plain, {"compiler_options": {FAST: True, "xla_llvm_disable_expensive_passes": True}}),
            (plain, {"compiler_options": {"xla_llvm_disable_expensive_passes": True, FAST: True}}),
        ),
        "which function is called back": (
            (lambda x, y: jax.pure_callback(np.sin, jax.typeof(x), x), {}),
            (lambda x, y: jax.pure_callback(np.cos, jax.typeof(x), x), {}),
        ),
    }


def live(history: str) -> list[Any]:
    """Makes this process one with a history of its own; returns what has to be kept alive."""
    kept: list[Any] = []
    spec = jax.ShapeDtypeStruct(SHAPE, jnp.float32)
    if history:  # what the issue does
        for _ in range(40):
            inner = jax.jit(lambda z: z + 1.0)
            outer = jax.jit(lambda z, inner=inner: inner(z) * 2.0)
            outer.lower(spec)
            kept.append(outer)
        # The same programs, and parts of them, from other lines.
        functions = same()
        for name in ("jax#40312", "inner jits", "solve_triangular, lower"):
            f = functions[name][0]
            kept.append(jax.jit(lambda x, y, f=f: f(x, y) * 3.0).lower(spec, spec))
            kept.append(jax.make_jaxpr(f)(spec, spec))
        jnp.where(jnp.ones(3) > 0, 1.0, jnp.linalg.norm(jnp.ones(3))).block_until_ready()
        jax.jit(lambda x: jax.pure_callback(lambda z: z, spec, x)).lower(spec).compile()
        jax.clear_caches()
        kept.append([bytearray(1 << 20) for _ in range(50)])  # other addresses
    return kept


if __name__ == "__main__":
    start()
    what, history = [*sys.argv[1:], ""][:2]
    found: dict[str, Any] = {}
    if what == "equal":
        for name, sides in equal().items():
            found[name] = len({text(f, **settings) for f, settings in sides})
    else:
        keep = live(history)
        programs = list(same().items())
        if history:
            programs.reverse()
        found = {name: text(f, **settings) for name, (f, settings) in programs}
    print(json.dumps(found))
