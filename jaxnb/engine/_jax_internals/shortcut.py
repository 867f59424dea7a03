"""A short way for computations that are told of, which JAX's fast path would keep to itself.

JAX's fast path finds a compiled program by the arguments and runs it, both in C++. Without it
both are done in Python, some 60 µs for the second alone. On the short way Python finds the
program and tells of it, and C++ runs it: through a callable of that program's own, of the kind
that ``jax.jit(f).lower(…).compile()`` returns. C++ looks at the arguments once more, and calls
JAX's Python path if they need another program after all.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

from jaxnb.engine._jax_internals.dispatch import DispatchHooks

MAX_WAYS = 4096
"""JAX's own caches hold as many."""


class ShortcutHooks(DispatchHooks, Protocol):
    """What is told of dispatches on the short way."""

    def places(self, executable: Any, arguments: Sequence[Any]) -> tuple[int, ...]:
        """Returns which arguments are to be looked at, of these and all others of their kinds."""

    def before_again(self, executable: Any, arguments: Sequence[Any]) -> None:
        """Takes a dispatch that is about to be made, with the arguments at those places.

        Should JAX's Python path make it after all, ``before`` is called as well.
        """


def _names() -> Any:
    """Returns what is JAX's own; raises ImportError or AttributeError where it has it not."""
    from jax._src import array, core, dispatch, pjit, tree_util, util
    from jax._src.interpreters import pxla
    from jax._src.lib import _jax  # type: ignore[attr-defined]

    return SimpleNamespace(
        Array=array.ArrayImpl,
        call=pjit._run_python_pjit,
        fastpath_data=inspect.unwrap(pjit._get_fastpath_data),  # not that of hook_dispatches
        is_outermost=core.trace_state_clean,
        is_checked=dispatch.needs_check_special,
        make=_jax.pjit,
        no_keys=pxla.JitGlobalCppCacheKeys(),
        register_cache=util.register_cache,
        registry=tree_util.dispatch_registry,
        shard=pxla.cc_shard_arg,
        structure=tree_util.tree_structure,
        unflatten=tree_util.tree_unflatten,
    )


@dataclass(slots=True)
class _Way:
    executable: Any
    run: Callable[..., Any]
    looked_at: tuple[int, ...]
    constants: list[Any]
    traced: Any  # held, so that its id is that of no other
    ends_with: weakref.ref[Any]


class Shortcut:
    """The short ways that have been found.

    They hold on to compiled programs, shardings and the backend until the functions are gone whose
    they are, as JAX's own caches do, or until they are cleared, here or by ``jax.clear_caches()``.

    Args:
        hooks: What is told.
    """

    def __init__(self, hooks: ShortcutHooks) -> None:
        self._hooks = hooks
        self._ways: dict[Any, _Way] = {}
        self._jax: Any = None

    def cache_clear(self) -> None:
        """Forgets all ways."""
        self._ways.clear()

    def install(self) -> bool:
        """Goes the short way from now on, where there is one.

        It builds on ``hook_dispatches``, which comes first.

        Returns:
            Whether this JAX has the names for it. Otherwise nothing was changed: computations
            that are told of take all of JAX's Python path.
        """
        from jax._src import pjit

        try:
            self._jax = _names()
            self._jax.register_cache(self, "dispatches that are told of")
        except (ImportError, AttributeError):
            return False
        pjit._run_python_pjit = self._call  # type: ignore[assignment]
        return True

    def _call(self, traced: Any, arguments: Sequence[Any], fun: Any, *rest: Any) -> Any:
        """Stands in for the Python path of a jitted function's call."""
        jax = self._jax
        if not jax.is_outermost() or jax.is_checked():
            return jax.call(traced, arguments, fun, *rest)
        key = (id(traced), *map(self._kind, arguments))
        way = self._ways.get(key)
        if way is None:
            found = jax.call(traced, arguments, fun, *rest)
            self._keep(key, traced, fun, found)
            return found
        results = self._go(way, arguments)
        values = jax.unflatten(traced.out_tree, results)
        # Without an executable the caller does not try to get on the fast path.
        jaxpr = traced.params["jaxpr"]
        return values, results, traced.out_tree, arguments, jaxpr, None, None, ()

    def _kind(self, argument: Any) -> Any:
        if type(argument) is self._jax.Array:
            return argument.sharding, argument._committed
        return type(argument)

    def _go(self, way: _Way, arguments: Sequence[Any]) -> Any:
        depth = self._hooks.depth()
        try:
            every = [*way.constants, *arguments]
            self._hooks.before_again(way.executable, [every[i] for i in way.looked_at])
            return way.run(*arguments)
        except BaseException as error:
            self._hooks.failed(depth, error)
            raise
        finally:
            self._hooks.done(depth)

    def _keep(self, key: Any, traced: Any, fun: Any, found: Sequence[Any]) -> None:
        """Keeps the way to what the Python path has found, if JAX would keep a fast one."""
        jax = self._jax
        _, results, _, arguments, jaxpr, compiled, profiler, constants = found
        executable = getattr(compiled, "unsafe_call", None)
        if executable is None or not self._hooks.is_recorded(executable):
            return
        structure = jax.structure(results)
        rest = (jaxpr.effects, jaxpr.consts, profiler, constants)
        data = jax.fastpath_data(compiled, structure, arguments, results, *rest)
        if data is None:
            return

        alive = weakref.ref(fun, lambda _: self._ways.pop(key, None))

        def miss(*arguments: Any) -> Any:
            found = jax.call(traced, arguments, alive(), arguments, {})
            return found[1], data if found[5] is compiled else None, False

        run = jax.make(executable.name, None, miss, [], [], jax.no_keys, jax.registry, jax.shard)
        looked_at = self._hooks.places(executable, [*constants, *arguments])
        if len(self._ways) >= MAX_WAYS:
            self._ways.clear()
        self._ways[key] = _Way(executable, run, looked_at, list(constants), traced, alive)
