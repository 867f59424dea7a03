"""A short way for computations that are told of, which JAX's fast path would keep to itself.

JAX's fast path finds a compiled program by the arguments and runs it, both in C++. Without it
both are done in Python, some 60 µs for the second alone. On the short way Python finds the
program and tells of it, and C++ runs it: through a callable of that program's own, of the kind
that ``jax.jit(f).lower(…).compile()`` returns. C++ looks at the arguments once more, and calls
JAX's Python path if they need another program after all.

JAX finds the program in two steps: what was traced for such arguments, which costs it 2 µs an
array and more for the call, and what was compiled of that. The shortest way, for arguments that
are all arrays, takes both in one: it compares them with those of the calls before.
"""

from __future__ import annotations

import functools
import inspect
import operator
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Protocol

from jaxnb.engine._jax_internals.dispatch import DispatchHooks

MAX_WAYS = 4096
"""JAX's own caches hold as many."""

MAX_SHORTEST = 8
"""So many kinds of arguments of one function are compared one after the other."""


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
    """Returns what is JAX's own; raises ImportError or AttributeError where it has it not."""
    from jax._src import array, config, core, dispatch, pjit, tree_util, util
    from jax._src.interpreters import pxla
    from jax._src.lib import _jax  # type: ignore[attr-defined]

    _can_take(pjit._run_python_pjit, 5)
    _can_take(pjit._infer_params, 4)
    _can_take(inspect.unwrap(pjit._get_fastpath_data), 8)
    _can_take(pjit.get_ctx_mesh, 1)
    return SimpleNamespace(
        Array=array.ArrayImpl,
        call=pjit._run_python_pjit,
        context=config.trace_context,
        context_mesh=pjit.get_ctx_mesh,
        evict=pjit.jit_evict_fn,
        fastpath_data=inspect.unwrap(pjit._get_fastpath_data),  # not that of hook_dispatches
        flatten=tree_util.tracing_registry.flatten,
        from_calls=_code_within(pjit._cpp_pjit, "cache_miss"),
        infer=pjit._infer_params,
        is_outermost=core.trace_state_clean,
        is_checked=dispatch.needs_check_special,
        know=operator.attrgetter("__class__", "aval", "_sharding", "_committed"),
        make=_jax.pjit,
        no_keys=pxla.JitGlobalCppCacheKeys(),
        register_cache=util.register_cache,
        registry=tree_util.dispatch_registry,
        shard=pxla.cc_shard_arg,
    )


