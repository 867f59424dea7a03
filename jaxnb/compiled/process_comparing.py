"""Compiles and runs one function under several shardings, on all processes of a cell."""

from __future__ import annotations

import math
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from jaxnb.arrays.process_describe import mesh_and_spec
from jaxnb.compiled import process_variants, ranking
from jaxnb.compiled.process_compiled import described, equations, report_of
from jaxnb.compiled.process_variants import Given
from jaxnb.errors import JaxnbError, UsageError
from jaxnb.labels import format_bytes, processes_label
from jaxnb.launch.host import available_bytes
from jaxnb.model import compiled as model
from jaxnb.model.cells import ProcessError, middle_half
from jaxnb.wire.process_together import exchange, members

LEAST, MOST = 5, 200
"""How many calls are measured, unless the user says how many."""

CALL_SECONDS = 1.0
"""About how long a variant is measured, if that is enough for the least number of calls."""

COME_BACK_SECONDS = 10.0
"""How long a process whose call has raised waits for the others.

If the call has raised on all of them, they come at once, and the comparison goes on. Else they wait
in a collective that this process has left, and only its cell's end lets jaxnb free them.
"""


class CallFailedError(Exception):
    """A call raised, and all processes are out of it.

    Attributes:
        errors: What it raised, by process.
    """

    def __init__(self, errors: Mapping[int, ProcessError]) -> None:
        super().__init__(str(next(iter(errors.values()))))
        self.errors = errors


def measure(
    call: Callable[[], Any] | None, prepare: Callable[[], None], repeats: int | None
) -> model.Timing:
    """Calls a function on all processes of the cell, and measures how long its results take.

    After a first call and a second one the processes agree how many follow.

    Args:
        call: The call; None on a process that takes no part in it, which only hears of it.
        prepare: Makes what the call needs; what it raises counts as the call's.
        repeats: How many calls to measure; by default as many as take a second, 5 to 200.

    Raises:
        CallFailedError: It raised, and no process is left in it.
        JaxnbError: It raised on some, and others did not come back from it.
    """
    begun = _timed_together(call, 2, prepare)
    longest = max(1e-6, *(seconds[1] for seconds in begun.values()))
    number = repeats or min(MOST, max(LEAST, math.ceil(CALL_SECONDS / longest)))
    by_process = _timed_together(call, number)
    calls = [max(each) for each in zip(*by_process.values(), strict=True)]
    medians = {i: statistics.median(each) for i, each in by_process.items()}
    slowest = max(medians, key=lambda i: medians[i]) if len(medians) > 1 else None
    low, high = middle_half(calls)
    return model.Timing(
        median=statistics.median(calls),
        low=low,
        high=high,
        repeats=len(calls),
        first=max(seconds[0] for seconds in begun.values()),
        slowest=slowest,
    )


def _timed_together(
    call: Callable[[], Any] | None, count: int, prepare: Callable[[], None] = lambda: None
) -> dict[int, list[float]]:
    """Returns the seconds of calls on each process that takes part in them."""
    seconds: list[float] = []
    word: dict[str, Any] = {"error": None, "seconds": seconds}
    if call is not None:
        try:
            prepare()
            for _ in range(count):
                started = time.perf_counter()
                jax.block_until_ready(call())
                seconds.append(time.perf_counter() - started)
        except Exception as error:
            word["error"] = asdict(described(error))
    raised = word["error"]
    try:
        words = exchange(word, COME_BACK_SECONDS if raised else None)
    except JaxnbError as silence:
        raise JaxnbError(
            f"the call raised {raised['type_name']}: {raised['message']}, and {silence}. The "
            "comparison was given up"
        ) from silence
    failed = {i: ProcessError(**each["error"]) for i, each in words.items() if each["error"]}
    if failed:
        raise CallFailedError(failed)
    return {i: each["seconds"] for i, each in words.items() if each["seconds"]}


def failure(words: Mapping[int, Mapping[str, Any]]) -> model.VariantFailure | None:
    """Returns why the processes cannot run a variant together; None if they can."""
    failed = {i: word for i, word in words.items() if word["failure"]}
    if failed:
        first = next(iter(failed.values()))
        stage, message = first["failure"]
        if len(failed) < len(words):
            message = f"on {processes_label(failed)} only. {message}".strip()
        return model.VariantFailure(stage, message, ProcessError(**first["error"]))
    groups: dict[str, list[int]] = {}
    for index, word in words.items():
        groups.setdefault(word["fingerprint"], []).append(index)
    if len(groups) > 1:
        sides = " ≠ ".join(map(processes_label, groups.values()))
        return model.VariantFailure(
            "agreed",
            f"they compiled different programs, {sides}. It was not run: the results would be "
            "wrong, and JAX would not notice.",
        )
    return None


