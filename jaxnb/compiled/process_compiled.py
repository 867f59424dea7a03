"""Lowers and compiles a call without running it, and tells what came out."""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import os
import pickle
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from traitlets.config import SingletonConfigurable

from jaxnb.arrays.lost import LostArray, LostValue
from jaxnb.arrays.process_describe import mesh_and_spec, require_tree
from jaxnb.cells.process_repeating import keep_lines
from jaxnb.compat import jax_programs
from jaxnb.compat.xla import Program
from jaxnb.compiled import collectives as tables
from jaxnb.compiled.compiling import parse_call, require_call, taken_apart
from jaxnb.launch import process_join
from jaxnb.launch.lifeline import end_with_parent
from jaxnb.model import compiled as model
from jaxnb.model.arrays import MeshInfo
from jaxnb.model.cells import ProcessError
from jaxnb.recovery import files, process_variables
from jaxnb.recovery.files import Contents
from jaxnb.recovery.messages import Source
from jaxnb.recovery.process_arrays import Check, Listing, Place, is_array
from jaxnb.recovery.process_pickling import pack
from jaxnb.recovery.process_reading import Reading

if TYPE_CHECKING:
    from jaxnb.wire.process_sentinel import ThisProcess


MAX_OUTPUT = 20_000
"""Characters of what a plan prints; its end is kept."""

MAX_THREADS = 512


def answer(request: model.PlanRequest) -> model.PlanReply:
    """Answers a plan in this process, which has not used JAX yet.

    Its devices are the CPU's, whatever else there is: no GPU is touched.
    """
    # What the code computes on all devices needs a thread for each of them. Nobody else is
    # served by this process, so there is no other use for them.
    os.environ["NPROC"] = str(max(4, min(2 * request.num_devices, MAX_THREADS)))
    _use_cpus(request.num_devices)
    namespace = _namespace(request.definitions, {})
    before, printed = dict(namespace), io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        found = _prepared(request, namespace)
    made = {k: v for k, v in namespace.items() if type(v) is Mesh and before.get(k) is not v}
    if request.definitions is not None and made:
        # Again, with what cells made for a mesh of the group made for the plan's mesh.
        namespace, printed = _namespace(request.definitions, made), io.StringIO()
        with redirect_stdout(printed), redirect_stderr(printed):
            found = _prepared(request, namespace)
    with redirect_stdout(printed), redirect_stderr(printed):
        reply: model.CompiledReport | model.NotCompiled | model.ComparisonReport
        if isinstance(found, ast.Call):
            reply = compile_call(found, namespace, request.name)
        else:
            reply = found
    return model.PlanReply(reply, _end_of(printed.getvalue()))


def _use_cpus(count: int) -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", count)


class _Definitions(Reading):
    """A group's variables in a plan: their meshes have the plan's devices.

    Args:
        source: What is read.
        meshes: The plan's, of all devices or of some.
    """

    def __init__(self, source: Source, meshes: Mapping[str, Mesh]) -> None:
        super().__init__(source, {})
        self._meshes = [*dict.fromkeys(meshes.values())]

    def device(self, place: Place) -> jax.Device:
        """Raises LookupError: no device stands for one of the group."""
        raise LookupError(f"it needs a {place[0]} device of the group")

    def mesh(self, places: Sequence[Place], mesh: Mapping[str, int], types: Any) -> Mesh:
        """Returns the plan's mesh of the same axis names, or one of all devices."""
        return self.mesh_of_all(jax.devices(), mesh, types)


def _namespace(packed: Contents | None, meshes: Mapping[str, Mesh]) -> dict[str, Any]:
    """Returns what a plan begins with.

    Args:
        packed: The variables of a group, as :func:`definitions` returned them.
        meshes: The plan's meshes.
    """
    # A module of its own as __main__: dataclasses and pickle look a class's module up.
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    namespace = vars(module)
    namespace.update(process_join.namespace())
    if packed is None:
        return namespace
    with (
        tempfile.TemporaryDirectory() as folder,
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
    ):
        path = Path(folder) / "definitions"
        files.write(path, packed)
        reading = _Definitions(Source(0, {0: str(path)}), meshes)
        shell = types.SimpleNamespace(user_ns=namespace)
        process_variables.bind_in_modules(reading.unpacked(process_variables.binder(shell)))
    return namespace


