"""What processes and the notebook tell each other of values for a process that is new."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxnb.recovery.messages import LostPart

Box = tuple[tuple[int, int], ...]
"""Where a shard is in its array: from where to where, in each dimension."""


@dataclass(frozen=True, slots=True)
class Possession:
    """What a name is bound to on one process, as far as it could be given to another.

    Attributes:
        digest: Equal on two processes only if the values are, but for the elements of arrays
            that are spread over processes; empty if it cannot be given.
        reason: Why not.
        is_common: It is the same on every process by its nature: it has arrays or meshes of
            several processes in it, or is code without values of its own.
        arrays: The arrays in it that are spread over processes, as paths.
        replicas: Digests of their shards that others hold too: (array, box) to digest.
        origins: The numbers of where they come from; None for one of which that is not known.
        lost: Parts of it that are lost there, as paths.
        is_drawn: It is a figure or a part of one, which has ids and times of its own.
    """

    digest: bytes
    reason: str = ""
    is_common: bool = False
    arrays: tuple[str, ...] = ()
    replicas: Mapping[tuple[int, Box], bytes] = field(default_factory=dict)
    origins: tuple[int | None, ...] = ()
    lost: tuple[str, ...] = ()
    is_drawn: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """A shard on its way to a process that is new.

    Attributes:
        array: The number of its array among those of the given values.
        process_index: The process that it is for.
        place: The platform of its device, and its place among those of that process.
        dtype: Of the elements on the host.
        shape: Likewise.
        data: Its bytes.
    """

    array: int
    process_index: int
    place: tuple[str, int]
    dtype: str
    shape: tuple[int, ...]
    data: Any


@dataclass(frozen=True, slots=True)
class Gift:
    """What a process gives to new ones.

    Attributes:
        digest: Of the values' pickle.
        names: The names, and the sizes of their pickles, if the values were asked for.
        pickle: The values; empty if they were not asked for.
        buffers: What was left out of the pickle.
        pieces: Shards of which this process is to give its replica.
        origins: Where the arrays come from.
        class_ids: By what cloudpickle knows the classes again.
        texts: Of the cells, if the values were asked for.
    """

    digest: bytes
    names: Mapping[str, int]
    pickle: bytes
    buffers: tuple[Any, ...]
    pieces: tuple[Piece, ...]
    origins: tuple[tuple[Any, ...] | None, ...]
    class_ids: tuple[str, ...]
    texts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Filled:
    """What processes that are new in their group were given by the others.

    Attributes:
        names: The variables: all others hold them equal.
        missing: Those that they do not have, and why.
        lost: What could not be made there, by process.
    """

    names: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    lost: Mapping[int, tuple[LostPart, ...]] = field(default_factory=dict)
