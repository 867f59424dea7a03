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
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from jaxnb.compat import jax_dispatch as hooked

# ``check_vma=False`` takes the check from a ``shard_map``; a ``pmap`` with ``out_axes=None`` never
# has it. The compiled program does not show it, so it is noted where JAX lowers a ``shard_map``.

_AXES = "jaxnb: axes of unchecked replicas"


def note_unchecked_results() -> str:
    """Has executables remember over which mesh axes they declare results replicated, unchecked.

    Returns:
        Why that is not possible where this JAX lacks a name; then :func:`unchecked_axes` returns
        nothing. Empty if it was done.
    """
    try:
        from jax._src import shard_map
        from jax._src.interpreters import mlir

        lower = shard_map._shard_map_lowering
        names = inspect.signature(lower).parameters
        mlir.ModuleContext.add_keepalive  # noqa: B018
        settings_known = mlir.LoweringParameters.__annotations__
    except (ImportError, AttributeError) as error:
        return str(error)
    if not {"mesh", "out_specs", "check_vma", "newly_manual_axes"} <= names.keys():
        return "_shard_map_lowering takes no out_specs, check_vma or newly_manual_axes"
    if "for_export" not in settings_known:
        return "mlir.LoweringParameters has no for_export"

    @functools.wraps(lower)
    def noted(context: Any, *nodes: Any, **settings: Any) -> Any:
        module = context.module_context
        # What keeps anything alive cannot be exported.
        if not (settings["check_vma"] or module.lowering_parameters.for_export):
            mesh, manual = settings["mesh"], settings["newly_manual_axes"]
            split = [axis for axis in mesh.axis_names if axis in manual and mesh.shape[axis] > 1]
            declared = [_axes_in(spec) for spec in settings["out_specs"]]
            if axes := [axis for axis in split if any(axis not in each for each in declared)]:
                # Plain data: a list of what lives as long as the executable, and is saved with it.
                module.add_keepalive((_AXES, *map(str, axes)))
        return lower(context, *nodes, **settings)

    mlir.register_lowering(shard_map.shard_map_p, noted)
    return ""


def _axes_in(spec: Any) -> set[Any]:
    found = set(getattr(spec, "unreduced", ()))
    for each in spec:
        found.update(each if isinstance(each, tuple) else (each,))
    return found


def unchecked_axes(executable: Any) -> tuple[str, ...]:
    """Returns over which mesh axes a program declares results replicated that nobody has checked.

    What :func:`note_unchecked_results` has had it remember; empty for most programs.
    """
    noted = [
        e[1:] for e in executable.keepalive or () if isinstance(e, tuple) and e[:1] == (_AXES,)
    ]
    return tuple(dict.fromkeys(axis for axes in noted for axis in axes))


MAX_WAYS = 4096
"""Of all functions; as many as JAX's own caches hold of one."""


def _names() -> Any:
    """Returns what is JAX's own; raises ImportError, AttributeError or TypeError without it."""
    from jax._src import array, core, dispatch, pjit, tree_util, util
    from jax._src.interpreters import pxla
    from jax._src.lib import _jax  # type: ignore[attr-defined]

    inspect.signature(pjit._run_python_pjit).bind(*range(5))
    inspect.signature(pjit._get_fastpath_data).bind(*range(8))
    of_program = pxla.JitGlobalCppCacheKeys(), tree_util.dispatch_registry, pxla.cc_shard_arg
    return SimpleNamespace(
        Array=array.ArrayImpl,
        call=pjit._run_python_pjit,
        evict=pjit.jit_evict_fn,
        fastpath_data=inspect.unwrap(pjit._get_fastpath_data),  # not that of hook_dispatches
        flatten=tree_util.tracing_registry.flatten,
        is_outermost=core.trace_state_clean,
        is_checked=dispatch.needs_check_special,
        make=lambda name, miss: _jax.pjit(name, None, miss, [], [], *of_program),
        pjit=pjit,
        ways=util.weakref_lru_cache(lambda *_: [], maxsize=MAX_WAYS),
    )


