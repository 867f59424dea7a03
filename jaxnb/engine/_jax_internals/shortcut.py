"""A short way for computations that are told of, which JAX's fast path would keep to itself.

JAX's fast path finds a compiled program by the arguments and runs it, both in C++. Without it
both are done in Python, some 40 µs. On the short way Python finds the program and tells of it, and
C++ runs it: through a callable of that program's own, of the kind that
``jax.jit(f).lower(…).compile()`` returns. C++ looks at the arguments once more, and calls JAX's
Python path if they need another program after all.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Protocol

from jaxnb.engine._jax_internals.dispatch import DispatchHooks, key_words

MAX_WAYS = 4096
"""Of one function, and functions: JAX's own caches hold as many."""


class ShortcutHooks(DispatchHooks, Protocol):
    """What is told of dispatches on the short way."""

    def places(self, executable: Any, arguments: Sequence[Any]) -> tuple[int, ...]:
        """Returns which arguments are to be looked at, of these and all others of their kinds."""

    def seen(self, executable: Any) -> Any:
        """Returns what :meth:`before_again` is given beside the executable, each time."""

    def before_again(
        self, executable: Any, seen: Any, looked_at: Sequence[Any], arguments: Sequence[Any]
    ) -> None:
        """Takes a dispatch that is about to be made, and the arguments at those places.

        Should JAX's Python path make it after all, ``before`` is called as well.
        """


def _names() -> Any:
    """Returns what is JAX's own; raises ImportError, AttributeError or TypeError without it."""
    from jax._src import array, config, core, dispatch, pjit, tree_util, util
    from jax._src.interpreters import pxla
    from jax._src.lib import _jax  # type: ignore[attr-defined]

    fastpath_data = inspect.unwrap(pjit._get_fastpath_data)  # not that of hook_dispatches
    inspect.signature(pjit._run_python_pjit).bind(*range(5))
    inspect.signature(fastpath_data).bind(*range(8))
    return SimpleNamespace(
        Array=array.ArrayImpl,
        call=pjit._run_python_pjit,
        context=config.trace_context,
        evict=pjit.jit_evict_fn,
        fastpath_data=fastpath_data,
        flatten=tree_util.tracing_registry.flatten,
        is_outermost=core.trace_state_clean,
        is_checked=dispatch.needs_check_special,
        make=_jax.pjit,
        no_keys=pxla.JitGlobalCppCacheKeys(),
        register_cache=util.register_cache,
        registry=tree_util.dispatch_registry,
        shard=pxla.cc_shard_arg,
    )


class _NoJaxpr:
    """In place of a computation that has no effects, and no constants to speak of."""

    effects = consts = ()


