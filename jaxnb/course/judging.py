"""Compares an answer with what is wanted: values, layout, and what the program sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxnb.course.messages import Answer, Index, Leaf
from jaxnb.labels import processes_label

CANONICAL = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}
"""JAX's dtypes for NumPy's, unless ``jax_enable_x64`` is set: answers have these."""

SHOWN = 8
"""So many numbers of a shard are shown."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A place where the answer is not what is wanted.

    Attributes:
        what: A sentence without its full stop.
        process: The process.
        device: ``Device.id`` of the device; None if it is not about a device.
        where: Where in the array: ``"[2, 0:8]"``.
        has: What is there.
        wanted: What should be.
    """

    what: str
    process: int
    device: int | None = None
    where: str = ""
    has: str = ""
    wanted: str = ""


def flat(tree: Any, path: str = "") -> dict[str, np.ndarray[Any, Any]]:
    """Returns the arrays of dicts, lists and tuples by their paths, as JAX writes these."""
    if isinstance(tree, Mapping):
        items = [(f"{path}[{key!r}]", each) for key, each in tree.items()]
    elif isinstance(tree, list | tuple):
        items = [(f"{path}[{i}]", each) for i, each in enumerate(tree)]
    else:
        return {path: np.asarray(tree)}
    return {name: leaf for where, each in items for name, leaf in flat(each, where).items()}


def differences(
    answers: Mapping[int, Answer], want: Any, tolerance: float, *, own: bool
) -> list[Difference]:
    """Returns where answers differ from what is wanted, by process; empty if they are equal.

    Args:
        answers: By process.
        want: An array of NumPy's, or a tree of them.
        tolerance: How far numbers may differ, relative and absolute.
        own: The answer is one that each process has for itself.
    """
    wanted = flat(want)
    found: list[Difference] = []
    for process, answer in sorted(answers.items()):
        if answer.leaves.keys() != wanted.keys():
            has = _structure(answer.leaves)
            found.append(
                Difference("has another structure", process, None, "", has, _structure(wanted))
            )
            continue
        for path, array in wanted.items():
            found += _leaf(process, answer.leaves[path], array, tolerance, path, own)
    return found


def _structure(leaves: Mapping[str, Any]) -> str:
    if not leaves:
        return "nothing (None)"
    return ", ".join(f"answer{path}" if path else "one array" for path in leaves)


def _leaf(
    process: int, leaf: Leaf, want: np.ndarray[Any, Any], tolerance: float, path: str, own: bool
) -> list[Difference]:
    name = f"{path} " if path else ""
    if not leaf.shards and leaf.type_name != "jax.Array":
        return [Difference(f"{name}is not an array", process, None, "", leaf.type_name, "an array")]
    if leaf.is_own and not own:
        what = f"{name}is an array of each process alone, not one array over all processes"
        return [Difference(what, process, None, "", leaf.sharding, "")]
    if leaf.shape != want.shape:
        together = "" if own or not leaf.sharding else ", all devices' parts together"
        what = f"{name}has another shape{together}"
        return [Difference(what, process, None, "", str(leaf.shape), str(want.shape))]
    kind = str(want.dtype)
    if leaf.dtype and leaf.dtype not in (kind, CANONICAL.get(kind)):
        return [
            Difference(f"{name}has another dtype", process, None, "", leaf.dtype,
                       CANONICAL.get(kind, kind))
        ]  # fmt: skip
    found = []
    for shard in leaf.shards:
        part = want[tuple(slice(*each) for each in shard.index)]
        if not is_close(shard.data, part, tolerance):
            shown = _first(shard.data, part, shard.index, tolerance)
            found.append(Difference(f"{name}has other values", process, shard.device, *shown))
    return found


def is_close(has: np.ndarray[Any, Any], want: np.ndarray[Any, Any], tolerance: float) -> bool:
    """Whether two arrays have the same shape, and numbers that are equal up to the tolerance."""
    if has.shape != want.shape:
        return False
    if want.dtype.kind in "fc" or has.dtype.kind in "fc":
        return bool(np.allclose(has, want, rtol=tolerance, atol=tolerance, equal_nan=True))
    return bool(np.array_equal(has, want))


def _first(has: Any, want: Any, index: Index, tolerance: float) -> tuple[str, str, str]:
    """Returns the first row in which numbers differ: where it is, what it has, what is wanted.

    Small arrays are shown whole.
    """
    places = [f"{start}:{stop}" for start, stop in index]
    for dimension, (start, _) in enumerate(index[:-1]):
        if has.size <= SHOWN:
            break
        row = next(i for i in range(len(has)) if not is_close(has[i], want[i], tolerance))
        places[dimension], has, want = str(start + row), has[row], want[row]
    return f"[{', '.join(places)}]" if places else "", _numbers(has), _numbers(want)


def _numbers(array: np.ndarray[Any, Any]) -> str:
    if not array.ndim:
        return str(array)
    text = np.array2string(
        np.ravel(array)[:SHOWN], precision=4, separator=", ", max_line_width=1000
    )
    return text[:-1] + ", …]" if array.size > SHOWN else text


def summary(found: Sequence[Difference]) -> str:
    """Returns differences as a sentence: who has what, by what the first one is."""
    what = found[0].what
    who = sorted({each.process for each in found if each.what == what})
    return f"On {processes_label(who)}, the answer {what}"
