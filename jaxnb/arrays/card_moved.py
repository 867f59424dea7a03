"""What was pulled or pushed, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeGuard

from jaxnb.arrays import total_bytes
from jaxnb.arrays.per_process import PerProcess
from jaxnb.labels import one_line, plural
from jaxnb.model.arrays import ArrayInfo

if TYPE_CHECKING:
    from jaxnb.arrays.gathered import GatheredArray

_SHORT = 40
_SHOWN = (bool, int, float, complex, str, bytes, type(None))


@dataclass(frozen=True, slots=True)
class Moved:
    """A value that was pulled or pushed.

    Attributes:
        name: Where it is now.
        type: ``"float32[8, 4]"``, ``"dict of 3 arrays"`` or the like.
        spec: Its partition spec, if it is an array that has one.
        size_bytes: Bytes of its arrays; None without arrays.
        notes: What to know beside.
    """

    name: str
    type: str
    spec: str = ""
    size_bytes: int | None = None
    notes: tuple[str, ...] = ()

    def with_notes(self, *notes: str) -> Moved:
        """Returns the same with further notes."""
        return replace(self, notes=(*self.notes, *notes))

    def as_placed(self, entries: Sequence[tuple[str, ArrayInfo]], notes: tuple[str, ...]) -> Moved:
        """Returns the value as it is on the processes: arrays with a sharding."""
        size = sum(total_bytes(array) for _, array in entries)
        if len(entries) != 1:
            return replace(self, size_bytes=size, notes=(*self.notes, *notes))
        array = entries[0][1]
        kind = f"{array.dtype}[{', '.join(map(str, array.shape))}]"
        return replace(
            self, type=kind, spec=array.spec or "", size_bytes=size, notes=(*self.notes, *notes)
        )


def moved(name: str, value: Any, *notes: str) -> Moved:
    """Describes a value as the notebook holds it."""
    sizes = {id(leaf): leaf.nbytes for leaf in leaves(value)}  # several processes' may be one
    spec = _spec(value) if is_gathered(value) else ""
    if isinstance(value, PerProcess):
        notes = ("differs by process", *notes)
    return Moved(name, type_of(value), spec, sum(sizes.values()) if sizes else None, notes)


def type_of(value: Any) -> str:
    """Returns a short text for what a value is."""
    if is_gathered(value):
        shape = value.wanted().region.result_shape
        return f"{value.info.dtype}[{', '.join(map(str, shape))}]"
    if is_array(value):
        return f"NumPy {value.dtype}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, PerProcess):
        kinds = {type_of(each) for each in value.values()}
        if len(kinds) > 1:
            kinds = {type(each).__name__ for each in value.values()}
        return f"{' or '.join(sorted(kinds))} by process"
    if isinstance(value, _SHOWN):
        return f"{type(value).__name__} {one_line(repr(value), _SHORT)}"
    count = len({id(leaf) for leaf in leaves(value)})
    return type(value).__name__ + (f" of {plural(count, 'array')}" if count else "")


def is_gathered(value: Any) -> TypeGuard[GatheredArray]:
    """Whether it is an array of the processes."""
    from jaxnb.arrays.gathered import GatheredArray  # late, as it loads NumPy

    return isinstance(value, GatheredArray)


def is_array(value: Any) -> bool:
    """Whether it is an array of NumPy's, of JAX's in the notebook, or of the processes."""
    import numpy as np

    if isinstance(value, np.ndarray) or is_gathered(value):
        return True
    return hasattr(value, "__array__") and hasattr(value, "sharding")  # without importing jax


def leaves(value: Any) -> list[Any]:
    """Returns the arrays in a value and in plain containers inside it."""
    found: list[Any] = []
    waiting, seen = [value], set()
    while waiting:
        each = waiting.pop()
        if isinstance(each, _SHOWN):
            continue
        if is_array(each):
            found.append(each)
        elif isinstance(each, Mapping | list | tuple) and id(each) not in seen:
            seen.add(id(each))  # a container may hold itself
            waiting += each.values() if isinstance(each, Mapping) else each
    return found


def narrowed(value: Any, dtypes: set[str]) -> tuple[str, ...]:
    """Says which dtypes of a pushed value JAX has made narrower.

    Args:
        value: What was pushed.
        dtypes: Names of the dtypes that its arrays have now.
    """
    wide = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}
    had = {str(leaf.dtype) for leaf in leaves(value)} - dtypes
    lost = [
        f"{dtype} → {wide[dtype]}" for dtype in sorted(had & set(wide)) if wide[dtype] in dtypes
    ]
    return (f"{', '.join(lost)}: jax_enable_x64 is off",) if lost else ()


def _spec(array: Any) -> str:
    """Returns the spec of a pulled array; of a part of one, of what it is a part of."""
    info = array.info
    if not info.spec or array.wanted().region.is_whole:
        return info.spec or ""
    return f"of {info.dtype}[{', '.join(map(str, info.shape))}] {info.spec}"
