"""Dispatches of computations, as JAX's private names tell of them.

``hook_dispatches`` says what happens where the installed JAX lacks the names; the rest is called
only if it has them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from jaxnb.compat.jax_arrays import refs_written
from jaxnb.compat.jax_programs import modules_lines, modules_text, moved_in
from jaxnb.compat.jax_runtime import reporting, runtime
from jaxnb.model.dispatches import ProgramLine


class DispatchHooks(Protocol):
    """What is told of dispatches. Nothing of it may dispatch anything itself."""

    @property
    def looks_at_values(self) -> bool:
        """Whether it looks at arguments and results: of all computations off the fast path."""

    def look_before(self, arguments: Sequence[Any]) -> Any:
        """Looks at the arguments of a computation; returns what ``look_after`` is given."""

    def look_after(self, executable: Any, depth: int, had: Any, results: Sequence[Any]) -> None:
        """Looks at the results of the computation after those ``depth``."""

    def is_recorded(self, executable: Any) -> bool:
        """Whether an executable is to be kept off JAX's fast path, so that it is told of."""

    def depth(self) -> int:
        """Returns how many dispatches this thread is making now, each within the one before."""

    def before(self, executable: Any, arguments: Sequence[Any]) -> None:
        """Takes a dispatch that is about to be made."""

    def made(self, depth: int, results: Sequence[Any], written: Sequence[Any]) -> None:
        """Takes the results of the dispatch after those ``depth``, and the buffers of its refs."""

    def failed(self, depth: int, error: BaseException) -> None:
        """Takes what was raised while those deeper than ``depth`` were made."""

    def done(self, depth: int) -> None:
        """Takes that those deeper than ``depth`` have ended, failed or not."""


@reporting
def hook_dispatches(hooks: DispatchHooks) -> None:
    """Has every dispatch of a computation told in this process, before it runs.

    JAX's fast path, in C++, calls nothing of ours: computations that are recorded do not get on
    it. They take JAX's Python path, some 40 µs longer; all others stay as fast as they were.

    Where this JAX lacks a name, cells run as before, and are not compared.
    """
    from jax._src import pjit
    from jax._src.interpreters import pxla
    from jax._src.lib import hlo  # type: ignore[attr-defined]

    hlo.HloPrintOptions.canonical  # noqa: B018  # for executable_text, as the next
    hlo.HloModule.as_serialized_hlo_module_proto  # noqa: B018
    execute = pxla.ExecuteReplicated.__call__
    get_fastpath_data = pjit._get_fastpath_data
    create_cpp_call = pxla.MeshExecutable.create_cpp_call
    _caches_of_paths()

    def call(self: Any, *arguments: Any) -> Any:
        depth = hooks.depth()
        try:
            hooks.before(self, arguments)
            had = hooks.look_before(arguments) if hooks.looks_at_values else None
            results = execute(self, *arguments)
            hooks.made(depth, results, refs_written(self, arguments))
            if had is not None:
                hooks.look_after(self, depth, had, results)
            return results
        except BaseException as error:
            hooks.failed(depth, error)
            raise
        finally:
            hooks.done(depth)

    def fastpath_data(executable: Any, *rest: Any) -> Any:
        if executable is None:
            return None
        call = getattr(executable, "unsafe_call", None)
        if isinstance(call, pxla.ExecuteReplicated) and hooks.is_recorded(call):
            return None
        return get_fastpath_data(executable, *rest)

    def cpp_call(self: Any, *rest: Any) -> Any:
        call = self.unsafe_call
        if isinstance(call, pxla.ExecuteReplicated) and hooks.is_recorded(call):
            return None
        return create_cpp_call(self, *rest)

    replace(pxla.ExecuteReplicated, "__call__", call)
    replace(pjit, "_get_fastpath_data", fastpath_data)
    replace(pxla.MeshExecutable, "create_cpp_call", cpp_call)


_replaced: list[tuple[Any, str, Any]] = []


