"""What indexing takes of an array, known before any of it is moved."""

from __future__ import annotations

import ast
import functools
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import neg
from types import EllipsisType
from typing import Any, Literal

import numpy as np

from jaxnb.arrays.blocks import Index, Interval, blocks
from jaxnb.errors import UsageError
from jaxnb.model.arrays import ShardInfo

_Item = int | slice | EllipsisType


class NotBasicIndexError(TypeError):
    """The index needs more of NumPy than integers and slices, so what it takes is not a region."""


@dataclass(frozen=True, slots=True)
class Region:
    """What integers and slices take of an array: composed as NumPy does, without the array.

    Attributes:
        shape: Shape of the array that was indexed first, the base.
        ranges: For each dimension of the base the positions taken, in order; the step may be
            any but zero.
        axes: For each dimension of the result the dimension of the base. Dimensions of the base
            that are missing were indexed with an integer.
    """

    shape: tuple[int, ...]
    ranges: tuple[range, ...]
    axes: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Iterable[int]) -> Region:
        """Returns the region of all elements of an array."""
        sizes = tuple(shape)
        return cls(sizes, tuple(range(size) for size in sizes), tuple(range(len(sizes))))

    @classmethod
    def of(cls, shape: Iterable[int], subscripts: Iterable[Any]) -> Region:
        """Returns the region that subscripts take of an array, one after the other.

        Raises:
            IndexError: As NumPy, or they take no region.
            TypeError: One is no index.
        """
        region = cls.whole(shape)
        for subscript in subscripts:
            region = region[subscript]
        return region

    @property
    def taken_shape(self) -> tuple[int, ...]:
        """How many positions of each dimension of the base are taken."""
        return tuple(len(positions) for positions in self.ranges)

    @property
    def result_shape(self) -> tuple[int, ...]:
        """Shape of what the indexing gives."""
        return tuple(len(self.ranges[axis]) for axis in self.axes)

    @property
    def is_whole(self) -> bool:
        """Indexing changed nothing: all elements, in order, and the same dimensions."""
        return self == Region.whole(self.shape)

    def __getitem__(self, index: Any) -> Region:
        """Indexes the result of this region.

        Args:
            index: Integers, slices and ``...``: one, or a tuple of them.

        Returns:
            The region of the same base that ``array[self][index]`` would be.

        Raises:
            IndexError: Where NumPy raises it, with its message.
            NotBasicIndexError: There is None, a bool, a sequence or an array in the index.
        """
        ranges = list(self.ranges)
        axes: list[int] = []
        items = _one_per_dimension(index, len(self.axes))
        for here, (base, item) in enumerate(zip(self.axes, items, strict=True)):
            if isinstance(item, slice):
                ranges[base] = ranges[base][item]
                axes.append(base)
            else:
                ranges[base] = _one_position(ranges[base], item, here)
        return Region(self.shape, tuple(ranges), tuple(axes))

    def finish(self, taken: np.ndarray, word_ndim: int = 0) -> np.ndarray:
        """Returns the result of the indexing, as a view.

        Args:
            taken: The elements at ``ranges``: an array of ``taken_shape``.
            word_ndim: How many dimensions it has behind those, which are not indexed.

        Raises:
            ValueError: ``taken`` has another shape.
        """
        if taken.shape[: taken.ndim - word_ndim] != self.taken_shape:
            raise ValueError(f"expected shape {self.taken_shape}, got {taken.shape}")
        kept = [slice(None) if d in self.axes else 0 for d in range(len(self.shape))]
        # Without the Ellipsis NumPy makes a scalar, which is a copy, of a single element.
        found: np.ndarray = taken[(*kept, ...)]
        return found

    def __str__(self) -> str:
        """The index that takes the region of its base, ``"[0:4, ::2, 3]"``; empty for all."""
        texts = [
            _slice_text(positions, size) if d in self.axes else str(positions[0])
            for d, (positions, size) in enumerate(zip(self.ranges, self.shape, strict=True))
        ]
        while texts and texts[-1] == ":":
            texts.pop()
        return f"[{', '.join(texts)}]" if texts else ""


def view(array: np.ndarray, box: Iterable[slice]) -> np.ndarray:
    """Returns a box of an array as a view, be it of no dimensions."""
    index: tuple[Any, ...] = (*box, ...)  # without the dots NumPy makes a scalar, a copy
    found: np.ndarray = array[index]
    return found


