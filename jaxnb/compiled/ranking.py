"""Pure: the variants of a comparison beside one another, and what their outputs warn of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from jaxnb.model.compiled import Column, LeafLayout, OutputWarning, Variant

COLUMNS: dict[Column, str] = {
    "bytes": "bytes",
    "memory": "memory_bytes",
    "compile": "compile_seconds",
    "time": "seconds",
}
"""Each column, and the attribute of a variant that is in it."""


def number(variant: Variant, column: Column) -> float | None:
    """Returns what a variant has in a column; None if nothing."""
    found: float | None = getattr(variant, COLUMNS[column])
    return found


def best(variants: Sequence[Variant], column: Column) -> Variant | None:
    """Returns the first variant with the least of a column; None if none has a number."""
    known = [v for v in variants if number(v, column) is not None]
    return min(known, key=lambda v: number(v, column) or 0.0, default=None)


def marked(variants: Sequence[Variant], column: Column) -> list[bool]:
    """Returns for each variant whether it is marked as best in a column.

    All with the least number are. Of times all are whose median lies within the middle half
    of the fastest's calls: they cannot be told apart. Where fewer than two have a number, and
    where all would be marked, none is.
    """
    first = best(variants, column)
    numbers = [number(v, column) for v in variants]
    known = [each for each in numbers if each is not None]
    if first is None or len(known) < 2:
        return [False] * len(variants)
    limit = first.timing.high if column == "time" and first.timing else min(known)
    found = [each is not None and each <= limit for each in numbers]
    return [False] * len(variants) if sum(found) == len(known) else found


LARGE_BYTES = 1 << 20
"""A replicated output that answers to no argument is mentioned from this size on."""

Axes = tuple[tuple[str, ...], ...]


def warnings_of(
    arguments: Sequence[LeafLayout], outputs: Iterable[LeafLayout], mesh: Mapping[str, int]
) -> tuple[OutputWarning, ...]:
    """Returns what to say of a function's outputs whose sharding the user has not given.

    An output **answers to** an argument of the same dtype and shape: to the ones that have the
    same name in their pytrees if there are such, else to all of them; and to none of them if
    those are split in different ways. It is *resharded* if some dimension has lost an axis that
    splits this dimension of the argument. One that is split further is not.

    An output that answers to none is *replicated* if it has :data:`LARGE_BYTES` or more, every
    device has all of it though an axis divides one of its dimensions, and some argument is
    split: where all arguments are whole, nobody wonders.

    Args:
        arguments: The arguments.
        outputs: The outputs.
        mesh: Axis to size.
    """
    found = []
    is_split = any(not each.replicated for each in arguments)
    for output in outputs:
        role = _role(output, arguments)
        if role is not None:
            warning = _resharded(output, role, mesh)
        else:
            warning = _replicated(output, mesh) if is_split else None
        if warning is not None:
            found.append(warning)
    return tuple(found)


def _role(output: LeafLayout, arguments: Sequence[LeafLayout]) -> LeafLayout | None:
    alike = [a for a in arguments if a.type == output.type and a.axes is not None]
    named = [a for a in alike if output.key and a.key == output.key]
    alike = named or alike
    if not alike or any(a.axes != alike[0].axes for a in alike):
        return None
    return alike[0]


def _resharded(
    output: LeafLayout, argument: LeafLayout, mesh: Mapping[str, int]
) -> OutputWarning | None:
    assert argument.axes is not None
    if output.axes is None or not _has_lost(argument.axes, output.axes):
        return None
    return _warning("resharded", output, argument.axes, mesh, argument.path)


def _has_lost(before: Axes, after: Axes) -> bool:
    """Whether some dimension is no longer split by an axis that split it."""
    return any(set(old) - set(new) for old, new in zip(before, after, strict=True))


def _replicated(output: LeafLayout, mesh: Mapping[str, int]) -> OutputWarning | None:
    if not output.replicated or output.nbytes < LARGE_BYTES:
        return None
    # The longest dimension that an axis divides, by the largest axis that does.
    places = sorted(range(len(output.shape)), key=lambda place: -output.shape[place])
    axes = sorted((axis for axis in mesh if mesh[axis] > 1), key=lambda axis: -mesh[axis])
    for place in places:
        for axis in axes:
            if output.shape[place] % mesh[axis] == 0:
                split = tuple((axis,) if i == place else () for i in range(len(output.shape)))
                return _warning("replicated", output, split, mesh, "")
    return None


def _warning(
    kind: str, output: LeafLayout, expected: Axes, mesh: Mapping[str, int], argument: str
) -> OutputWarning:
    parts = math.prod(mesh.get(axis, 1) for axes in expected for axis in axes)
    return OutputWarning(
        kind="resharded" if kind == "resharded" else "replicated",
        output=output.path,
        type=output.type,
        spec=spec_text(output.axes or ()),
        device_bytes=output.device_bytes,
        expected=spec_text(expected),
        expected_bytes=-(-output.nbytes // parts),
        argument=argument,
    )


def spec_text(axes: Axes) -> str:
    """Returns a partition spec as it is typed: ``"P(None, 'data')"``."""
    entries = [
        repr(each[0]) if len(each) == 1 else (repr(each) if each else "None") for each in axes
    ]
    while entries and entries[-1] == "None":
        entries.pop()
    return f"P({', '.join(entries)})"