class Shortcut:
    """The short ways that have been found.

    They hold on to compiled programs, shardings, meshes and the backend until the functions are
    gone whose they are, as JAX's own caches do, or until they are cleared, here or by
    ``jax.clear_caches()``.

    Args:
        hooks: What is told.
    """

    def __init__(self, hooks: ShortcutHooks) -> None:
        self._hooks = hooks
        self._ways: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()
        self._jax: Any = None

    def cache_clear(self) -> None:
        """Forgets all ways."""
        self._ways.clear()

    def install(self) -> str:
        """Has cached dispatches take the short path from now on, where there is one.

        It builds on ``hook_dispatches``, which comes first.

        Returns:
            Why this JAX cannot do that: it lacks a name, or a function takes other arguments. Then
            nothing was changed, and recorded computations take all of JAX's Python path. Empty if
            it was done.
        """
        from jax._src import pjit

        try:
            self._jax = own = _names()
            own.register_cache(self, "dispatches that are told of")
        except (ImportError, AttributeError, TypeError) as error:
            return str(error)

        @functools.wraps(own.call)
        def call(traced: Any, arguments: Sequence[Any], fun: Any, *rest: Any) -> Any:
            return self._call(traced, arguments, fun, *rest)

        @functools.wraps(own.evict)  # JAX gives it to the next function that is jitted, and to all
        def clear_cache(function: Any) -> None:
            own.evict(function)
            self._ways.pop(function._fun, None)

        pjit._run_python_pjit, pjit.jit_evict_fn = call, clear_cache  # type: ignore[assignment]
        return ""

    def uninstall(self) -> None:
        """Undoes :meth:`install`."""
        if (own := self._jax) is not None:
            from jax._src import pjit

            self.cache_clear()
            pjit._run_python_pjit, pjit.jit_evict_fn = own.call, own.evict
            self._jax = None

    def _call(self, traced: Any, arguments: Sequence[Any], fun: Any, *rest: Any) -> Any:
        """Stands in for the Python path of a jitted function's call."""
        own = self._jax
        if not own.is_outermost() or own.is_checked():
            return own.call(traced, arguments, fun, *rest)
        ways = self._ways.get(fun, {})
        key = (id(traced), *map(self._kind, arguments))
        if (way := ways.get(key)) is None:
            meaning = self._meaning(traced, key)
            if (way := ways.get(meaning)) is None:
                return self._first((key, meaning), traced, arguments, fun, *rest)
        # Without an executable the caller does not try to get on the fast path.
        return way[0](arguments), (), None, (), _NoJaxpr, None, None, ()

    def _meaning(self, traced: Any, key: Any) -> Any:
        """Returns what is equal for a function that was given to ``jax.jit`` once more.

        JAX finds such a one on its fast path, and would compile nothing.
        """
        settings = {**traced.params, "jaxpr": id(traced.params["jaxpr"])}
        made = traced.out_tree, *map(id, traced.consts), self._jax.context()
        return made, key[1:], tuple(sorted(settings.items()))

    def _kind(self, argument: Any) -> Any:
        array = argument if type(argument) is self._jax.Array else key_words(argument)
        return type(argument) if array is None else (array.sharding, array._committed)

    def _first(self, keys: Any, traced: Any, arguments: Sequence[Any], fun: Any, *rest: Any) -> Any:
        """Takes JAX's Python path, and keeps the way to what it has found.

        The callable of that way takes it, so that C++ has it for the next call: JAX counts on one
        call of its Python path, and so do its tests.
        """
        own = self._jax
        of_first: list[Any] = [(fun, *rest)]  # emptied: arguments must not be held on to
        found: list[Any] = []
        alive = weakref.ref(fun)

        def miss(*arguments: Any) -> Any:
            if not of_first:  # these need another program
                return own.call(traced, arguments, alive(), arguments, {})[0], None, False
            now = own.call(traced, arguments, *of_first.pop())
            found.extend((now, self._data(traced, now)))
            return now[0], found[1], False

        name = getattr(traced, "params", {}).get("name", "")
        run = own.make(str(name), None, miss, [], [], own.no_keys, own.registry, own.shard)
        run(*arguments)
        first, data = found
        found.clear()
        if data is not None:
            if max(len(self._ways.get(fun, ())), len(self._ways)) >= MAX_WAYS:
                self.cache_clear()
            # What was traced is held, so that its id is that of no other.
            way = self._way(first[5].unsafe_call, run, arguments), traced
            self._ways.setdefault(fun, {}).update(dict.fromkeys(keys, way))
        return first

    def _data(self, traced: Any, found: Sequence[Any]) -> Any:
        """Returns what C++ runs a program by; None if it is not recorded, or JAX would not."""
        _, results, _, arguments, jaxpr, compiled, profiler, constants = found
        executable = getattr(compiled, "unsafe_call", None)
        if executable is None or self._hooks.looks_at_values or constants:
            return None
        if not self._hooks.is_recorded(executable):
            return None
        rest = (jaxpr.effects, jaxpr.consts, profiler, constants)
        return self._jax.fastpath_data(compiled, traced.out_tree, arguments, results, *rest)

    def _way(self, executable: Any, run: Any, arguments: Sequence[Any]) -> Callable[..., Any]:
        """Returns what tells of a dispatch with arguments of these kinds, and makes it."""
        hooks, flatten = self._hooks, self._jax.flatten
        places, seen = hooks.places(executable, arguments), hooks.seen(executable)

        def go(arguments: Sequence[Any]) -> Any:
            depth = hooks.depth()
            try:
                hooks.before_again(executable, seen, [arguments[i] for i in places], arguments)
                results = run(*arguments)
                hooks.made(depth, flatten(results)[0], ())
                return results
            except BaseException as error:
                hooks.failed(depth, error)
                raise
            finally:
                hooks.done(depth)

        return go