def as_slice(positions: range) -> slice:
    """Returns the slice that takes these positions, none of them negative."""
    if not positions:
        return slice(0, 0)
    # A negative stop would count from the end.
    stop = positions.stop if positions.stop >= 0 else None
    return slice(positions.start, stop, positions.step)


def _one_per_dimension(index: Any, ndim: int) -> list[int | slice]:
    """The entries of an index, ``...`` and what was left out at its end written out."""
    items = [_item(entry) for entry in (index if isinstance(index, tuple) else (index,))]
    gaps = [place for place, item in enumerate(items) if item is Ellipsis]
    if len(gaps) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    indexed = len(items) - len(gaps)
    if indexed > ndim:
        raise IndexError(
            f"too many indices for array: array is {ndim}-dimensional, but {indexed} were indexed"
        )
    (gap,) = gaps or [len(items)]
    filled = [*items[:gap], *[slice(None)] * (ndim - indexed), *items[gap + 1 :]]
    return [item for item in filled if not isinstance(item, EllipsisType)]


def _item(entry: Any) -> _Item:
    """One entry of an index, integers of any type as ``int``."""
    if entry is Ellipsis or isinstance(entry, slice):
        return entry
    is_sequence = isinstance(entry, Sequence) and not isinstance(entry, str | bytes)
    is_array = hasattr(entry, "__array__") and not isinstance(entry, np.generic)
    if entry is None or isinstance(entry, bool | np.bool_) or is_sequence or is_array:
        raise NotBasicIndexError(
            f"an index with a {type(entry).__name__} needs the whole array; "
            "integers, slices and `...` do not"
        )
    try:
        return operator.index(entry)
    except TypeError:
        raise IndexError(
            "only integers, slices (`:`), ellipsis (`...`) and numpy.newaxis (`None`) "
            f"are valid indices, not {entry!r}"
        ) from None


def _one_position(positions: range, item: int, axis: int) -> range:
    """The position that an integer takes, as a range."""
    if not -len(positions) <= item < len(positions):
        raise IndexError(
            f"index {item} is out of bounds for axis {axis} with size {len(positions)}"
        )
    return range(positions[item], positions[item] + 1)


def _slice_text(positions: range, size: int) -> str:
    """A slice that takes the positions along a dimension, as short as it reads well."""
    if positions == range(size):
        return ":"
    if len(positions) < 2 or positions.step == 1:
        return f"{positions[0]}:{positions[-1] + 1}" if positions else "0:0"
    forward = positions.step > 0
    from_the_end = positions[0] == (0 if forward else size - 1)
    to_the_end = not 0 <= positions[-1] + positions.step < size
    start = "" if from_the_end else positions[0]
    stop = "" if to_the_end else positions[-1] + (1 if forward else -1)
    return f"{start}:{stop}:{positions.step}"


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of elements that one shard gives to a region.

    Attributes:
        shard: Whose elements they are.
        source: Where they lie within the shard's own data; steps may be negative.
        target: Where they go within an array of :attr:`Region.taken_shape`; steps are 1.
    """

    shard: ShardInfo
    source: tuple[slice, ...]
    target: tuple[slice, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of elements along each dimension."""
        return tuple(part.stop - part.start for part in self.target)


def pieces(
    region: Region, shards: Iterable[ShardInfo], processes: Collection[int] | None = None
) -> tuple[list[Piece], list[Index]]:
    """Finds who gives which elements of a region, each element once.

    Args:
        region: What is wanted.
        shards: All shards of the array, of every process.
        processes: The processes that can give; None for all. Of those that hold a part, the
            one with the lowest ``replica_id`` gives it.

    Returns:
        The pieces, and the parts of the array that the region needs and none of
        ``processes`` holds: their indices in the array, as in :attr:`ShardInfo.index`.
    """
    found: list[Piece] = []
    lost: list[Index] = []
    if 0 in region.result_shape:
        return found, lost
    for block in blocks(shards):
        targets = [
            _places(positions, interval)
            for positions, interval in zip(region.ranges, block.index, strict=True)
        ]
        if not all(targets):
            continue
        holders = (s for s in block.shards if processes is None or s.process_index in processes)
        shard = next(holders, None)
        if shard is None:
            lost.append(block.index)
        else:
            found.append(_piece(shard, region, targets))
    return found, lost


def _places(positions: range, interval: Interval) -> range:
    """Which of the positions, counted from 0, are in an interval: adjacent ones."""
    start, stop = interval
    if positions.step > 0:
        return range(bisect_left(positions, start), bisect_left(positions, stop))
    return range(bisect_right(positions, -stop, key=neg), bisect_right(positions, -start, key=neg))