def _prepared(
    request: model.PlanRequest, namespace: dict[str, Any]
) -> ast.Call | model.NotCompiled | model.ComparisonReport:
    """Runs a plan up to its call, and returns that; a comparison is run too."""
    keep_lines(request.name, request.code)
    *statements, last = ast.parse(request.code).body
    assert isinstance(last, ast.Expr)
    try:
        code = compile(ast.Module(statements, []), request.name, "exec", dont_inherit=True)
        exec(code, namespace)
        if request.compares:
            compared = compile(ast.Expression(last.value), request.name, "eval")
            report: model.ComparisonReport = eval(compared, namespace).report
            return replace(report, planned=True)
        return require_call(last.value, ast.unparse(last))
    except (Exception, SystemExit) as error:
        return model.NotCompiled("prepared", described(error))


def _end_of(text: str) -> str:
    if len(text) <= MAX_OUTPUT:
        return text
    return f"… {len(text) - MAX_OUTPUT} characters not shown\n{text[-MAX_OUTPUT:]}"


def main() -> None:
    """Answers one plan.

    Ends with its owner, which it watches.
    """
    end_with_parent(int(sys.argv[1]))
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is not the answer
    request: model.PlanRequest = pickle.load(sys.stdin.buffer)
    sys.stdin = open(os.devnull)  # noqa: SIM115  # input() ends at once, and `exit()` closes it
    reply = answer(request)
    with replies:
        replies.write(pickle.dumps(reply))
    os._exit(0)  # XLA's own end takes longer than all of this


MAX_NESTING = 50
"""How deep JAX's own description of a function is searched."""

_OWN = tuple(
    f"{folder}{os.sep}" for folder in (Path(jax.__file__).parent, Path(__file__).parents[1])
)
_CODE = "<call>"


MAX_NUMPY_BYTES = 2**24
"""A larger array of NumPy stays with the group."""


class _WithoutArrays(Listing):
    """Puts into the place of each array what says at each use that a plan does not have it."""

    def reduced(self, value: Any, check: Check, name: str) -> Any:
        """See :meth:`Listing.reduced`."""
        kind = type(value)
        if issubclass(kind, SingletonConfigurable):  # to make it would replace `__main__`
            raise pickle.PicklingError("a plan has no shell of IPython")
        is_large = issubclass(kind, np.ndarray) and value.nbytes > MAX_NUMPY_BYTES
        if not is_array(value) and not is_large:
            return super().reduced(value, check, name)
        text = f"{value.dtype}[{', '.join(map(str, value.shape))}]"
        why = "is too large for a plan" if is_large else "was made for the devices of the group"
        what = f"The plan needs `{name}`, which {why} ({text}). Nothing was compiled"
        made = f"{name} = jax.ShapeDtypeStruct({value.shape}, '{value.dtype}', sharding=…)"
        cell = f" As a cell: `%%spmd_collectives --devices N`, `{made}`, then the call."
        return LostArray, (what, (), MAKE_IN_PLAN + cell * name.isidentifier(), text, why)


MAKE_IN_PLAN = (
    "Make it in the plan, before the call; a `jax.ShapeDtypeStruct` can stand for a large array."
)


PACK_SECONDS = 8.0


def definitions(process: ThisProcess) -> Contents | None:
    """Packs this process's variables for a plan, without arrays.

    Returns:
        They; None if to pack them takes too long: code of the user's may run for that, and wait.
    """
    packed: list[Contents] = []

    def run() -> None:
        values = process_variables.to_plan(process.shell)
        packed.append(pack(values, listing=_WithoutArrays()).contents)

    thread = threading.Thread(target=run, name="jaxnb-packer", daemon=True)
    thread.start()
    thread.join(PACK_SECONDS)
    return packed[0] if packed else None


def collectives(process: ThisProcess, code: str) -> model.CompiledReport | model.NotCompiled:
    """Compiles the call that ``code`` is; its function is not run, and nothing is donated.

    The function and the arguments are evaluated, as a cell would evaluate them.

    Args:
        process: This process.
        code: The call, as an expression.
    """
    keep_lines(_CODE, code.strip())
    return compile_call(parse_call(code), process.shell.user_ns, _CODE)


def compile_call(
    call: ast.Call, namespace: dict[str, Any], file: str
) -> model.CompiledReport | model.NotCompiled:
    """Compiles a call, as :func:`collectives` does, that stands in ``file``."""
    stage: model.CompileStage = "evaluated"
    try:
        expression = compile(taken_apart(call), file, "eval")
        function, arguments, keywords = eval(expression, namespace)
        _require_no_lost([*arguments, *keywords.values()])
        stage = "traced"
        if isinstance(function, jax.stages.Compiled):
            compiled, traced = function, None
        else:
            traced = _traced(function, arguments, keywords, call.func)
            traced = getattr(traced, "traced", traced)  # flax's stages have JAX's in them
            stage = "lowered"
            lowered = traced.lower() if isinstance(traced, jax.stages.Traced) else traced
            stage = "compiled"
            compiled = lowered.compile()
        stage = "read"
        return report_of((arguments, keywords), traced, compiled)
    except (Exception, SystemExit) as error:
        return model.NotCompiled(stage, described(error))