def local_devices(mesh: Mesh | None) -> list[Any]:
    """Returns the devices of a mesh that are this process's."""
    devices = () if mesh is None else mesh.devices.flat
    return [device for device in devices if device.process_index == jax.process_index()]


def free_bytes(mesh: Mesh | None) -> int | None:
    """Returns what the devices of a mesh that are here can still take; None if unknown."""
    local = local_devices(mesh)
    if not local:
        return None
    if local[0].platform == "cpu":
        return available_bytes()
    free = []
    for device in local:
        known = device.memory_stats() or {}
        if "bytes_limit" in known and "bytes_in_use" in known:
            free.append(known["bytes_limit"] - known["bytes_in_use"])
    return min(free) * len(local) if len(free) == len(local) else None


def too_large(words: Mapping[int, Mapping[str, Any]]) -> model.VariantFailure | None:
    """Returns why a variant is not run: where its memory is wanted, there is not enough.

    On a CPU the processes of a host share its memory, and Linux would kill one of them instead of
    refusing.
    """
    hosts: dict[str, list[Mapping[str, Any]]] = {}
    for word in words.values():
        if word["free"] is not None:
            hosts.setdefault(word["host"], []).append(word)
    is_cpu = jax.default_backend() == "cpu"
    for host, known in hosts.items():
        pairs = [(word["needs"], word["free"]) for word in known]
        if is_cpu:
            pairs = [(sum(needs for needs, _ in pairs), min(free for _, free in pairs))]
        for needs, free in pairs:
            if needs > free:
                return model.VariantFailure(
                    "run",
                    f"it needs {format_bytes(needs)} on {host}, where {format_bytes(free)} are "
                    "free.",
                )
    return None


@dataclass
class _Made:
    """A variant, as far as it has come on this process."""

    variant: model.Variant
    mesh: Mesh | None = None
    shardings: Sequence[NamedSharding] = ()
    traced: Any = None
    compiled: Any = None
    seconds: float = 0.0
    warnings: tuple[model.OutputWarning, ...] = ()

    @property
    def is_here(self) -> bool:
        """Whether this process has devices of the mesh."""
        return self.mesh is None or jax.process_index() in _processes(self.mesh)


def compare(
    call: Given,
    specs: Mapping[str, Any],
    mesh: Any,
    out_specs: Mapping[str, Any],
    repeats: int | None,
    run: bool,
) -> model.ComparisonReport:
    """Compares a function under several shardings; all processes of the cell must do so.

    What they learn they tell each other, so that each returns the same. Nothing that is there
    is changed: arguments are copied where they have to be moved, and none is donated.

    Args:
        call: The function and its arguments.
        specs: Name of a variant to its specs.
        mesh: The mesh of the variants whose specs have none.
        out_specs: Name to the specs of a variant's outputs.
        repeats: How many calls to measure; None for as many as take a second.
        run: Whether to run anything.

    Raises:
        JaxnbError: A call raised on some processes only.
    """
    not_run = "" if run else "`--no-run` (`run=False`) was given"
    if call.without_data:
        not_run = f"{_listed(call.without_data)} {'have' if len(call.without_data) > 1 else 'has'} "
        not_run += "a shape and no data (jax.ShapeDtypeStruct)"
    rows: list[model.Variant] = []
    notes: dict[str, None] = {}
    for name in specs:
        made = _compile(call, name, specs[name], mesh, out_specs.get(name))
        if made.traced is not None:
            notes |= dict.fromkeys(_notes(made.traced))
            if made.traced.out_info[1]:
                notes[_CHANGES] = None
        row = _together(made, will_run=not not_run)
        if row.failure is None and not not_run:
            row = _run(call, made, row, repeats)
        rows.append(row)
    return model.ComparisonReport(
        function=call.name,
        variants=tuple(rows),
        num_processes=len(members()),
        not_run=not_run,
        notes=(*notes, *_same_programs(rows), *_cache_note()),
    )


def _same_programs(rows: Sequence[model.Variant]) -> Iterator[str]:
    """Yields which variants are one program on one mesh: their times differ by chance."""
    names: dict[Any, list[str]] = {}
    for row in rows:
        if row.report is not None:
            names.setdefault((row.report.fingerprint, row.mesh), []).append(row.name)
    for alike in names.values():
        if len(alike) > 1:
            yield f"{' and '.join(alike)} are the same program: their times differ by chance."


