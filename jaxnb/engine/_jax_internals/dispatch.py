"""Dispatches of computations, as JAX's private names tell of them.

``hook_dispatches`` says what happens where the installed JAX lacks the names; the rest is called
only if it has them.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import numpy as np


def _runtime() -> Any:
    from jax._src.lib import _jax  # type: ignore[attr-defined]

    return _jax


class DispatchHooks(Protocol):
    """What is told of dispatches. Nothing of it may dispatch anything itself."""

    def is_on(self) -> bool:
        """Whether dispatches are recorded now."""

    def is_recorded(self, executable: Any) -> bool:
        """Whether an executable is to be kept off JAX's fast path, so that it is told of."""

    def before(self, executable: Any, arguments: Sequence[Any]) -> Any:
        """Takes a dispatch that is about to be made; returns what names it, or None."""

    def known(self, executable: Any) -> Any:
        """Returns what there is to know of an executable that is recorded, else None."""

    def watched(self, leaves: Sequence[Any]) -> Sequence[int]:
        """Returns the positions of the arguments that :meth:`before_again` wants to see."""

    def before_again(self, known: Any, arguments: Sequence[Any]) -> Any:
        """The same as :meth:`before`, for the executable of an earlier dispatch."""

    def correct(self, name: Any, executable: Any) -> bool:
        """Takes which executable a dispatch is of after all; returns whether it can be that."""

    def failed(self, name: Any, error: BaseException) -> None:
        """Takes what a dispatch raised."""


class _Thread(threading.local):
    """What the hooks tell each other within one call of a function."""

    is_inside: bool = False
    executable: Any = None
    fastpath_data: Any = None
    name: Any = None


def hook_dispatches(hooks: DispatchHooks) -> str:
    """Has every dispatch of a computation told in this process, before it runs.

    JAX's fast path, in C++, calls nothing of ours, and its Python path takes some 70 µs longer.
    So the function that ``jax.jit`` returns does not get on the fast path with a computation
    that is recorded: it calls ours, which calls a second one that does. Functions of JAX's own
    that were jitted before this call (``jnp.add``) take the Python path instead. What is not
    recorded stays as fast as it was.

    Returns:
        Why that is not possible where this JAX lacks a name; empty if it was done. Then nothing
        was changed: cells run as before, and are not compared.
    """
    try:
        from jax._src import pjit, traceback_util
        from jax._src.interpreters import pxla
        from jax._src.lib import hlo  # type: ignore[attr-defined]

        hlo.HloPrintOptions.canonical  # noqa: B018  # for executable_text
        thread = _Thread()
        replacements: list[tuple[Any, str, Any]] = [
            (pxla.ExecuteReplicated, "__call__", _execution(hooks, thread)),
            (pjit, "_get_fastpath_data", _fastpath_choice(hooks, thread)),
            (pxla.MeshExecutable, "create_cpp_call", _ahead_of_time_choice(hooks)),
            (pjit, "_cpp_pjit", _function_maker(hooks, thread)),
        ]
        # Users' tracebacks show neither JAX's frames nor these.
        traceback_util.register_exclusion(__file__)
    except (ImportError, AttributeError) as error:
        return str(error)
    for home, name, replacement in replacements:
        setattr(home, name, replacement)
    return ""


def _execution(hooks: DispatchHooks, thread: _Thread) -> Callable[..., Any]:
    """Returns what executes on JAX's Python path."""
    from jax._src.interpreters import pxla

    execute = pxla.ExecuteReplicated.__call__

    def call(self: Any, *arguments: Any) -> Any:
        thread.executable = self
        if thread.name is not None and hooks.correct(thread.name, self):
            thread.name = None  # _function_maker's has told it, and takes what is raised
            return execute(self, *arguments)
        name = None
        try:
            name = hooks.before(self, arguments)
            return execute(self, *arguments)
        except BaseException as error:
            if name is not None:
                hooks.failed(name, error)
            raise

    return call