def _require_no_lost(values: Iterable[Any]) -> None:
    """Raises what each use of a lost value raises; JAX would say that it is not an array."""
    for value in values:
        if issubclass(type(value), LostValue):
            bool(value)


def report_of(given: Any, traced: Any, compiled: Any) -> model.CompiledReport:
    """Tells what a compiled call does.

    Args:
        given: Its arguments, a pytree.
        traced: What tracing it has given; None if it was compiled before.
        compiled: The ``jax.stages.Compiled``.
    """
    report = _report(compiled, _meshes(given, traced, compiled))
    widened = report.platform == "cpu" and _has_bfloat16(given, traced)
    return replace(report, widened=widened)


def described(error: BaseException) -> ProcessError:
    """Returns an exception as data, its traceback without the frames of JAX and jaxnb."""
    frames = traceback.extract_tb(error.__traceback__)
    mine = [f for f in frames if not f.filename.startswith(_OWN)]
    head = ["Traceback (most recent call last):\n", *traceback.format_list(mine)] if mine else []
    # JAX puts a note behind each error that it has taken frames out of the traceback.
    text = "".join([*head, f"{type(error).__name__}: {error}"])
    return ProcessError(type(error).__name__, str(error), text, text)


def _traced(function: Any, arguments: Any, keywords: Any, node: ast.expr) -> Any:
    """Traces a function, jitted if it is not; of what can only be lowered, that."""
    if not callable(function):
        kind = type(function).__name__
        raise TypeError(f"`{ast.unparse(node)}` is of type {kind}, and cannot be called")
    owner = getattr(function, "__self__", None)
    if isinstance(owner, jax.Array) and isinstance(node, ast.Attribute):
        # x.sum(): x is an argument, not a constant.
        return _jitted(_call_method, (node.attr, owner, *arguments), keywords, node.attr)
    if hasattr(function, "trace"):
        return function.trace(*arguments, **keywords)
    if hasattr(function, "lower"):
        return function.lower(*arguments, **keywords)
    return _jitted(function, arguments, keywords, getattr(function, "__name__", "call"))


def _call_method(name: str, owner: Any, *arguments: Any, **keywords: Any) -> Any:
    return getattr(owner, name)(*arguments, **keywords)


