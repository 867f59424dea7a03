"""Lowers and compiles a call without running it, and tells what came out."""

from __future__ import annotations

import ast
import importlib
import io
import os
import pickle
import sys
import traceback
import types
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from jaxnb.arrays.process_describe import mesh_and_spec, require_tree
from jaxnb.cells.process_repeating import keep_lines
from jaxnb.compat import jax_programs
from jaxnb.compat.xla import Program
from jaxnb.compiled import collectives as tables
from jaxnb.compiled.compiling import parse_call, plain_text, require_call, taken_apart
from jaxnb.launch import process_join
from jaxnb.launch.lifeline import end_with_parent
from jaxnb.model import compiled as model
from jaxnb.model.arrays import MeshInfo
from jaxnb.model.cells import ProcessError

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
    printed = io.StringIO()
    # A module of its own as __main__: dataclasses and pickle look a class's module up.
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    vars(module).update(process_join.namespace())
    definitions = _Definitions(vars(module))
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        for piece in request.definitions:  # what they print was seen in their cells
            definitions.run(piece)
    definitions.compare(request.values.texts)
    _use_cpus(request.num_devices)  # a cell may have asked for others
    if request.values.x64 is not None:
        jax.config.update("jax_enable_x64", request.values.x64)
    with redirect_stdout(printed), redirect_stderr(printed):
        found = _answer(request, definitions)
    return model.PlanReply(found, _end_of(printed.getvalue()), definitions.missing)


def _use_cpus(count: int) -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", count)


class _Definitions:
    """Runs the definitions of cells.

    One that lacks a name is tried again after each statement of the plan, which may make it; it
    then meets all else as it was before, and what the plan itself has bound.

    Args:
        namespace: Where they are run.

    Attributes:
        namespace: The same.
        missing: By name what cells have made that is not there.
    """

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace
        self.missing: dict[str, model.Missing] = {}
        self._of_plan: set[str] = set()
        self._met: dict[model.PlanPiece, dict[str, Any]] = {}
        self._makers: dict[str, model.PlanPiece] = {}

    def run(self, piece: model.PlanPiece) -> None:
        """Runs a statement of a cell, or takes away what it has made, if that is no definition."""
        if piece.changed and not self._is_changed_here(piece.changed):
            return
        if not piece.is_definition:
            self._lack(model.Missing(piece))
            return
        met = dict(self.namespace)
        try:
            _run(piece, self.namespace)
        except (Exception, SystemExit) as error:
            needs = error.name if isinstance(error, NameError) else ""
            text = "" if needs else f"{type(error).__name__}: {error}"
            self._lack(model.Missing(piece, needs or "", text))
            self._met.setdefault(piece, met)
        else:
            self._have(piece)

    def _is_changed_here(self, name: str) -> bool:
        """Whether a method is one of a container, and changes that alone."""
        value = self.namespace.get(name)
        return name in self.missing or isinstance(value, dict | list | set) or value is jax.config

    def compare(self, theirs: Mapping[str, str | None]) -> None:
        """Takes away names whose plain values are others than the group's."""
        for name, text in theirs.items():
            if name in self._makers and name in self.namespace:
                mine = plain_text(self.namespace[name])
                if mine != text:
                    piece = replace(self._makers[name], bound=(name,))
                    self._lack(model.Missing(piece, theirs=text or "something else"))

    def run_of_plan(self, piece: model.PlanPiece) -> None:
        """Runs a statement of the plan, then the definitions that waited for what it has made."""
        _run(piece, self.namespace)
        self._have(piece)
        self._of_plan.update(piece.bound)
        for each in dict.fromkeys(m.piece for m in self.missing.values() if m.needs):
            now = dict(self.namespace)
            self.namespace |= {k: v for k, v in self._met[each].items() if k not in self._of_plan}
            self.run(each)
            made = {name: self.namespace[name] for name in each.bound if name in self.namespace}
            self.namespace.clear()
            self.namespace.update(now, **made)

    def _have(self, piece: model.PlanPiece) -> None:
        for name in piece.bound:
            self.missing.pop(name, None)
            self._makers[name] = piece

    def _lack(self, missing: model.Missing) -> None:
        for name in missing.piece.bound:
            if isinstance(self.namespace.get(name), types.ModuleType):
                continue  # an attribute of it was set
            self.namespace.pop(name, None)
            self.missing[name] = missing


def _run(piece: model.PlanPiece, namespace: dict[str, Any]) -> None:
    keep_lines(piece.name, piece.whole)
    exec(compile(piece.code, piece.name, "exec", dont_inherit=True), namespace)


def _answer(
    request: model.PlanRequest, definitions: _Definitions
) -> model.CompiledReport | model.NotCompiled | model.ComparisonReport:
    try:
        for piece in request.pieces:
            definitions.run_of_plan(piece)
        keep_lines(request.call.name, request.call.whole)
        if request.compares:
            code = compile(request.call.code.strip(), request.call.name, "eval")
            report: model.ComparisonReport = eval(code, definitions.namespace).report
            return replace(report, planned=True)
        # Parsed as a statement: its lines count as the notebook's do.
        expression = ast.parse(request.call.code).body[0]
        assert isinstance(expression, ast.Expr)
        call = require_call(expression.value, request.call.code)
    except (Exception, SystemExit) as error:
        return model.NotCompiled("prepared", described(error))
    return compile_call(call, definitions.namespace, request.call.name)


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


def group_values(process: ThisProcess, names: list[str]) -> model.GroupValues:
    """Returns what this process has of some names, for a plan's definitions to be compared with."""
    namespace = process.shell.user_ns
    texts = {name: plain_text(namespace[name]) for name in names if name in namespace}
    x64: Any = jax.config  # its settings are made when JAX is imported
    return model.GroupValues(texts, bool(x64.jax_enable_x64))


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
        stage = "traced"
        if isinstance(function, jax.stages.Compiled):
            compiled, traced = function, None
        else:
            traced = _traced(function, arguments, keywords, call.func)
            stage = "lowered"
            lowered = traced.lower() if isinstance(traced, jax.stages.Traced) else traced
            stage = "compiled"
            compiled = lowered.compile()
        stage = "read"
        return report_of((arguments, keywords), traced, compiled)
    except (Exception, SystemExit) as error:
        return model.NotCompiled(stage, described(error))


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


def _jitted(function: Any, arguments: Any, keywords: Any, name: str) -> Any:
    """Traces a function that is not jitted: what is no array in its arguments stays as it is.

    So `jnp.sum(x, axis=0)` is what it is when it is called.
    """
    require_tree((arguments, keywords))
    leaves, tree = jax.tree.flatten((arguments, keywords))
    places = [i for i, leaf in enumerate(leaves) if hasattr(leaf, "shape")]

    def call(*arrays: Any) -> Any:
        given = list(leaves)
        for place, array in zip(places, arrays, strict=True):
            given[place] = array
        positional, named = jax.tree.unflatten(tree, given)
        return function(*positional, **named)

    call.__name__ = call.__qualname__ = name
    return jax.jit(call).trace(*[leaves[place] for place in places])


def _report(compiled: Any, meshes: list[MeshInfo]) -> model.CompiledReport:
    programs = jax_programs.programs(compiled)
    devices = jax_programs.device_ids(compiled) or (meshes[0].device_ids if meshes else ())
    devices = devices or tuple(range(programs[0].replicas * programs[0].partitions))
    found = [each for program in programs for each in tables.collectives(program, devices, meshes)]
    costs = _costs(compiled)
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