def _listed(names: Sequence[str]) -> str:
    shown = [f"`{name}`" for name in names[:3]]
    return ", ".join(shown) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _compile(call: Given, name: str, specs: Any, asked: Any, out: Any) -> _Made:
    """Compiles a variant in this process; what goes wrong is in its row."""
    made = _Made(model.Variant(name))
    stage: model.ComparisonStage = "placed"
    try:
        mesh = made.mesh = process_variants.mesh_of(asked, specs, call)
        made.variant = replace(made.variant, mesh=mesh_and_spec(NamedSharding(mesh, jax.P()))[0])
        _require_members(mesh)
        shardings = made.shardings = process_variants.shardings(call, specs, mesh)
        extra: dict[str, Any] = {}
        if out is not None:
            extra = {"out_shardings": (process_variants.out_shardings(out, mesh), None)}
        stage = "traced"
        given = [_abstract(a, s) for a, s in zip(call.arrays, shardings, strict=True)]
        with jax.set_mesh(mesh):  # for `with_sharding_constraint(x, P(...))` in the function
            made.traced = jax.jit(call.on_arrays(), **extra).trace(*call.filled(given))
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
            made.variant,
            report=None,
            failure=model.VariantFailure(stage, message, described(error)),
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


def _warnings(call: Given, made: _Made, mesh: Mesh) -> tuple[model.OutputWarning, ...]:
    arguments = [
        process_variants.layout(call.paths[place], call.keys[place], call.leaves[place], sharding)
        for place, sharding in zip(call.places, made.shardings, strict=True)
    ]
    found: list[model.LeafLayout] = []
    avals = jax.tree_util.tree_leaves_with_path(made.traced.out_info[0])
    shardings = jax.tree.leaves(made.compiled.output_shardings[0])
    for (path, aval), sharding in zip(avals, shardings, strict=True):
        last = jax.tree_util.keystr(path[-1:])
        text = "output" + jax.tree_util.keystr(path)
        found.append(process_variants.layout(text, last, aval, sharding))
    return ranking.warnings_of(arguments, found, dict(mesh.shape))


def _together(made: _Made, *, will_run: bool) -> model.Variant:
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
        "error": error and asdict(error),
        "fingerprint": row.report.fingerprint if row.report else "",
        "seconds": made.seconds,
        "host": socket.gethostname(),
        "needs": used * len(local_devices(made.mesh)),
        "free": free_bytes(made.mesh),
    })  # fmt: skip
    words = {i: word for i, word in words.items() if word["here"]}
    seconds = float(max(word["seconds"] for word in words.values()))
    if (failed := failure(words)) is not None:
        return replace(row, report=None, failure=failed)
    if row.report is None:  # this process has no device of the mesh
        return replace(row, failure=None, compile_seconds=seconds)
    totals = row.report.totals
    return replace(
        row,
        bytes=sum(total.bytes for total in totals),
        scatter_bytes=sum(total.scatter_bytes for total in totals),
        collectives=sum(total.count for total in totals),
        memory_bytes=None if memory is None else used,
        compile_seconds=seconds,
        warnings=made.warnings,
        failure=too_large(words) if will_run else None,
    )


def _run(call: Given, made: _Made, row: model.Variant, repeats: int | None) -> model.Variant:
    """Runs a variant on its processes; the others hear how it went."""
    given: list[Any] = []  # made once: calls are timed

    def prepare() -> None:
        assert made.mesh is not None
        process_variants.require_devices(call, made.mesh)
        pairs = zip(call.arrays, made.shardings, strict=True)
        given.extend(call.filled(process_variants.placed(*each) for each in pairs))
        jax.block_until_ready(given)

    run = (lambda: made.compiled(*given)) if made.is_here else None
    try:
        return replace(row, timing=measure(run, prepare, repeats))
    except CallFailedError as error:
        first = next(iter(error.errors.values()))
        if first.type_name == "UsageError":
            return replace(row, failure=model.VariantFailure("run", first.message))
        who = f"on {processes_label(error.errors)}:" if len(members()) > 1 else ""
        return replace(row, failure=model.VariantFailure("run", who, first))


_CHANGES = (
    "The function changes its arguments, as flax's modules: their new arrays count as results "
    "here, and your own arrays are unchanged. Its Python code ran once for each variant."
)


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