def _piece(shard: ShardInfo, region: Region, targets: Sequence[range]) -> Piece:
    """What a shard gives, from the places that each dimension of it fills."""
    source: list[slice] = []
    for positions, places, (start, _) in zip(region.ranges, targets, shard.index, strict=True):
        part = positions[places.start : places.stop]
        source.append(as_slice(range(part.start - start, part.stop - start, part.step)))
    target = tuple(slice(places.start, places.stop) for places in targets)
    return Piece(shard, tuple(source), target)


def boxes(array: np.ndarray[Any, Any], limit: int) -> Iterator[np.ndarray[Any, Any]]:
    """Cuts an array into views of at most ``limit`` bytes, in C order of their elements."""
    if array.nbytes <= limit or array.ndim == 0:
        yield array
        return
    per_row = array.nbytes // len(array)
    if per_row > limit and array.ndim > 1:  # a row of a vector would be a copy
        for row in array:
            yield from boxes(row, limit)
        return
    step = max(1, limit // max(1, per_row))
    for start in range(0, len(array), step):
        yield array[start : start + step]


_CONSTANTS = (int, float, str, bytes, type(None), type(...))


@dataclass(frozen=True, slots=True)
class Step:
    """One attribute or subscript.

    Attributes:
        kind: ``"attribute"`` or ``"subscript"``.
        key: The attribute's name, or what stands between the brackets.
    """

    kind: Literal["attribute", "subscript"]
    key: Any

    @property
    def slices(self) -> bool:
        """Whether it is an index of an array that takes a region: integers, slices, ``...``."""
        keys = self.key if isinstance(self.key, tuple) else (self.key,)
        return self.kind == "subscript" and all(
            isinstance(k, int | slice | type(...)) and not isinstance(k, bool) for k in keys
        )


@dataclass(frozen=True, slots=True)
class Path:
    """Where a value is found.

    Attributes:
        text: As the user wrote it.
        name: The variable.
        steps: From there to the value.
        texts: What each step leads to, as text; the variable first.
    """

    text: str
    name: str
    steps: tuple[Step, ...]
    texts: tuple[str, ...]

    def without(self, count: int) -> str:
        """Returns the path without its last ``count`` steps."""
        return self.texts[len(self.steps) - count]

    def last_keys(self, count: int) -> list[Any]:
        """Returns what stands in the path's last ``count`` subscripts."""
        return [step.key for step in self.steps[len(self.steps) - count :]]


_FOR_AN_EXPRESSION = (
    "Nothing was moved. For the value of an expression type `spmd.run({text}).value`."
)


def parse_path(text: str, instead: str = "") -> Path:
    """Reads a path.

    Args:
        text: The path.
        instead: What to do with ``{text}`` where it is none; by default what pulls its value.

    Raises:
        UsageError: It is not a name with attributes and literal subscripts. What computes
            something is left to cells: processes that are out of step could not take part.
    """
    if not isinstance(text, str):
        raise UsageError(f"Names on the processes are text, as in 'x', not {text!r}.")
    return _parsed(text, instead)


@functools.lru_cache(maxsize=256)  # a loop pulls the same few again and again
def _parsed(text: str, instead: str) -> Path:
    try:
        node: ast.expr = ast.parse(text.strip(), mode="eval").body
        steps: list[Step] = []
        texts = [ast.unparse(node)]
        while not isinstance(node, ast.Name):
            node, step = _step(node)
            steps.append(step)
            texts.append(ast.unparse(node))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise UsageError(
            f"{text!r} is not a name, or a name with attributes and literal subscripts such as "
            "`x`, `state.opt['mu']` or `x[..., :3]`. "
            + (instead.format(text=text) or _FOR_AN_EXPRESSION.format(text=repr(text)))
        ) from None
    return Path(text.strip(), node.id, tuple(reversed(steps)), tuple(reversed(texts)))


def _step(node: ast.expr) -> tuple[ast.expr, Step]:
    if isinstance(node, ast.Attribute):
        return node.value, Step("attribute", node.attr)
    if isinstance(node, ast.Subscript):
        return node.value, Step("subscript", _key(node.slice))
    raise ValueError


def _key(node: ast.expr) -> Any:
    if isinstance(node, ast.Tuple):
        return tuple(_key(element) for element in node.elts)
    if isinstance(node, ast.Slice):
        parts = node.lower, node.upper, node.step
        return slice(*(part and ast.literal_eval(part) for part in parts))
    value = ast.literal_eval(node)
    if not isinstance(value, _CONSTANTS):
        raise ValueError
    return value
