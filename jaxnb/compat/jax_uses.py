"""What is lost where a private name of JAX is gone, by what ``compat/jax_*`` do with it.

Their functions say by themselves why they cannot do their work; the probes ask those that change
JAX, and look for the names of the others. What each does is tested one by one besides.
"""

from __future__ import annotations

from typing import Any

from jaxnb.compat import (
    jax_arrays,
    jax_compiling,
    jax_dispatch,
    jax_fast_path,
    jax_pitfalls,
    jax_runtime,
)
from jaxnb.compat.jax_fast_path import Shortcut
from jaxnb.compat.uses import Use, absent


class _Unheard:
    """Takes whatever it is told."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def _probe_dispatches() -> str:
    why = jax_dispatch.hook_dispatches(_Unheard())
    jax_dispatch.unhook_dispatches()
    return why


def _probe_comparisons() -> str:
    return jax_dispatch.note_compiler_options() or "; ".join(jax_dispatch.not_compared())


def _probe_origins() -> str:
    hooks = jax_arrays.hook_creations, jax_arrays.hook_puts, jax_arrays.hook_parts
    return next(filter(None, (hook(lambda *_: None) for hook in hooks)), "")


def _probe_pitfalls() -> str:
    hooks: Any = _Unheard()
    return "; ".join(jax_pitfalls.hook_pitfalls(hooks).values())


def _probe_exact_arrays() -> str:
    return absent("jax._src.array", "ArrayImpl") or absent(
        "jax._src.core", "Ref", "ArrayRefImpl", "pytype_aval_mappings"
    )


USES = (
    Use(
        "JAX",
        ("_jax.get_distributed_runtime_service", "distributed.global_state"),
        "a coordination service in a process of its own, which outlives any process",
        "Nothing works: a start ends with an error.",
        lambda: absent("jax._src.lib", "_jax.get_distributed_runtime_service")
        or absent("jax._src.distributed", "global_state.client"),
    ),
    Use(
        "JAX",
        ("xla_bridge._backend_factories", "_jax.make_gloo_tcp_collectives"),
        "binding CPU collectives to 127.0.0.1",
        "Nothing works: a start ends with an error, as others on the network could connect.",
        lambda: absent("jax._src.xla_bridge", "_backend_factories", "make_cpu_client")
        or absent("jax._src.lib", "_jax.make_gloo_tcp_collectives"),
    ),
    Use(
        "JAX",
        ("pxla.ExecuteReplicated.__call__", "pjit._get_fastpath_data",
         "pxla.MeshExecutable.create_cpp_call", "hlo.HloPrintOptions"),
        "lockstep: every dispatch over processes is agreed on before it is made",
        "Strict mode is refused; with `--check off` processes that diverge hang or are wrong.",
        _probe_dispatches,
    ),
    Use(
        "JAX",
        ("pxla.UnloadedMeshExecutable.from_hlo", "Sharding._device_assignment",
         "PRNGKeyArray._base_array"),
        "comparing compiler options, the order of devices, and PRNG keys",
        "These are not compared; a start says so.",
        _probe_comparisons,
    ),
    Use(
        "JAX",
        ("shard_map._shard_map_lowering", "mlir.register_lowering",
         "mlir.ModuleContext.add_keepalive"),
        "comparing results that a `shard_map` without `check_vma` declares replicated",
        "These are not compared; a start says so.",
        jax_fast_path.note_unchecked_results,
    ),
    Use(
        "JAX",
        ("compiler.backend_compile_and_load", "cache_key._hash_serialized_compile_options",
         "cache_key._hash_xla_flags", "config.enable_compilation_cache"),
        "compiling each program once",
        "Each process compiles by itself; a start says so.",
        lambda: jax_compiling.hook_compilations(lambda wanted: wanted.compile()),
    ),
    Use(
        "JAX",
        ("pjit._run_python_pjit", "_jax.pjit", "util.weakref_lru_cache"),
        "a short way for dispatches that are agreed on",
        "Each such dispatch takes 40 µs longer.",
        lambda: Shortcut(_Unheard()).install(),
    ),
    Use(
        "JAX",
        ("config.config_ext.Config(include_in_jit_key=)",),
        "dispatches of a thread beside those of the main thread",
        "Two threads that call one function for the first time may wait for each other for ever.",
        jax_runtime.separate_main_thread,
    ),
    Use(
        "JAX",
        ("_jax.DistributedRuntimeClient.wait_at_barrier",),
        "knowing who waits at a barrier of JAX's",
        "A barrier to which not all processes come ends by its own time-out only.",
        lambda: jax_runtime.hook_barriers(_Unheard()),  # type: ignore[arg-type]
    ),
    Use(
        "JAX",
        ("ArrayImpl.__init__", "xla_client.batched_device_put", "dispatch._device_put_impl"),
        "knowing where each global array came from",
        "Inputs of unknown origin are not compared.",
        _probe_origins,
    ),
    Use(
        "JAX",
        ("ArrayImpl(committed=, _skip_checks=)", "core.Ref", "core.ArrayRefImpl"),
        "arrays and refs that survive a recovery exactly as they were",
        "Weak types are lost, arrays become committed, and refs are copied by all processes.",
        _probe_exact_arrays,
    ),
    Use(
        "JAX",
        ("PjitFunction._jit_info", "pjit._cpp_pjit"),
        "carrying jitted functions with their shardings",
        "A function that was jitted with shardings is carried without them.",
        lambda: absent("jax._src.pjit", "_cpp_pjit"),
    ),
    Use(
        "JAX",
        ("tree_util._registry",),
        "carrying classes of pytrees that a cell has registered",
        "Instances of such a class are leaves after a recovery.",
        lambda: absent("jax._src.tree_util", "_registry"),
    ),
    Use(
        "JAX",
        ("pxla.lower_sharding_computation", "pmap._get_mesh_devices",
         "dispatch._device_put_sharding_impl"),
        "pitfalls that a cell is told of",
        "That pitfall is not told of.",
        _probe_pitfalls,
    ),
)  # fmt: skip
"""What is used in ``compat/jax_*``."""
