"""What a collective does, step by step: which device sends what to which."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jaxnb.model.arrays import MeshInfo
from jaxnb.model.compiled import Collective, CollectiveKind, CompiledReport


class Piece(NamedTuple):
    """What a device holds, or sends.

    Attributes:
        of: The places in the group of the devices whose data it is; of several, their sum.
        part: Which part of each one's data; None for all of it.
    """

    of: frozenset[int]
    part: int | None = None


class Arrival(NamedTuple):
    """Something has come: where, from where, and what the device has made of it."""

    target: int
    source: int
    piece: Piece


Held = tuple[tuple[Piece | None, ...], ...]
"""By the place of a device in the group, what it holds; None for nothing yet."""


@dataclass(frozen=True)
class Exchange:
    """A collective in a group.

    Attributes:
        before: What each device has.
        steps: For each step, in order, what arrives.
        after: What each device has got.
    """

    before: Held
    steps: tuple[tuple[Arrival, ...], ...]
    after: Held


def cuts(kind: CollectiveKind, size: int, elements: int | None) -> bool:
    """Whether a collective cuts each device's data into parts, one for each of its group.

    Args:
        kind: The collective.
        size: How many devices the group has.
        elements: How many elements each device has; None if that is not known. An all-reduce of
            fewer than there are devices leaves them whole.
    """
    if kind == "all-reduce":
        return elements is None or elements >= size
    return kind in ("reduce-scatter", "all-to-all")


def play(kind: CollectiveKind, size: int, *, is_ring: bool = True, is_cut: bool = True) -> Exchange:
    """Returns what a collective does in a group of so many devices.

    All-reduce, all-gather and reduce-scatter go around a ring, all-to-all goes pair by pair: what
    :func:`sent_bytes` counts.

    Args:
        kind: The collective.
        size: How many devices the group has.
        is_ring: The last sends to the first, in a permute.
        is_cut: An all-reduce cuts the data; else they are too few, and nothing is said of steps.
    """
    places = range(size)
    parts = [[Piece(frozenset({d}), k) for k in places] for d in places]
    wholes = [Piece(frozenset({d})) for d in places]
    held: list[list[Piece | None]]
    match kind:
        case "all-reduce" if not is_cut:
            total = Piece(frozenset(places))
            return Exchange(tuple((each,) for each in wholes), (), ((total,),) * size)
        case "all-reduce" | "reduce-scatter":
            held = [[*each] for each in parts]
            steps = list(_around(held, 1))
            held = [[held[d][d] if k == d else None for k in places] for d in places]
            if kind == "reduce-scatter":
                return Exchange(_frozen(parts), tuple(steps), tuple((held[d][d],) for d in places))
            steps += _around(held, 0)
            return Exchange(_frozen(parts), tuple(steps), _frozen(held))
        case "all-gather":
            held = [[wholes[d] if k == d else None for k in places] for d in places]
            return Exchange(_frozen(held), tuple(_around(held, 0)), _frozen(held))
        case "all-to-all" | "ragged-all-to-all":
            steps = [
                tuple(Arrival((d + s) % size, d, parts[d][(d + s) % size]) for d in places)
                for s in range(1, size)
            ]
            return Exchange(_frozen(parts), tuple(steps), tuple(zip(*parts, strict=True)))
        case "collective-permute":
            sends = [(d, (d + 1) % size) for d in (places if is_ring else places[:-1])]
            step = tuple(Arrival(target, source, wholes[source]) for source, target in sends)
            moved = {each.target: each.piece for each in step}
            return Exchange(
                tuple((each,) for each in wholes), (step,), tuple((moved.get(d),) for d in places)
            )
        case "collective-broadcast":
            first = wholes[0]
            steps = [(Arrival(d + 1, d, first),) for d in places[:-1]]
            return Exchange(((first,), *((None,),) * (size - 1)), tuple(steps), ((first,),) * size)


def _frozen(held: Sequence[Sequence[Piece | None]]) -> Held:
    return tuple(map(tuple, held))


def _around(held: list[list[Piece | None]], behind: int) -> Iterator[tuple[Arrival, ...]]:
    """Passes pieces around until all have been at all devices; changes ``held``.

    Each device begins with that of its own place, or so many places behind, and then passes on
    what has come, summed with what it has there.
    """
    size = len(held)
    for step in range(size - 1):
        arrivals = []
        for source in range(size):
            target, place = (source + 1) % size, (source - step - behind) % size
            sent, own = held[source][place], held[target][place]
            assert sent is not None
            piece = sent._replace(of=sent.of | own.of) if own else sent
            arrivals.append((place, Arrival(target, source, piece)))
        for place, each in arrivals:
            held[each.target][place] = each.piece
        yield tuple(each for _, each in arrivals)


# ---------------------------------------------------------------------- bytes

# Ring algorithms for all-reduce, all-gather and reduce-scatter, pairwise exchange for
# all-to-all: the bounds that every device's link has to carry, whatever the library does.
# Sources: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication
# Operations in MPICH", IJHPCA 19(1), 2005; NVIDIA's ``nccl-tests``, ``doc/PERFORMANCE.md``, whose
# "bus bandwidth" counts the same bytes.


def sent_bytes(kind: CollectiveKind, result_bytes: int, group_size: int) -> int:
    """Returns what one execution makes each device send.

    Args:
        kind: The collective.
        result_bytes: Size of its result on one device.
        group_size: How many devices take part. A group of one sends nothing.

    Returns:
        Whole bytes, rounded up: what cannot be split evenly is padded.
    """
    n = group_size
    if n < 2:
        return 0
    match kind:
        case "all-reduce":  # a reduce-scatter, then an all-gather
            return _up(2 * (n - 1) * result_bytes, n)
        case "reduce-scatter":  # its input is n times its result
            return (n - 1) * result_bytes
        case "all-gather" | "all-to-all" | "ragged-all-to-all":
            return _up((n - 1) * result_bytes, n)
        case "collective-permute" | "collective-broadcast":
            return result_bytes


def _up(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def links(collective: Collective, group: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Returns who sends how much to whom in one execution: source, target and bytes.

    Args:
        collective: The collective.
        group: One of its groups.
    """
    size = len(group)
    if size < 2:
        return
    nbytes = sum(part.nbytes for part in collective.parts)
    sent = sent_bytes(collective.kind, nbytes, size)
    if collective.kind in ("all-to-all", "ragged-all-to-all"):
        each, more = divmod(sent, size - 1)
        for place, source in enumerate(group):
            for step in range(1, size):
                yield source, group[(place + step) % size], each + (step <= more)
        return
    if collective.kind == "collective-permute":
        yield from ((s, t, sent) for s, t in collective.pairs if s != t and s in group)
        return
    last = size - 1 if collective.kind == "collective-broadcast" else size
    yield from ((group[i], group[(i + 1) % size], sent) for i in range(last))


