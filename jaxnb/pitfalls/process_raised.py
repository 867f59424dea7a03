"""What JAX raises, explained. The exception itself stays as it is."""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from jaxnb.arrays.process_names import library_places, paths_to
from jaxnb.compat.jax_pitfalls import (
    compares_copies,
    copies_compared,
    in_eager_shard_map,
    iterates_over_parts,
    unbound_axis,
)
from jaxnb.errors import DivergenceError
from jaxnb.labels import format_bytes, plural, text_of, type_label
from jaxnb.model.insight import Pitfall
from jaxnb.model.scripts import in_notebook
from jaxnb.options import suggest


def pitfall(
    kind: str,
    code_name: str,
    line: int | None,
    message: str,
    advice: str,
    subject: str = "",
) -> Pitfall:
    """Returns a pitfall at a line of a cell.

    Args:
        kind: Its kind.
        code_name: The file name of the cell's code.
        line: The line; None if it is in none.
        message: What happens.
        advice: What to type instead.
        subject: The function or array: with the text of the line it makes two the same.
    """
    source = linecache.getline(code_name, line).strip() if line is not None else ""
    return Pitfall(kind, message, advice, line, source, f"{subject}|{source}")


GATHERED_BYTES = 1 << 20
"""Less than this, of all that one line puts, is as quick as the message that it takes anyway: step
counters, keys and learning rates are put like that, and rightly so."""


class Moves:
    """Those of a cell."""

    kind: str = "device-put"

    def __init__(self) -> None:
        self._gathered: dict[int | None, tuple[int, int, str]] = {}

    def add_gathered(self, value: Any, line: int | None) -> None:
        """Takes a host array that ``device_put`` gathers from all processes."""
        array = value if hasattr(value, "nbytes") else np.asarray(value)
        count, nbytes, largest = self._gathered.get(line, (0, 0, ""))
        if not largest or array.nbytes > nbytes:
            largest = type_label(array.dtype, array.shape)
        self._gathered[line] = (count + 1, nbytes + array.nbytes, largest)

    def pitfalls(self, code_name: str) -> list[Pitfall]:
        """Returns them in words."""
        n = jax.process_count()
        return [
            pitfall(
                self.kind,
                code_name,
                line,
                f"`device_put` of {_what(count, largest)} ({format_bytes(nbytes)}) onto a sharding "
                f"over {plural(n, 'process')} gathers all processes' copies on every one of them, "
                f"{format_bytes(n * nbytes)} on each, only to check that they are equal.",
                "`jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])` sends "
                f"nothing.{in_notebook(' From the notebook: `%spmd_push`.')}",
            )
            for line, (count, nbytes, largest) in self._gathered.items()
            if nbytes >= GATHERED_BYTES
        ]


def _what(count: int, largest: str) -> str:
    return f"a host array {largest}" if count == 1 else f"{count} host arrays, one {largest},"


_FETCH = "Fetching value for `jax.Array` that spans non-addressable"
_TO_ONE_DEVICE = "first argument must be a fully addressable array or a non-addressable"
_DELETED = "Array has been deleted with shape="
_EXPLICIT, _SET_MESH = "Explicit", "via `jax.set_mesh`"
_IN_SPECS = "does not match the specs of the input"
_UNEQUAL = "passed to device_put is not the same on each process"
_OTHERS = (
    "For a cross-host reshard in multi-controller JAX",
    "Cannot reshard an input that is not fully addressable",
    "does not support cross-host device transfers",
)


def explained(error: BaseException, code_name: str) -> list[Pitfall]:
    """Returns what is to be said of an exception that has left a cell.

    Args:
        error: The exception.
        code_name: The file name of the cell's code.
    """
    found = _what_it_is(error, text_of(error))
    if not found:
        return []
    kind, message, advice = found
    if kind == "fetch":
        advice = re.sub(r"\bx\b", _name_of(error, code_name, _is_spread) or "x", advice)
    if kind == "deleted" and (path := _path_of_deleted(error, code_name)):
        message = message.replace("The array", f"`{path}`")
    if kind == "unbound-axis":
        message += _near_axis(error, code_name)
    message += _in_function(error, code_name)
    of_error = pitfall(kind, code_name, _line_of(error, code_name), message, advice)
    return [replace(of_error, is_of_error=True)]