def _fastpath_choice(hooks: DispatchHooks, thread: _Thread) -> Callable[..., Any]:
    """Returns what gives JAX the data to take its fast path the next time, or None."""
    from jax._src import pjit
    from jax._src.interpreters import pxla

    get_fastpath_data = pjit._get_fastpath_data

    def choose(executable: Any, *rest: Any) -> Any:
        data = get_fastpath_data(executable, *rest)
        call = getattr(executable, "unsafe_call", None)
        if data is None or not isinstance(call, pxla.ExecuteReplicated):
            return data
        if hooks.is_recorded(call):
            return data if thread.is_inside else None
        thread.fastpath_data = data
        return data

    return choose


def _ahead_of_time_choice(hooks: DispatchHooks) -> Callable[..., Any]:
    """Returns what makes the fast path of a function that was compiled ahead of time."""
    from jax._src.interpreters import pxla

    create_cpp_call = pxla.MeshExecutable.create_cpp_call

    def create(self: Any, *rest: Any) -> Any:
        call = self.unsafe_call
        if isinstance(call, pxla.ExecuteReplicated) and hooks.is_recorded(call):
            return None
        return create_cpp_call(self, *rest)

    return create


def _function_maker(hooks: DispatchHooks, thread: _Thread) -> Callable[..., Any]:
    """Returns what makes the function that ``jax.jit`` returns."""
    from jax._src import pjit, tree_util
    from jax._src.interpreters import pxla

    make, fun_name = pjit._cpp_pjit, pjit.fun_name  # type: ignore[attr-defined]
    # Of their own: in JAX's the inner functions' entries would be found for the outer ones.
    outer_cache = _runtime().PjitFunctionCache(capacity=8192)

    def make_function(fun: Any, info: Any) -> Any:
        outer = _runtime().pjit(
            fun_name(fun),
            fun,
            _Calls(make(fun, info), info, hooks, thread),
            info.static_argnums,
            info.static_argnames,
            _cache_key(pxla, info),
            tree_util.dispatch_registry,
            pxla.cc_shard_arg,
            outer_cache,
        )
        functools.update_wrapper(outer, fun)
        outer._fun, outer._jit_info = fun, info
        return outer

    return make_function


class _Calls:
    """Takes the calls of one function that JAX does not make on its fast path.

    Args:
        inner: The function, made a second time: it may get on the fast path.
        info: What it was jitted with.
        hooks: Are told of its dispatches.
        thread: What is known within a call.
    """

    def __init__(self, inner: Any, info: Any, hooks: DispatchHooks, thread: _Thread) -> None:
        self._inner = inner
        self._hooks = hooks
        self._thread = thread
        self._is_static = bool(info.static_argnums or info.static_argnames)
        self._seen: dict[Any, tuple[Any, Sequence[int]]] = {}

    def __call__(self, *arguments: Any, **keywords: Any) -> tuple[Any, Any, bool]:
        """Returns the results, the data of the fast path or None, and that JAX keeps the entry."""
        leaves, structure = jax.tree.flatten((arguments, keywords))
        key = None
        if self._hooks.is_on() and (signature := _signature(leaves, self._is_static)) is not None:
            key = structure, signature
            found = self._seen.get(key)
            if found is not None:
                return self._call_again(*found, leaves, arguments, keywords), None, False
        return self._call_first(key, leaves, arguments, keywords)

    def _call_again(
        self, known: Any, positions: Sequence[int], leaves: Any, arguments: Any, keywords: Any
    ) -> Any:
        thread = self._thread
        name = thread.name = self._hooks.before_again(known, [leaves[i] for i in positions])
        try:
            return self._call_inner(arguments, keywords)
        except BaseException as error:
            self._hooks.failed(name, error)
            raise
        finally:
            thread.name = None

    def _call_first(
        self, key: Any, leaves: Any, arguments: Any, keywords: Any
    ) -> tuple[Any, Any, bool]:
        thread = self._thread
        self._inner._clear_cache()  # so that it takes the Python path, where it is seen
        thread.executable = thread.fastpath_data = None
        results = self._call_inner(arguments, keywords)
        executable, thread.executable = thread.executable, None
        data, thread.fastpath_data = thread.fastpath_data, None
        known = self._hooks.known(executable) if executable is not None else None
        if known is None:
            return results, data, False
        if key is not None:
            self._seen[key] = known, self._hooks.watched(leaves)
        return results, None, False

    def _call_inner(self, arguments: Any, keywords: Any) -> Any:
        thread = self._thread
        outer, thread.is_inside = thread.is_inside, True
        try:
            return self._inner(*arguments, **keywords)
        finally:
            thread.is_inside = outer