def matrix(report: CompiledReport) -> np.ndarray[Any, Any]:
    """Returns how many bytes each device sends to each in one call, by ring and pairwise exchange.

    What is in loops of unknown length counts once. A row's sum is what the device sends.

    Args:
        report: What the call compiles to.

    Returns:
        By sender and receiver, in the order of ``report.devices``.
    """
    return _summed(report.devices, ((c, g) for c in report.collectives for g in c.groups))


def line_of(
    report: CompiledReport, mesh: MeshInfo, axis: str
) -> tuple[tuple[int, ...], np.ndarray[Any, Any]]:
    """Returns the first devices along an axis, and what they send each other; see :func:`matrix`.

    Collectives along that axis only count: in a mesh each line along it does the same.
    """
    along = mesh.axis_names.index(axis)
    devices = np.moveaxis(np.reshape(mesh.device_ids, mesh.shape), along, -1)
    line = tuple(map(int, devices.reshape(-1, mesh.shape[along])[0]))
    known = frozenset(line)
    moving = [(c, g) for c in report.collectives if c.axes == (axis,) for g in c.groups]
    return line, _summed(line, ((c, g) for c, g in moving if known.issuperset(g)))


def _summed(
    devices: Sequence[int], moving: Iterable[tuple[Collective, Sequence[int]]]
) -> np.ndarray[Any, Any]:
    place = {device: i for i, device in enumerate(devices)}
    found = np.zeros((len(place), len(place)), np.int64)
    for each, group in moving:
        for source, target, nbytes in links(each, group):
            if source in place and target in place:
                found[place[source], place[target]] += nbytes * each.times
    return found