class Shortcut:
    """The short ways that have been found.

    They hold on to compiled programs, shardings, meshes and the backend until the functions are
    gone whose they are, as JAX's own caches do, or until they are cleared, here, by their
    function's ``clear_cache()`` or by ``jax.clear_caches()``.

    Args:
        hooks: What is told.
    """

    def __init__(self, hooks: hooked.DispatchHooks) -> None:
        self._hooks = hooks

    def install(self) -> str:
        """Has cached dispatches take the short path from now on, where there is one.

        It builds on ``hook_dispatches``, which comes first, and is undone with it.

        Returns:
            Why this JAX cannot do that: it lacks a name, or a function takes other arguments. Then
            nothing was changed, and recorded computations take all of JAX's Python path. Empty if
            it was done.
        """
        try:
            self._jax = own = _names()
        except (ImportError, AttributeError, TypeError) as error:
            return str(error)

        def clear_cache(function: Any) -> None:  # JAX makes it a method of what it jits
            own.evict(function)
            own.ways.evict_weakref(function._fun)

        hooked.more_caches.append(own.ways.cache_clear)
        hooked.replace(own.pjit, "_run_python_pjit", self._call)
        hooked.replace(own.pjit, "jit_evict_fn", clear_cache)
        return ""

    def _call(self, traced: Any, arguments: Sequence[Any], fun: Any, *rest: Any) -> Any:
        """Stands in for the Python path of a jitted function's call."""
        own = self._jax
        if not own.is_outermost() or own.is_checked():
            return own.call(traced, arguments, fun, *rest)
        kinds = tuple(map(self._kind, arguments))
        if not (way := own.ways(fun, id(traced), kinds)):
            # A function that was given to jax.jit once more would not be compiled by JAX either.
            settings = {**traced.params, "jaxpr": id(traced.params["jaxpr"])}.items()
            meaning = traced.out_tree, *map(id, traced.consts), *sorted(settings)
            if not (like := own.ways(fun, meaning, kinds)):
                found = own.call(traced, arguments, fun, *rest)
                way += self._way(traced, arguments, fun, found)
                like += way
                return found
            way = like
        # Without an executable the caller does not try to get on the fast path.
        return way[0](arguments), (), None, (), traced.params["jaxpr"], None, None, ()

    def _kind(self, argument: Any) -> Any:
        array = argument if type(argument) is self._jax.Array else hooked.key_words(argument)
        return type(argument) if array is None else (array.sharding, array._committed)

    def _way(self, traced: Any, arguments: Sequence[Any], fun: Any, found: Any) -> Sequence[Any]:
        """Returns what makes a dispatch with such arguments, and tells of it.

        Empty if it is not recorded, or JAX would not run it in C++.
        """
        own, hooks = self._jax, self._hooks
        _, flat, tree, used, jaxpr, compiled, profiler, constants = found
        execute = None if constants else getattr(compiled, "unsafe_call", None)
        if execute is None or hooks.looks_at_values or not hooks.is_recorded(execute):
            return ()
        rest = jaxpr.effects, jaxpr.consts, profiler, constants
        if (data := own.fastpath_data(compiled, tree, used, flat, *rest)) is None:
            return ()
        # Not str(fun): that runs the user's code.
        first, name = [found], getattr(fun, "__qualname__", type(fun).__name__)

        def miss(*now: Any) -> Any:
            found = first.pop() if first else own.call(traced, now, name, (), {})
            return found[0], data if found[5] is compiled else None, False

        run, tell = own.make(name, miss), hooks.again(execute, arguments)
        # C++ keeps the program for arguments of these kinds; at the next call if they were donated.
        run(*arguments)

        def make(depth: int, arguments: Sequence[Any]) -> Any:
            tell(arguments)
            results = run(*arguments)
            hooks.made(depth, own.flatten(results)[0], ())
            return results

        # What was traced is held, so that its id is that of no other.
        return (lambda arguments: hooked.told_how_it_ends(hooks, make, arguments)), traced