def _what_it_is(error: BaseException, text: str) -> tuple[str, str, str] | None:
    """Returns the kind, what has happened, and what to type instead; None of what is not known."""
    is_fetch = isinstance(error, RuntimeError) and _FETCH in text
    if is_fetch or _TO_ONE_DEVICE in text or iterates_over_parts(error):
        if in_eager_shard_map(error):
            return (
                "eager-shard-map",
                "Without `jax.jit`, `shard_map` gives its function an array of all processes, "
                "whose values no process has.",
                "Put `jax.jit` around the `shard_map`: in it, `jax.debug.print('{}', x)` prints "
                "each device's block."
                + in_notebook(" Or type `%spmd_steps f(x)`: each line's values on each device."),
            )
        return (
            "fetch",
            "No process holds the whole array, so none can read it, print its values or "
            "iterate over it.",
            in_notebook(
                "In the notebook: `%spmd_pull x`, or x alone as the last line. In the cell: "
            )
            + "`x.addressable_shards` for this process's part, or, on all processes, "
            "`jax.experimental.multihost_utils.process_allgather(x, tiled=True)`.",
        )
    if _DELETED in text:
        return (
            "deleted",
            "The array is deleted: its memory was given to a computation that donates it "
            "(`donate_argnums`, `donate_argnames`), or `x.delete()` was called.",
            "Use what that computation has returned: bind it to the same name, `params = "
            "step(params)`. To keep what was given, copy it before, `jnp.copy(x)`, or do not "
            "donate.",
        )
    if axis := unbound_axis(error):
        return (
            "unbound-axis",
            f"No mesh axis has the name '{axis}' here: inside `shard_map` the axes of its mesh "
            "have names, elsewhere none does.",
            "Name an axis of the mesh, and call it in a function under `jax.shard_map(f, mesh=…, "
            "in_specs=…, out_specs=…)`.",
        )
    if isinstance(error, DivergenceError) and (shapes := _shapes_compared(error, text)):
        return (
            "unequal-data",
            f"`device_put` was given host data of other shapes: {shapes}.",
            "It takes the whole array, the same on all processes. If each process is to have its "
            "own rows, give it as many as the others (cut or pad), and type "
            "`jax.make_array_from_process_local_data(sharding, x)`.",
        )
    if isinstance(error, jax.errors.TracerBoolConversionError):
        return (
            "traced-condition",
            "`if`, `while`, `and`, `or`, `not` and `assert` need a value, which an array does not "
            "have while JAX traces the function; and devices may have different ones.",
            "To choose between values: `jnp.where(condition, a, b)`; between functions: "
            "`jax.lax.cond(condition, f, g, x)`. What is the same on all devices, such as a flag, "
            "can be a static argument: `jax.jit(f, static_argnames='flag')`.",
        )
    if _UNEQUAL in text and _are_equal(copies_compared(error)):
        return (
            "unequal-data",
            "`device_put` was given equal data on all processes. JAX's check failed all the same: "
            "it compares 64-bit data with copies of 32 bits, and NaN with NaN.",
            "Of 64-bit data, put `w.astype(np.float32)`. With NaN in them: "
            "`jax.make_array_from_callback(w.shape, sharding, lambda index: w[index])`.",
        )
    if _UNEQUAL in text:
        return (
            "unequal-data",
            "`device_put` was given host data that differ between processes.",
            "One seed or file for all gives all the same. If each process is to have its own "
            "part: `jax.make_array_from_process_local_data(sharding, x)`.",
        )
    if any(each in text for each in _OTHERS):
        return (
            "other-devices",
            "`device_put` of an array of several processes, or of another one, cannot send it to "
            "other devices than its own on this platform.",
            "Keep to meshes of all devices; or, on all processes, `whole = jax.experimental."
            "multihost_utils.process_allgather(x, tiled=True)`, then `jax.make_array_from_callback("
            "whole.shape, sharding, lambda index: whole[index])`.",
        )
    wants_mesh = (_EXPLICIT in text and _SET_MESH in text) or _IN_SPECS in text
    if wants_mesh or type(error).__name__ == "ShardingTypeError":
        return (
            "explicit-axes",
            "The mesh's axes are Explicit, as `jax.make_mesh` makes them: array types "
            "include their sharding. If JAX cannot derive a result's sharding, you must "
            "specify it.",
            f"{_for_explicit_axes(text)} To have the compiler choose: `jax.make_mesh(shape, names, "
            "axis_types=(jax.sharding.AxisType.Auto,) * len(names))`.",
        )
    return None


