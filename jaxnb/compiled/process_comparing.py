"""Compiles and runs one function under several shardings, on all processes of a cell."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from jaxnb.arrays.process_describe import mesh_and_spec
from jaxnb.compiled import (
    collectives_table,
    outputs,
    process_measuring,
    process_placing,
    process_variants,
    process_variants_agreed,
)
from jaxnb.compiled.process_compiled import described, equations, report_of
from jaxnb.compiled.process_variants import Given
from jaxnb.errors import UsageError
from jaxnb.labels import processes_label
from jaxnb.model.compiled import (
    ComparisonReport,
    ComparisonStage,
    LeafLayout,
    OutputWarning,
    Variant,
    VariantFailure,
)
from jaxnb.wire.process_together import exchange, members


@dataclass(frozen=True)
class Settings:
    """How to compare.

    Attributes:
        specs: Name of a variant to its specs.
        mesh: The mesh of all variants that have none of their own.
        meshes: Name to the mesh of a variant.
        out_specs: Name to the specs of a variant's outputs.
        repeats: How many calls to measure; None for as many as take a second.
        run: Whether to run anything.
        namespace: Where meshes may have names.
    """

    specs: Mapping[str, Any]
    mesh: Any
    meshes: Mapping[str, Any]
    out_specs: Mapping[str, Any]
    repeats: int | None
    run: bool
    namespace: Mapping[str, Any]


@dataclass
class _Made:
    """A variant, as far as it has come on this process."""

    variant: Variant
    mesh: Mesh | None = None
    shardings: Sequence[NamedSharding] = ()
    traced: Any = None
    compiled: Any = None
    seconds: float = 0.0
    warnings: tuple[OutputWarning, ...] = ()

    @property
    def is_here(self) -> bool:
        """Whether this process has devices of the mesh."""
        return self.mesh is None or jax.process_index() in _processes(self.mesh)


def compare(
    function: Any, arguments: Any, keywords: Mapping[str, Any], settings: Settings
) -> ComparisonReport:
    """Compares a function under several shardings; all processes of the cell must do so.

    What they learn they tell each other, so that each returns the same. Nothing that is there
    is changed: arguments are copied where they have to be moved, and none is donated.

    Args:
        function: The function.
        arguments: Its positional arguments.
        keywords: Its keyword arguments; none has arrays.
        settings: The variants, and how to compare them.

    Raises:
        UsageError: There is nothing to compare.
        JaxnbError: A call raised on some processes only.
    """
    call = process_variants.given(function, arguments, keywords)
    not_run = "" if settings.run else "`--no-run` (`run=False`) was given"
    if call.without_data:
        not_run = f"{_listed(call.without_data)} {'have' if len(call.without_data) > 1 else 'has'} "
        not_run += "a shape and no data (jax.ShapeDtypeStruct)"
    rows: list[Variant] = []
    notes: dict[str, None] = {}
    for name in settings.specs:
        made = _compile(call, name, settings)
        if made.traced is not None:
            notes |= dict.fromkeys(_notes(made.traced))
        row = _together(made, will_run=not not_run)
        if row.failure is None and not not_run:
            row = _run(call, made, row, settings.repeats)
        rows.append(row)
    return ComparisonReport(
        function=call.name,
        variants=tuple(rows),
        num_processes=len(members()),
        not_run=not_run,
        notes=(*notes, *_cache_note()),
    )


def _listed(names: Sequence[str]) -> str:
    shown = [f"`{name}`" for name in names[:3]]
    return ", ".join(shown) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _compile(call: Given, name: str, settings: Settings) -> _Made:
    """Compiles a variant in this process; what goes wrong is in its row."""
    made = _Made(Variant(name))
    stage: ComparisonStage = "placed"
    try:
        specs = settings.specs[name]
        asked = settings.meshes.get(name, settings.mesh)
        mesh = made.mesh = process_variants.mesh_of(asked, specs, call, settings.namespace)
        made.variant = replace(made.variant, mesh=mesh_and_spec(NamedSharding(mesh, jax.P()))[0])
        _require_members(mesh)
        shardings = made.shardings = process_variants.shardings(call, specs, mesh)
        out = settings.out_specs.get(name)
        extra = {} if out is None else {"out_shardings": process_variants.out_shardings(out, mesh)}
        stage = "traced"
        given = [_abstract(a, s) for a, s in zip(call.arrays, shardings, strict=True)]
        with jax.set_mesh(mesh):  # for `with_sharding_constraint(x, P(...))` in the function
            made.traced = jax.jit(call.on_arrays(), **extra).trace(*given)
        started = time.perf_counter()
        stage = "lowered"
        lowered = made.traced.lower()
        stage = "compiled"
        made.compiled = lowered.compile()
        made.seconds = time.perf_counter() - started
        stage = "read"
        report = report_of(given, made.traced, made.compiled)
        made.variant = replace(made.variant, report=report)
        if out is None:
            made.warnings = _warnings(call, made, mesh)
    except (Exception, SystemExit) as error:
        message = str(error) if isinstance(error, UsageError) else ""
        made.variant = replace(
            made.variant, report=None, failure=VariantFailure(stage, message, described(error))
        )
    return made


def _abstract(leaf: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    dtype = leaf.dtype
    if not jnp.issubdtype(dtype, jax.dtypes.extended):
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    weak = bool(getattr(leaf, "weak_type", False))
    return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=sharding, weak_type=weak)


def _processes(mesh: Mesh) -> set[int]:
    return {device.process_index for device in mesh.devices.flat}


def _require_members(mesh: Mesh) -> None:
    others = _processes(mesh) - set(members())
    if others:
        raise UsageError(
            f"The mesh has devices of {processes_label(others)}, which this cell does not run on."
        )


def _warnings(call: Given, made: _Made, mesh: Mesh) -> tuple[OutputWarning, ...]:
    arguments = [
        process_variants.layout(call.paths[place], call.keys[place], call.leaves[place], sharding)
        for place, sharding in zip(call.places, made.shardings, strict=True)
    ]
    found: list[LeafLayout] = []
    avals = jax.tree_util.tree_leaves_with_path(made.traced.out_info)
    shardings = jax.tree.leaves(made.compiled.output_shardings)
    for (path, aval), sharding in zip(avals, shardings, strict=True):
        last = jax.tree_util.keystr(path[-1:])
        text = "output" + jax.tree_util.keystr(path)
        found.append(process_variants.layout(text, last, aval, sharding))
    return outputs.warnings_of(arguments, found, dict(mesh.shape))


def _together(made: _Made, *, will_run: bool) -> Variant:
    """Returns a variant's row, once all processes have told how it went with them."""
    row = made.variant
    error = row.failure and row.failure.error
    memory = row.report.memory if row.report else None
    used = 0
    if memory is not None:
        used = memory.argument_bytes + memory.output_bytes + memory.temporary_bytes
        used -= memory.alias_bytes
    words = exchange({
        "here": made.is_here,
        "failure": row.failure and [row.failure.stage, row.failure.message],
        "error": error and process_measuring.as_word(error),
        "fingerprint": row.report.fingerprint if row.report else "",
        "seconds": made.seconds,
        "host": socket.gethostname(),
        "needs": used * len(process_variants_agreed.local_devices(made.mesh)),
        "free": process_variants_agreed.free_bytes(made.mesh),
    })  # fmt: skip
    words = {i: word for i, word in words.items() if word["here"]}
    if (failure := process_variants_agreed.failure(words)) is not None:
        return replace(row, report=None, failure=failure)
    if row.report is None:  # this process has no device of the mesh
        return replace(row, failure=None, compile_seconds=_most(words, "seconds"))
    totals = collectives_table.totals(row.report.collectives)
    return replace(
        row,
        bytes=sum(total.bytes for total in totals),
        collectives=sum(total.count for total in totals),
        memory_bytes=None if memory is None else used,
        compile_seconds=_most(words, "seconds"),
        warnings=made.warnings,
        failure=process_variants_agreed.too_large(words) if will_run else None,
    )


