"""``%spmd_steps``: runs ``shard_map`` without ``jit``, and notes what each line in it assigns.

Without ``jit`` JAX calls the function of a ``shard_map`` with tracers that have values: an array
over the mesh each. With ``jax.disable_jit`` it does so for jitted functions too, and runs ``scan``
and ``fori_loop`` as Python. Python's own tracing tells of each line; this process's values are then
read, which dispatches nothing.
"""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import jax
import numpy as np

from jaxnb.arrays.process_describe import mesh_and_spec, require_tree
from jaxnb.arrays.process_names import is_of_user
from jaxnb.compat.jax_steps import behind, blocks_here, own_blocks_printed, spread
from jaxnb.labels import format_bytes, one_line, short_number, text_of, type_label
from jaxnb.model.scripts import SourceLine
from jaxnb.model.steps import Step, StepTrail, StepValue

MAX_STEPS = 60
"""So many steps are kept: a picture of more is not read."""

MAX_VALUES = 8
"""So many of what a line assigns are kept."""

MAX_ELEMENTS = 64
"""Of a larger value the corners are shown."""

MAX_BYTES = 16 << 20
"""What is larger on a device is not read: on a GPU it would have to be copied for each line."""

COMPILED = "JAX compiles this part as a whole: its values are not known"


class Stepper:
    """Notes the steps of a cell's last statement.

    Args:
        shell: The shell that runs the cell.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._steps: list[Step] = []
        self._more = 0

    @property
    def trail(self) -> StepTrail:
        """What it has noted."""
        return StepTrail(tuple(self._steps), self._more)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Stands in the shell's way for the block."""
        self._run_nodes, self._shell.run_ast_nodes = self._shell.run_ast_nodes, self._run
        try:
            yield
        finally:
            del self._shell.run_ast_nodes

    async def _run(self, nodes: list[ast.stmt], *rest: Any, **settings: Any) -> Any:
        """Runs a cell's statements; `jit` may be what those before the last are about."""
        self._shell.run_ast_nodes = self._run_nodes  # for what the cell runs as a cell
        before = {**settings, "interactivity": "none"}
        if nodes[:-1] and await self._run_nodes(nodes[:-1], *rest, **before):
            return True
        previous = sys.gettrace()
        with jax.disable_jit(), own_blocks_printed():
            sys.settrace(self._called)
            try:
                return await self._run_nodes(nodes[-1:], *rest, **settings)
            finally:
                sys.settrace(previous)

    def _called(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        """Follows a call of the user's code within ``shard_map``."""
        is_ours = is_of_user(frame.f_globals.get("__name__", ""))
        if not is_ours or not jax.sharding.get_abstract_mesh().manual_axes:
            return None
        call = _Call(self._add, frame)
        given = map(behind, call.note(frame, {}).values())
        is_compiled = any(isinstance(v, jax.core.Tracer) and spread(v) is None for v in given)
        return None if is_compiled else call.traced

    def _add(self, step: Callable[[], Step]) -> None:
        if len(self._steps) < MAX_STEPS:
            self._steps.append(step())
        else:
            self._more += 1


class _Call:
    """A call that is followed.

    Args:
        add: Takes what makes a step.
        frame: The call's.
    """

    def __init__(self, add: Callable[[Callable[[], Step]], None], frame: FrameType) -> None:
        code = frame.f_code
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        self._add = add
        self._own = {*code.co_varnames, *code.co_cellvars}  # what it has of others is not assigned
        self._line = code.co_firstlineno  # that of the first decorator
        self._source = f"{code.co_name}({', '.join(arguments)})"
        self._before: dict[str, Any] = {}
        self._raised = ""

    def traced(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Takes what Python tells of the call."""
        if event == "exception" and argument[0] is not StopIteration:  # which ends loops
            self._raised = argument[0].__name__
        elif event == "line" and frame.f_lineno != self._line:  # else a loop within a line
            self.note(frame, {})
            self._raised = ""  # it was caught
            self._line = frame.f_lineno
            self._source = linecache.getline(frame.f_code.co_filename, self._line).strip()
        elif event == "return":
            self.note(frame, {} if self._raised else {"returned": argument})
        return self.traced

    def note(self, frame: FrameType, returned: Mapping[str, Any]) -> dict[str, Any]:
        """Notes the line that was run last, if it did anything; returns what it has assigned."""
        now = _leaves({name: v for name, v in frame.f_locals.items() if name in self._own})
        before, self._before = self._before, now
        assigned = {k: v for k, v in now.items() if k not in before or before[k] is not v}
        assigned |= _leaves(returned)
        if assigned or self._raised:
            at = SourceLine(frame.f_code.co_filename, self._line, frame.f_code.co_name)
            self._add(lambda: Step(at, self._source, _values(assigned), self._raised))
        return assigned


def _values(assigned: Mapping[str, Any]) -> tuple[StepValue, ...]:
    return tuple(_value(*each) for each in list(assigned.items())[:MAX_VALUES])


def _value(name: str, value: Any) -> StepValue:
    found = behind(value)
    if not hasattr(found, "dtype"):
        return StepValue(name, text=one_line(repr(found)))
    kind = type_label(found.dtype, np.shape(found))
    text = "all of `vmap`" if np.shape(value) != np.shape(found) else ""
    try:
        if not isinstance(found, jax.core.Tracer):
            return StepValue(name, kind, text=_text(found))
        if (array := spread(found)) is None:
            return StepValue(name, kind, text=COMPILED)
        largest = array.nbytes // max(1, array.shape[0])
        if largest > MAX_BYTES:
            return StepValue(name, kind, text=f"{format_bytes(largest)} per device, not read")
        blocks = {device.id: _text(each) for device, each in blocks_here(array).items()}
    except (RuntimeError, TypeError) as error:  # deleted, or failed; keys, or another process's
        return StepValue(name, kind, text=one_line(f"{type(error).__name__}: {text_of(error)}"))
    return StepValue(name, kind, blocks, text, mesh_and_spec(array.sharding)[0])


def _leaves(names: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arrays and numbers in values, by where they are."""
    found: dict[str, Any] = {}
    for name, value in names.items():
        try:
            require_tree(value)
            leaves: Sequence[Any] = jax.tree_util.tree_flatten_with_path(value)[0]
        except (TypeError, ValueError):  # a dict whose keys have no order; what holds itself
            continue
        for path, leaf in leaves:
            if isinstance(leaf, jax.Array | np.ndarray | np.generic | int | float | complex):
                found[f"{name}{jax.tree_util.keystr(path)}"] = leaf
    return found


def _text(array: Any) -> str:
    host = np.asarray(array)
    if not host.size:
        return "no elements"
    if jax.numpy.issubdtype(host.dtype, np.floating):
        host = host.astype(np.float64)  # NumPy takes bfloat16 for no number
    return np.array2string(
        host, max_line_width=100, separator="  ", threshold=MAX_ELEMENTS, edgeitems=2,
        formatter={"float_kind": short_number},
    )  # fmt: skip