def _can_take(function: Any, count: int) -> None:
    """Raises AttributeError if a function cannot be called with so many arguments."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError as error:
        raise AttributeError(f"{function.__name__}(): {error}") from None


def _code_within(function: Any, name: str) -> Any:
    """Returns the code of a function that is defined in another."""
    for each in inspect.unwrap(function).__code__.co_consts:
        if getattr(each, "co_name", "") == name:
            return each
    raise AttributeError(f"{function.__name__}() defines no {name}()")


class _NoJaxpr:
    """In place of a computation that has no effects, and no constants to speak of."""

    effects = consts = ()


@dataclass(slots=True)
class _Way:
    executable: Any
    seen: Any
    run: Callable[..., Any]
    looked_at: tuple[int, ...]
    constants: list[Any]
    traced: Any  # held, so that its id is that of no other
    ends_with: weakref.ref[Any]


@dataclass(slots=True)
class _Shortest:
    """A way, and the calls that take it."""

    way: _Way
    settings: Any  # of ``jax.jit``: a function may have been given to it more than once
    context: Any  # with the rest, all that JAX keeps what it has traced by
    mesh: Any
    tree: Any
    arrays: list[tuple[Any, ...]]  # what has to be the same of each


class _Inferred(threading.local):
    """What JAX has inferred last in a thread, and the settings of the function called."""

    traced: Any = None
    settings: Any = None

    def take(self, traced: Any) -> Any:
        """Returns the settings if this was inferred last, else None; holds on to neither."""
        settings = self.settings if self.traced is traced else None
        self.traced = self.settings = None
        return settings


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
        self._ways: dict[Any, _Way] = {}
        self._meant: dict[Any, _Way] = {}  # the same, by what is computed of what
        self._shortest: dict[int, list[_Shortest]] = {}  # by the id of the function
        self._inferred = _Inferred()
        self._jax: Any = None

    def cache_clear(self) -> None:
        """Forgets all ways."""
        self._ways.clear()
        self._meant.clear()
        self._shortest.clear()

    def install(self) -> str:
        """Has cached dispatches take the short path from now on, where there is one.

        It builds on ``hook_dispatches``, which comes first.

        Returns:
            Why this JAX cannot do that: it lacks a name, or a function takes other arguments. Then
            nothing was changed, and recorded computations take all of JAX's Python path. Empty if
            it was done.
        """
        import jax
        from jax._src import pjit

        try:
            self._jax = own = _names()
            own.register_cache(self, "dispatches that are told of")
        except (ImportError, AttributeError) as error:
            return str(error)

        # Functions that bear JAX's names are pickled by name: jitted functions refer to them.
        @functools.wraps(own.evict)
        def clear_cache(function: Any) -> None:
            own.evict(function)  # which forgets what was inferred for all functions
            self._shortest.clear()

        @functools.wraps(own.infer)
        def infer(fun: Any, settings: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
            return self._infer(fun, settings, args, kwargs)

        @functools.wraps(own.call)
        def call(traced: Any, arguments: Sequence[Any], fun: Any, *rest: Any) -> Any:
            return self._call(traced, arguments, fun, *rest)

        pjit.jit_evict_fn = clear_cache
        kind: Any = type(jax.jit(clear_cache))
        kind.clear_cache = clear_cache  # as JAX does whenever it jits
        pjit._infer_params, pjit._run_python_pjit = infer, call  # type: ignore[assignment]
        return ""

    def uninstall(self) -> None:
        """Undoes :meth:`install`."""
        if (own := self._jax) is None:
            return
        import jax
        from jax._src import pjit

        self.cache_clear()
        pjit.jit_evict_fn, pjit._infer_params = own.evict, own.infer
        pjit._run_python_pjit = own.call
        kind: Any = type(jax.jit(own.evict))
        kind.clear_cache = own.evict
        self._jax = None

    def _infer(self, fun: Any, settings: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Stands in for what finds out which traced function a call needs, and its arguments.

        For a call it may find a way, which :meth:`_call` is given next instead.
        """
        jax = self._jax
        if sys._getframe(2).f_code is not jax.from_calls:
            return jax.infer(fun, settings, args, kwargs)  # type: ignore[no-any-return]
        known = self._shortest.get(id(fun), ())
        if known and not kwargs:
            arrays, tree = jax.flatten(args)
            context, mesh = jax.context(), jax.context_mesh(settings.use_resource_env)
            try:
                # Compared in C, mostly by being the same objects.
                found = [*map(jax.know, arrays)]
            except AttributeError:  # some are no arrays
                known = ()
            for each in known:
                is_same = each.settings is settings and each.arrays == found and each.tree == tree
                if is_same and each.context == context and each.mesh == mesh:
                    return each.way, arrays
        inferred = jax.infer(fun, settings, args, kwargs)
        self._inferred.traced, self._inferred.settings = inferred[0], settings
        return inferred  # type: ignore[no-any-return]

    def _call(self, traced: Any, arguments: Sequence[Any], fun: Any, *rest: Any) -> Any:
        """Stands in for the Python path of a jitted function's call."""
        jax = self._jax
        way = settings = None
        if type(traced) is _Way:
            way, traced = traced, traced.traced
        else:
            settings = self._inferred.take(traced)
        if not jax.is_outermost() or jax.is_checked():
            return jax.call(traced, arguments, fun, *rest)
        if way is None:
            key = (id(traced), *map(self._kind, arguments))
            way = self._ways.get(key)
            if way is None:
                meaning = self._meaning(traced, key)
                way = self._meant.get(meaning)
                if way is None:
                    return self._first((key, meaning), traced, arguments, fun, *rest)
                if len(self._ways) >= MAX_WAYS:
                    self.cache_clear()
                way = self._ways[key] = replace(way, traced=traced)
            elif settings is not None:
                self._shorten(way, settings, fun, *rest)
        # Without an executable the caller does not try to get on the fast path.
        return self._go(way, arguments), (), None, (), _NoJaxpr, None, None, ()

    def _shorten(self, way: _Way, settings: Any, fun: Any, args: Any, kwargs: Any) -> None:
        """Has calls like this one, which have a way, find it at once from now on."""
        jax = self._jax
        if kwargs or way.traced.consts or settings.static_argnums or settings.static_argnames:
            return
        arrays, tree = jax.flatten(args)
        if any(type(array) is not jax.Array for array in arrays):
            return
        known = self._shortest.setdefault(id(fun), [])
        described = [*map(jax.know, arrays)]
        context, mesh = jax.context(), jax.context_mesh(settings.use_resource_env)
        known.insert(0, _Shortest(way, settings, context, mesh, tree, described))
        del known[MAX_SHORTEST:]

    def _meaning(self, traced: Any, key: Any) -> Any:
        """Returns what is equal for a function that was given to ``jax.jit`` once more.

        JAX finds such a one on its fast path, and would compile nothing.
        """
        settings = dict(traced.params)
        jaxpr = settings.pop("jaxpr")
        made = id(jaxpr), traced.out_tree, *map(id, traced.consts)
        rest = *made, self._jax.context(), *key[1:]
        return rest, tuple(sorted(settings.items(), key=operator.itemgetter(0)))

    def _kind(self, argument: Any) -> Any:
        if type(argument) is self._jax.Array:
            return argument.sharding, argument._committed
        return type(argument)

    def _go(self, way: _Way, arguments: Sequence[Any]) -> Any:
        hooks = self._hooks
        depth = hooks.depth()
        try:
            every = [*way.constants, *arguments] if way.constants else arguments
            looked_at = [every[i] for i in way.looked_at] if way.looked_at else ()
            hooks.before_again(way.executable, way.seen, looked_at, every)
            results = way.run(*arguments)
            hooks.made(depth, self._jax.flatten(results)[0], ())
            return results
        except BaseException as error:
            hooks.failed(depth, error)
            raise
        finally:
            hooks.done(depth)

    def _first(self, keys: Any, traced: Any, arguments: Sequence[Any], fun: Any, *rest: Any) -> Any:
        """Takes JAX's Python path, and keeps the way to what it has found.

        The callable of that way takes it, so that C++ has it for the next call: JAX counts on one
        call of its Python path, and so do its tests.
        """
        jax = self._jax
        of_first: list[Any] = [(fun, *rest)]  # emptied: arguments must not be held on to
        found: list[Any] = []
        alive: list[Any] = []
        kept: list[Any] = [None, None]

        def miss(*arguments: Any) -> Any:
            if of_first:
                now = jax.call(traced, arguments, *of_first.pop())
                found.append(now)
                kept[:] = now[5], self._data(traced, now)
            else:
                now = jax.call(traced, arguments, alive[0](), arguments, {})
            data = kept[1] if now[5] is kept[0] else None
            return now[0], data, False

        name = getattr(traced, "params", {}).get("name", "")
        run = jax.make(str(name), None, miss, [], [], jax.no_keys, jax.registry, jax.shard)
        run(*arguments)
        first = found.pop()
        self._keep(keys, traced, fun, first, run, kept, alive)
        return first

    def _data(self, traced: Any, found: Sequence[Any]) -> Any:
        """Returns what C++ runs a program by; None if it is not recorded, or JAX would not."""
        _, results, _, arguments, jaxpr, compiled, profiler, constants = found
        executable = getattr(compiled, "unsafe_call", None)
        if executable is None or self._hooks.looks_at_values:
            return None
        if not self._hooks.is_recorded(executable):
            return None
        rest = (jaxpr.effects, jaxpr.consts, profiler, constants)
        return self._jax.fastpath_data(compiled, traced.out_tree, arguments, results, *rest)

    def _keep(
        self,
        keys: Any,
        traced: Any,
        fun: Any,
        found: Sequence[Any],
        run: Any,
        kept: Any,
        alive: Any,
    ) -> None:
        """Keeps a way, if the program is recorded and C++ can run it."""
        if kept[1] is None:
            return
        _, _, _, arguments, _, compiled, _, constants = found
        executable = compiled.unsafe_call
        name = id(fun)
        key, meaning = keys

        def end(reference: Any) -> None:
            for each in [k for k, way in list(self._ways.items()) if way.ends_with is reference]:
                self._ways.pop(each, None)
            self._meant.pop(meaning, None)
            self._shortest.pop(name, None)

        alive.append(weakref.ref(fun, end))
        looked_at = self._hooks.places(executable, [*constants, *arguments])
        if len(self._ways) >= MAX_WAYS:
            self.cache_clear()
        self._ways[key] = self._meant[meaning] = _Way(
            executable,
            self._hooks.seen(executable),
            run,
            looked_at,
            list(constants),
            traced,
            alive[0],
        )
