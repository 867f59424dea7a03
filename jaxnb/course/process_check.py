"""Runs a student's answer on a process, in a namespace of its own, and reports what it gave."""

from __future__ import annotations

import builtins
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from IPython import get_ipython

from jaxnb.cells.process_repeating import keep_lines
from jaxnb.compiled.compiling import parse_call
from jaxnb.compiled.process_compiled import compile_call
from jaxnb.course.messages import Answer, Leaf, Shard
from jaxnb.labels import class_label, one_line
from jaxnb.launch import process_join

MAX_TEXT = 60

BUILTINS = {name: value for name, value in vars(builtins).items() if not name.startswith("_")}
"""A student may have a variable `list`."""


def answer(label: str, setup: str, call: str, define: str, sharding: str, compiles: bool) -> Answer:
    """Runs an exercise's code, and returns what the answer is on this process.

    The code sees the student's names; Python's own, ``jax``, ``np``, … are what they were at the
    start. It runs without ``jax_enable_x64`` and without the mesh of ``jax.set_mesh``. What it
    binds is gone afterwards.

    Args:
        label: What errors call the code.
        setup: Makes what the call needs.
        call: An expression: the answer.
        define: The name that the student defines.
        sharding: An expression: how the answer is to be laid out; may be empty.
        compiles: Report what the call compiles to as well.
    """
    shell: Any = get_ipython()
    if define and define not in shell.user_ns:
        return Answer({}, is_missing=True)
    names = {**shell.user_ns, **BUILTINS, **process_join.namespace()}
    file = f"<{label}>"
    keep_lines(file, f"{setup.strip()}\n{call}")
    try:
        with _as_at_start():
            exec(compile(setup.strip(), file, "exec"), names)
            lines = "\n" * (setup.strip().count("\n") + 1)
            value = jax.block_until_ready(eval(compile(f"{lines}{call}", file, "eval"), names))
            layout = compile(f"{lines}\n{sharding or None}", file, "eval")
            wanted = eval(layout, names)
            leaves, _ = jax.tree_util.tree_flatten_with_path(value)
            found = {jax.tree_util.keystr(path): leaf_of(leaf, wanted) for path, leaf in leaves}
            report = compile_call(parse_call(call), names, file) if compiles else None
        return Answer(found, report)
    except BaseException as error:  # a KeyboardInterrupt too
        # What else is raised there may be because the student's function has returned nonsense.
        if isinstance(error, NameError | SyntaxError) and _raised_in(error) in (file, __file__):
            return Answer({}, mistake=f"{type(error).__name__}: {error}")
        raise error.with_traceback(_from_student(error.__traceback__)) from None
    finally:
        names.clear()  # functions of the code refer to it: arrays would outlive the check


@contextmanager
def _as_at_start() -> Iterator[None]:
    """Sets what changes dtypes and programs as it is at the start, for a block."""
    x64 = jax.config.jax_enable_x64
    try:
        jax.config.update("jax_enable_x64", False)
        with jax.set_mesh(None):
            yield
    finally:  # the answer may have changed it
        jax.config.update("jax_enable_x64", x64)


def _raised_in(error: BaseException) -> str:
    """Returns the file of the innermost line that an error has come through."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_code.co_filename


def _from_student(trace: TracebackType | None) -> TracebackType | None:
    """Returns a traceback from its first line in a cell of the student's on; all, if there is none.

    Of the exercise's own code the student knows nothing.
    """
    found = trace
    while found is not None and not found.tb_frame.f_code.co_filename.startswith("<cell "):
        found = found.tb_next
    return found or trace


def leaf_of(value: Any, wanted: Any) -> Leaf:
    """Returns what is to be known of a value of the answer.

    Args:
        value: The value.
        wanted: The sharding that it is to have; None for any.
    """
    if isinstance(value, jax.core.Tracer):  # of a function that has kept it
        return Leaf("a tracer", "", (), "", False, wanted is None, ())
    if isinstance(value, jax.Array):
        return Leaf(
            "jax.Array",
            str(value.dtype),
            value.shape,
            _text(getattr(value.sharding, "spec", value.sharding)),
            jax.process_count() > 1 and value.is_fully_addressable,
            wanted is None or value.sharding.is_equivalent_to(wanted, value.ndim),
            tuple(
                Shard(
                    shard.device.id,
                    tuple(s.indices(n)[:2] for s, n in zip(shard.index, value.shape, strict=True)),
                    _plain(np.asarray(shard.data)),
                )
                for shard in value.addressable_shards
            ),
        )
    name = class_label(type(value))
    if isinstance(value, np.ndarray | np.generic | bool | int | float | complex | str):
        data = np.asarray(value)
        whole = tuple((0, n) for n in data.shape)
        dtype = str(data.dtype) if isinstance(value, np.ndarray | np.generic) else ""
        return Leaf(
            name, dtype, data.shape, "", False, wanted is None, (Shard(None, whole, _plain(data)),)
        )
    return Leaf(name, "", (), "", False, wanted is None, ())


def _plain(data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns numbers as a dtype of NumPy's own: bfloat16 and the like as float32."""
    is_small = jnp.issubdtype(data.dtype, jnp.floating) and data.dtype.kind == "V"
    return data.astype(np.float32) if is_small else data.copy()


def _text(value: Any) -> str:
    return one_line(str(value).replace("PartitionSpec", "P", 1), MAX_TEXT)