def _cache_key(pxla: Any, info: Any) -> Any:
    fields = [
        "donate_argnums",
        "donate_argnames",
        "device",
        "backend",
        "in_shardings_treedef",
        "in_shardings_leaves",
        "out_shardings_treedef",
        "out_shardings_leaves",
        "in_layouts_treedef",
        "in_layouts_leaves",
        "out_layouts_treedef",
        "out_layouts_leaves",
        "compiler_options_kvs",
    ]
    return pxla.JitGlobalCppCacheKeys(**{field: getattr(info, field) for field in fields})


def _signature(leaves: Sequence[Any], is_static: bool) -> tuple[Any, ...] | None:
    """Returns what tells calls of one function apart, as far as their computations differ.

    Nothing of devices is kept alive by it. What it does not tell apart (types that are weak or
    not, JAX's settings) is set right when JAX compiles; a call that JAX knows already is taken
    for the earlier one then, on all processes alike.

    Returns:
        None if JAX is tracing, or for values that no computation takes.
    """
    signature: list[Any] = []
    for leaf in leaves:
        kind = type(leaf)
        if kind in (float, int, bool, complex):
            signature.append((kind, leaf) if is_static else kind)
            continue
        if isinstance(leaf, jax.core.Tracer):
            return None
        try:
            if isinstance(leaf, jax.Array):
                signature.append((leaf.shape, leaf.dtype, hash(leaf.sharding)))
            elif isinstance(leaf, np.ndarray | np.generic):
                signature.append((leaf.shape, leaf.dtype))
            else:
                signature.append(hash(leaf))
        except TypeError:
            return None
    return tuple(signature)


def choose_paths_again() -> None:
    """Has every jitted function choose its path again; nothing is compiled anew.

    JAX remembers that a function has got on its fast path, and that it has not. Where this JAX
    has other caches, :func:`hook_dispatches` has said so already.
    """
    from jax._src import pjit

    for cache in (pjit._cpp_pjit_cache_fun_only, pjit._cpp_pjit_cache_explicit_attributes):
        cache.clear()
    _runtime().PjitFunctionCache.clear_all()


def executable_name(executable: Any) -> str:
    """Returns the name of what :func:`hook_dispatches` sees: ``"jit(step)"``."""
    return str(executable.name)


def executable_text(executable: Any) -> str:
    """Returns the compiled program, without names and without the source lines it came from.

    Equal for equal computations. JAX's own fingerprint is not: where functions were called
    first from different lines, it differs.
    """
    from jax._src.lib import hlo  # type: ignore[attr-defined]

    options = hlo.HloPrintOptions.canonical()
    options.print_large_constants, options.print_metadata = True, False
    texts = [each.to_string(options) for each in executable.xla_executable.hlo_modules()]
    # The first line begins with the name of the function.
    return "\n".join(text.partition(",")[2] for text in texts)


def executable_devices(executable: Any) -> frozenset[Any]:
    """Returns the devices that it runs on, of all processes."""
    shardings = (*executable.in_handler.in_shardings, *executable.out_handler.out_shardings)
    devices: frozenset[Any] = frozenset(executable.xla_executable.local_devices())
    return devices.union(*(getattr(each, "device_set", ()) for each in shardings))


def executable_results(executable: Any) -> Sequence[Any]:
    """Returns what it results in: values with a shape and a dtype."""
    return executable.out_handler.out_avals  # type: ignore[no-any-return]


def key_words(key: Any) -> Any:
    """Returns the array of integers of a PRNG key array, without computing anything.

    None where this JAX keeps it elsewhere: then keys are not compared.
    """
    return getattr(key, "_base_array", None)