def _for_explicit_axes(text: str) -> str:
    """Returns how to say what JAX asks for."""
    if "out_sharding" in text:
        return (
            "Say how the result is to lie, such as `s = NamedSharding(mesh, P())`: `jnp.matmul(x, "
            "w, out_sharding=s)`, `x.at[i].get(out_sharding=s)`, `jnp.reshape(x, shape, "
            "out_sharding=s)`."
        )
    if _SET_MESH in text:
        return "Type `with jax.set_mesh(mesh):` around the call."
    return "Lay out an argument as the others: `jax.reshard(x, NamedSharding(mesh, P('data')))`."


def _in_function(error: BaseException, code_name: str) -> str:
    """Returns which line it is in a function that the cell has called, of another file or cell."""
    own = [
        (frame.f_code, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(library_places())
    ]
    code, line = own[-1] if own else (None, 0)
    if code is None or code.co_filename == code_name:
        return ""
    source = linecache.getline(code.co_filename, line).strip()
    return f" Raised in `{code.co_name}`: `{source}`." if source else ""


def _shapes_compared(error: DivergenceError, text: str) -> str:
    """Returns which shapes processes gave to ``device_put``; empty of other computations.

    JAX compares them joined: the first dimension is the sum over the processes.
    """
    found = re.search(r"\w+\[[\d,]*\] on process[^;]*", text)
    if found is None or not compares_copies(error):
        return ""
    return re.sub(r"(?<=\[)\d+", lambda n: str(int(n[0]) // jax.process_count()), found[0])


def _are_equal(copies: Any) -> bool:
    if copies is None:
        return False
    first, *others = (each.tobytes() for each in np.split(np.asarray(copies), jax.process_count()))
    return all(each == first for each in others)


def _names_at(error: BaseException, code_name: str) -> dict[str, Any]:
    """Returns the variables where the code that raised stands."""
    walked, last = traceback.walk_tb(error.__traceback__), _line_of(error, code_name)
    at = (f for f, line in walked if f.f_code.co_filename == code_name and line == last)
    frame = next(at, None)  # a lambda on the line has other names than the line
    return {**frame.f_globals, **frame.f_locals} if frame is not None else {}


def _name_of(error: BaseException, code_name: str, is_it: Callable[[Any], bool]) -> str:
    """Returns what the line that raised calls the one value of a kind in it; or nothing."""
    found = {name for name, value in _on_line(error, code_name).items() if is_it(value)}
    return found.pop() if len(found) == 1 else ""


def _on_line(error: BaseException, code_name: str) -> dict[str, Any]:
    """Returns the variables that the line that raised names."""
    known = _names_at(error, code_name)
    source = linecache.getline(code_name, _line_of(error, code_name) or 0)
    bare = re.sub(r"""(["'])(?:\\.|(?!\1).)*\1""", "", source)  # names in strings are none
    words = re.findall(r"(?<![\w.])[A-Za-z_]\w*", bare)
    return {name: known[name] for name in words if name in known}


def _is_spread(value: Any) -> bool:
    return isinstance(value, jax.Array) and not value.is_fully_addressable


def _path_of_deleted(error: BaseException, code_name: str) -> str:
    """Returns where the line that raised has the deleted array: ``"state['w']"``; or nothing."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        array = frame.f_locals.get("self")
        if isinstance(array, jax.Array) and array.is_deleted():
            found = paths_to(_on_line(error, code_name), {id(array)})
            return found[id(array)].path if found else ""
    return ""


def _near_axis(error: BaseException, code_name: str) -> str:
    """Returns which axis of the code's meshes was probably meant; or nothing."""
    meshes = [x for x in _names_at(error, code_name).values() if isinstance(x, jax.sharding.Mesh)]
    names = [name for mesh in meshes for name in mesh.axis_names if isinstance(name, str)]
    axis = str(unbound_axis(error))
    return "" if axis in names else suggest(axis, names)


def _line_of(error: BaseException, code_name: str) -> int | None:
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == code_name]
    return lines[-1] if lines else None