def is_shaped(leaf: Any) -> bool:
    """Whether it is an array, or stands for one; a mesh has a shape, but no dtype."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _jitted(function: Any, arguments: Any, keywords: Any, name: str) -> Any:
    """Traces a function that is not jitted: what is no array in its arguments stays as it is.

    So `jnp.sum(x, axis=0)` is what it is when it is called.
    """
    require_tree((arguments, keywords))
    leaves, tree = jax.tree.flatten((arguments, keywords))
    arrays = [leaf if is_shaped(leaf) else None for leaf in leaves]
    positional, named = jax.tree.unflatten(tree, arrays)
    return jax.jit(on_arrays(function, leaves, tree, name)).trace(*positional, **named)


def on_arrays(function: Any, leaves: Sequence[Any], tree: Any, name: str) -> Callable[..., Any]:
    """Returns a new function, which no cache of JAX knows, of the arrays in a call alone.

    It returns the function's result, and the arrays that stand in changed arguments afterwards, as
    in flax's modules: XLA would remove what makes them.

    Args:
        function: What is called.
        leaves: Those of its positional and keyword arguments; what is no array stays as it is.
        tree: Their structure. The new function takes it with None in the place of what stays.
        name: What to call it.
    """
    places = [i for i, leaf in enumerate(leaves) if is_shaped(leaf)]

    def call(*positional: Any, **named: Any) -> Any:
        given = list(leaves)
        for place, array in zip(places, jax.tree.leaves((positional, named)), strict=True):
            given[place] = array
        positional, named = jax.tree.unflatten(tree, given)
        result = function(*positional, **named)
        left = {id(leaf): leaf for leaf in jax.tree.leaves((positional, named))}
        known = {id(leaf) for leaf in (*given, *jax.tree.leaves(result))}
        new = (leaf for key, leaf in left.items() if key not in known)
        return result, [leaf for leaf in new if isinstance(leaf, jax.Array)]

    call.__name__ = call.__qualname__ = name
    with suppress(TypeError, ValueError):  # JAX names the arguments by it
        vars(call)["__signature__"] = inspect.signature(function)
    return call


def _report(compiled: Any, meshes: list[MeshInfo]) -> model.CompiledReport:
    programs = jax_programs.programs(compiled)
    devices = jax_programs.device_ids(compiled) or (meshes[0].device_ids if meshes else ())
    devices = devices or tuple(range(programs[0].replicas * programs[0].partitions))
    found = [each for program in programs for each in tables.collectives(program, devices, meshes)]
    costs = _costs(compiled)
    owners = {device.id: device.process_index for device in jax.devices()}
    return model.CompiledReport(
        name=_name(programs),
        platform=_platform(compiled),
        num_devices=len(devices),
        meshes=tuple(meshes),
        collectives=tuple(found),
        flops=costs.get("flops"),
        accessed_bytes=costs.get("bytes accessed"),
        memory=_memory(compiled),
        has_loops=any(tables.has_loops(program) for program in programs),
        fingerprint=jax_programs.fingerprint(compiled),
        devices=tuple(devices),
        processes=tuple(owners.get(each, 0) for each in devices) if jax.process_count() > 1 else (),
    )


def _name(programs: list[Program]) -> str:
    """Returns a program's name as JAX shows it: of XLA's ``jit_step`` ``"jit(step)"``."""
    name = programs[0].name
    if name.strip("_") == "jit__lambda":  # XLA has no other characters
        return "jit(<lambda>)"
    return f"jit({name.removeprefix('jit_')})" if name.startswith("jit_") else name


def _platform(compiled: Any) -> str:
    devices = compiled.runtime_executable().local_devices()
    return str(devices[0].platform) if devices else jax.default_backend()


def _costs(compiled: Any) -> dict[str, float]:
    try:
        costs = compiled.cost_analysis()
    except (NotImplementedError, RuntimeError):  # not every backend counts
        return {}
    # XLA says -1 of what it cannot count.
    return {key: float(value) for key, value in (costs or {}).items() if value >= 0}


def _memory(compiled: Any) -> model.Memory | None:
    try:
        found = compiled.memory_analysis()
    except (NotImplementedError, RuntimeError):
        return None
    if found is None:
        return None
    return model.Memory(
        argument_bytes=found.argument_size_in_bytes,
        output_bytes=found.output_size_in_bytes,
        temporary_bytes=found.temp_size_in_bytes,
        alias_bytes=found.alias_size_in_bytes,
    )


def _meshes(arguments: Any, traced: Any, compiled: Any) -> list[MeshInfo]:
    """Returns the meshes that a program's shardings are on, each once.

    Those of its arguments and results first; then those that JAX's description of the function
    names, as that of a ``shard_map`` whose arguments have no sharding.
    """
    shardings = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(arguments)]
    shardings += jax.tree.leaves((compiled.input_shardings, compiled.output_shardings))
    meshes = [each.mesh for each in shardings if isinstance(each, NamedSharding)]
    meshes += _named_meshes(traced)
    # An AbstractMesh has no devices; a jit outside of any mesh names an empty one.
    known: dict[Any, MeshInfo] = {}
    for mesh in dict.fromkeys(meshes):
        if isinstance(mesh, jax.sharding.Mesh) and not mesh.empty:
            info, _ = mesh_and_spec(NamedSharding(mesh, jax.P()))
            assert info is not None
            # Within a shard_map the same mesh has axes of other types.
            known.setdefault((info.axis_names, info.shape, info.device_ids), info)
    return list(known.values())


def equations(traced: Any) -> Iterator[Any]:
    """Returns the equations of JAX's own description of a function, nested ones included."""
    waiting = [(getattr(traced, "jaxpr", None), MAX_NESTING)]
    while waiting:
        jaxpr, depth = waiting.pop()
        jaxpr = getattr(jaxpr, "jaxpr", jaxpr)  # of a closed one
        for equation in getattr(jaxpr, "eqns", ()):
            yield equation
            inner = _values(equation) if depth else ()
            waiting += [(v, depth - 1) for v in inner if hasattr(getattr(v, "jaxpr", v), "eqns")]


def _values(equation: Any) -> Iterator[Any]:
    for value in equation.params.values():
        yield from value if isinstance(value, tuple | list) else (value,)


def _named_meshes(traced: Any) -> Iterator[Any]:
    """Returns the meshes that JAX's description of a function names."""
    for equation in equations(traced):
        for value in _values(equation):
            if isinstance(value, jax.sharding.Mesh):
                yield value
            elif isinstance(value, NamedSharding):
                yield value.mesh


def _has_bfloat16(arguments: Any, traced: Any) -> bool:
    found = [getattr(leaf, "dtype", None) for leaf in jax.tree.leaves(arguments)]
    if jnp.bfloat16 in found:
        return True
    return any(
        getattr(result.aval, "dtype", None) == jnp.bfloat16
        for equation in equations(traced)
        for result in equation.outvars
    )


if __name__ == "__main__":
    # One module, not two: what others import of it is what runs.
    importlib.import_module("jaxnb.compiled.process_compiled").main()
