"""Settings that change what a process computes: which they are, and what follows if they differ."""

from __future__ import annotations

from collections.abc import Mapping

Settings = tuple[tuple[str, str], ...]
"""Names of settings with their values as text."""

_SIZES = "Numbers and arrays that are made there have another size."
_RANDOM = "The same key gives other random numbers there."
_PRECISION = "The same code computes with another precision there."
_PROGRAM = "The same code may be compiled into another program there."
_ALONE = (
    "A NaN has JAX compute again there, operation by operation, and that process alone: its "
    "collectives would wait for the others. `%%spmd --nans` finds the first NaN without."
)
_EAGER = "Functions run operation by operation there: their dispatches are not the others'."
_RAISES = "Code may raise there that passes on the others, which then wait for it."
_START = "Programs may be compiled into something else there."

PROGRAM_SETTINGS: Mapping[str, str] = {
    "jax_enable_x64": _SIZES,
    "jax_explicit_x64_dtypes": _SIZES,
    "jax_default_dtype_bits": _SIZES,
    "jax_numpy_dtype_promotion": _SIZES,
    "jax_default_prng_impl": _RANDOM,
    "jax_enable_custom_prng": _RANDOM,
    "jax_threefry_partitionable": _RANDOM,
    "jax_random_seed_offset": _RANDOM,
    "jax_high_dynamic_range_gumbel": _RANDOM,
    "jax_default_matmul_precision": _PRECISION,
    "jax_allow_f16_reductions": _PRECISION,
    "jax_softmax_custom_jvp": _PRECISION,
    "jax_debug_nans": _ALONE,
    "jax_debug_infs": _ALONE,
    "jax_use_shardy_partitioner": _PROGRAM,
    "jax_optimization_level": _PROGRAM,
    "jax_exec_time_optimization_effort": _PROGRAM,
    "jax_memory_fitting_level": _PROGRAM,
    "jax_memory_fitting_effort": _PROGRAM,
}
"""Settings of ``jax.config`` that change programs or what they are given, with what follows."""

OTHER_SETTINGS: Mapping[str, str] = {
    # JAX switches it off around each operation that it makes one of: not to be seen in a dispatch.
    "jax_disable_jit": _EAGER,
    **dict.fromkeys(
        (
            "jax_disable_most_optimizations",
            "jax_compiler_enable_remat_pass",
            "jax_enable_pgle",
            "jax_use_direct_linearize",
            "jax_use_simplified_jaxpr_constants",
            "jax_remove_size_one_mesh_axis_from_type",
            "jax_threefry_gpu_kernel_lowering",
            "jax_ragged_dot_use_ragged_dot_instruction",
            "jax_ragged_dot_use_gpu_pallas_triton_lowering",
            "jax_xla_profile_version",
            "eager_constant_folding",
        ),
        _PROGRAM,
    ),
    **dict.fromkeys(
        (
            "jax_numpy_rank_promotion",
            "jax_transfer_guard",
            "jax_transfer_guard_host_to_device",
            "jax_transfer_guard_device_to_host",
            "jax_transfer_guard_device_to_device",
            "jax_debug_key_reuse",
            "jax_check_tracer_leaks",
            "jax_check_static_indices",
            "jax_enable_checks",
            "jax_thread_guard",
            "jax_legacy_prng_key",
            "jax_no_tracing",
            "jax_no_execution",
            "jax_mutable_array_checks",
            "jax_error_checking_behavior_nan",
            "jax_error_checking_behavior_divide",
            "jax_error_checking_behavior_oob",
        ),
        _RAISES,
    ),
}
"""More of ``jax.config``: rarer ones, and those that only have code raise."""

START_SETTINGS: Mapping[str, str] = {
    "XLA_FLAGS": _START,
    "LIBTPU_INIT_ARGS": _START,
    **dict.fromkeys(
        (f"version of {name}" for name in ("Python", "jax", "jaxlib", "numpy", "ml_dtypes")),
        _START,
    ),
}
"""What a process has from its start on, and keeps."""

ENVIRONMENT: tuple[str, ...] = (
    "XLA_FLAGS",
    "LIBTPU_INIT_ARGS",
    *(name.upper() for name in (*PROGRAM_SETTINGS, *OTHER_SETTINGS) if name.startswith("jax_")),
)
"""Environment variables that JAX and XLA read as a process starts, and never again."""

READ_AT_START = (
    "It was changed after the start, with no effect: JAX and XLA read it as a process starts."
)

CONSEQUENCES: Mapping[str, str] = {**PROGRAM_SETTINGS, **OTHER_SETTINGS, **START_SETTINGS}

HARMLESS = frozenset({"allow", "log", "warn", "None", "ignore"})
"""Values of a setting that has code raise, with which nothing is raised."""