def replace(home: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Puts a function in the place of one of JAX's, until :func:`unhook_dispatches`.

    It takes its name and its module, by which cloudpickle finds it.
    """
    original = getattr(home, name)

    @functools.wraps(original)
    def replaced(*arguments: Any) -> Any:
        return replacement(*arguments)

    _replaced.append((home, name, original))
    setattr(home, name, replaced)


def unhook_dispatches() -> None:
    """Undoes :func:`hook_dispatches`: JAX is as it was, and nothing is recorded."""
    while _replaced:
        home, name, original = _replaced.pop()
        setattr(home, name, original)


def _caches_of_paths() -> list[Callable[[], None]]:
    from jax._src import pjit

    caches = pjit._cpp_pjit_cache_fun_only, pjit._cpp_pjit_cache_explicit_attributes
    return [*(cache.clear for cache in caches), runtime().PjitFunctionCache.clear_all]


def choose_paths_again() -> None:
    """Has every jitted function choose its path again; nothing is compiled anew.

    JAX remembers that a function has got on its fast path, and that it has not. Where this JAX
    has other caches, :func:`hook_dispatches` has said so already.
    """
    for clear in _caches_of_paths():
        clear()


def executable_name(executable: Any) -> str:
    """Returns the name of what :func:`hook_dispatches` sees: ``"jit(step)"``."""
    return str(executable.name)


def executable_text(executable: Any) -> str:
    """Returns the compiled program as processes compare it; ``comparable`` says how.

    Equal for equal computations. JAX's own fingerprint is not: where functions were called
    first from different lines, it differs.
    """
    return (
        f"{executable_options(executable)}{modules_text(executable.xla_executable.hlo_modules())}"
    )


def executable_options(executable: Any) -> list[tuple[str, ...]]:
    """Returns the ``compiler_options`` that it was compiled with, if they were noted."""
    return sorted(_noted(executable, _OPTIONS))


def executable_parameters(executable: Any) -> tuple[str, ...]:
    """Returns what the function calls the arguments that it uses: ``"batch['x']"``, or empty."""
    for _, *names in _noted(executable, _PARAMETERS):
        return tuple(names[i] for i in sorted(executable.kept_var_idx) if i < len(names))
    return ()


def executable_lines(executable: Any) -> Callable[[], list[ProgramLine]]:
    """Returns what returns the compiled program for people; it does not hold the executable."""
    compiled = executable.xla_executable
    modules, moved = compiled.hlo_modules(), moved_in(compiled)
    return lambda: modules_lines(modules, moved)


_OPTIONS = "jaxnb: compiler_options"
_PARAMETERS = "jaxnb: parameters"

_DUMPS = "xla_dump_"
"""Options that begin so write files, each process its own, and change nothing that is computed."""


@reporting
def note_options_and_arguments() -> None:
    """Has executables remember the ``compiler_options`` of their ``jax.jit``, and their arguments.

    The options change what is computed (``xla_cpu_enable_fast_math``), and are in no text of the
    program. What the function calls its arguments is in it, but an equal program of another
    function may be loaded in its place.

    Where this JAX lacks a name, :func:`executable_text` leaves them out.
    """
    from jax._src.interpreters import pxla

    from_hlo = pxla.UnloadedMeshExecutable.from_hlo
    _require(from_hlo, "compiler_options_kvs", "keepalive")

    @functools.wraps(from_hlo)
    def noted(*arguments: Any, **settings: Any) -> Any:
        notes: list[tuple[str, ...]] = []
        if given := settings.get("compiler_options_kvs"):
            options = sorted(f"{n}={value!r}" for n, value in given if not n.startswith(_DUMPS))
            notes.append((_OPTIONS, *options))
        info = getattr(settings.get("all_args_info"), "debug_info", None)
        if names := getattr(info, "arg_names", None):
            notes.append((_PARAMETERS, *(each or "" for each in names)))
        if notes:  # what lives as long as the executable is saved with it: plain data
            settings["keepalive"] = [*(settings.get("keepalive") or ()), *notes]
        return from_hlo(*arguments, **settings)

    pxla.UnloadedMeshExecutable.from_hlo = staticmethod(noted)  # type: ignore[method-assign]


def _require(function: Callable[..., Any], *names: str) -> None:
    """Raises AttributeError if a function lacks one of the parameters."""
    if missing := {*names} - inspect.signature(function).parameters.keys():
        raise AttributeError(f"{function.__qualname__} takes no {', '.join(sorted(missing))}")


def _noted(executable: Any, what: str) -> Iterator[tuple[str, ...]]:
    """Yields what an executable was made to remember under a name."""
    for kept in executable.keepalive or ():
        if isinstance(kept, tuple) and kept[:1] == (what,):
            yield kept


def executable_devices(executable: Any) -> frozenset[Any]:
    """Returns the devices that it runs on, of all processes."""
    shardings = (*executable.in_handler.in_shardings, *executable.out_handler.out_shardings)
    devices: frozenset[Any] = frozenset(executable.xla_executable.local_devices())
    return devices.union(*(getattr(each, "device_set", ()) for each in shardings))


def not_compared() -> list[str]:
    """Returns what of a dispatch is not compared, as this JAX lacks a name; empty for nothing."""
    import jax
    from jax._src import core

    keys = [each for each in core.pytype_aval_mappings if each.__name__ == "PRNGKeyArray"]
    found = []
    if not isinstance(getattr(jax.sharding.Sharding, "_device_assignment", None), property):
        found.append("the order of a mesh's devices (Sharding._device_assignment)")
    if not any("_base_array" in each.__annotations__ for each in keys):
        found.append("PRNG keys (PRNGKeyArray._base_array)")
    return found


def executable_order(executable: Any) -> tuple[int, ...]:
    """Returns the ids of its devices in the program's order.

    Empty where this JAX does not tell: then processes whose meshes have other orders are told
    apart only by what goes wrong.
    """
    shardings = (*executable.in_handler.in_shardings, *executable.out_handler.out_shardings)
    orders = (getattr(each, "_device_assignment", None) for each in shardings)
    return next((tuple(device.id for device in each) for each in orders if each), ())


def executable_inputs(executable: Any, arguments: Sequence[Any]) -> list[Any]:
    """Returns the arguments that it uses; after them the refs that it is closed over."""
    kept = [each for i, each in enumerate(arguments) if i in executable.kept_var_idx]
    changes = getattr(executable, "mut", None)
    return kept if changes is None else [*kept, *changes.in_mut]


def executable_kept(executable: Any, count: int) -> tuple[int, ...] | None:
    """Returns which of so many arguments it uses; None for all."""
    kept = tuple(i for i in range(count) if i in executable.kept_var_idx)
    return None if len(kept) == count else kept


def executable_results(executable: Any) -> Sequence[Any]:
    """Returns what it results in: values with a shape and a dtype."""
    return executable.out_handler.out_avals  # type: ignore[no-any-return]


def is_of_results(error: BaseException) -> bool:
    """Whether JAX has raised it as it looked at results, by ``jax_debug_nans`` or the like."""
    from jax._src import api_util

    own = getattr(api_util, "InternalFloatingPointError", FloatingPointError)
    return isinstance(error, own | FloatingPointError)


def key_words(key: Any) -> Any:
    """Returns the array of integers of a PRNG key array, without computing anything.

    None where this JAX keeps it elsewhere: then keys are not compared.
    """
    return getattr(key, "_base_array", None)


# ``check_vma=False`` takes the check from a ``shard_map``; a ``pmap`` with ``out_axes=None`` never
# has it. The compiled program does not show it, so it is noted where JAX lowers a ``shard_map``.

_AXES = "jaxnb: axes of unchecked replicas"


@reporting
def note_unchecked_results() -> None:
    """Has executables remember over which mesh axes they declare results replicated, unchecked.

    Where this JAX lacks a name, :func:`unchecked_axes` returns nothing.
    """
    from jax._src import shard_map
    from jax._src.interpreters import mlir

    lower = shard_map._shard_map_lowering
    mlir.ModuleContext.add_keepalive  # noqa: B018
    _require(lower, "mesh", "out_specs", "check_vma", "newly_manual_axes")
    _require(mlir.LoweringParameters, "for_export")

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


def _axes_in(spec: Any) -> set[Any]:
    found = set(getattr(spec, "unreduced", ()))
    for each in spec:
        found.update(each if isinstance(each, tuple) else (each,))
    return found


def unchecked_axes(executable: Any) -> tuple[str, ...]:
    """Returns over which mesh axes a program declares results replicated that nobody has checked.

    What :func:`note_unchecked_results` has had it remember; empty for most programs.
    """
    noted = _noted(executable, _AXES)
    return tuple(dict.fromkeys(axis for _, *axes in noted for axis in axes))