def _most(words: Mapping[int, Mapping[str, Any]], key: str) -> float:
    return float(max(word[key] for word in words.values()))


def _run(call: Given, made: _Made, row: Variant, repeats: int | None) -> Variant:
    """Runs a variant on its processes; the others hear how it went."""
    arrays: list[jax.Array] = []

    def prepare() -> None:
        assert made.mesh is not None
        process_placing.require_devices(call, made.mesh)
        pairs = zip(call.arrays, made.shardings, strict=True)
        arrays.extend(process_placing.placed(leaf, sharding) for leaf, sharding in pairs)
        jax.block_until_ready(arrays)

    run = (lambda: made.compiled(*arrays)) if made.is_here else None
    try:
        return replace(row, timing=process_measuring.measure(run, prepare, repeats))
    except process_measuring.CallFailedError as error:
        first = next(iter(error.errors.values()))
        if first.type_name == "UsageError":
            return replace(row, failure=VariantFailure("run", first.message))
        who = f"on {processes_label(error.errors)}:" if len(members()) > 1 else ""
        return replace(row, failure=VariantFailure("run", who, first))


def _notes(traced: Any) -> list[str]:
    notes = []
    for equation in equations(traced):
        if any(equation.params.get("donated_invars", ())):
            notes.append(
                "The function donates arguments. Donation is off here so that the arguments can "
                "be reused, so it needs more memory than with donation."
            )
        kinds = ("in_shardings", "out_shardings")
        given = [each for kind in kinds for each in equation.params.get(kind, ())]
        if any(isinstance(each, NamedSharding) for each in given):
            notes.append(
                "The function is already jitted with shardings of its own, which apply to every "
                "variant: pass the function before `jax.jit`."
            )
    return notes


def _cache_note() -> list[str]:
    config: Any = jax.config  # its settings are made when JAX is imported
    folder = config.jax_compilation_cache_dir
    if not folder or not config.jax_enable_compilation_cache:
        return []
    return [f"JAX may load programs from its cache in {folder}: compile times may be too low."]


def namespace() -> Mapping[str, Any]:
    """Returns the user's names: those of the cell, or of the script."""
    return vars(sys.modules["__main__"])
