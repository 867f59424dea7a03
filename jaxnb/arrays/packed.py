"""Pure: what processes answer that were asked for one value: how it relates, what came along."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from jaxnb.arrays.assembly import Piece, assemble, pieces
from jaxnb.arrays.dtypes import numpy_dtype
from jaxnb.arrays.gathered import GatheredArray
from jaxnb.labels import plural, processes_label
from jaxnb.lockstep.provenance import differing_names
from jaxnb.model.arrays import Packed
from jaxnb.model.dispatches import Argument, Difference

MOST_LEFT = 4
"""So many parts that were left on the processes are told one by one."""

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def agree(answers: Iterable[Packed]) -> bool:
    """Whether processes have one value: the same but for arrays, and these one, or equal."""
    known = list(answers)
    return len({answer.digest for answer in known}) == 1 and all(
        is_one_array(known, k) or are_equal(known, k) for k in range(len(known[0].arrays))
    )


def left_text(name: str, packed: Mapping[int, Packed]) -> str:
    """Returns which parts of a value were left on the processes, and why; empty if none were."""
    left: dict[tuple[str, str], dict[int, int]] = {}  # some are told alike: elements of a set
    for i, answer in packed.items():
        said = Counter((where, _ADDRESS.sub("", why)) for where, why in answer.left)
        for each, times in said.items():
            left.setdefault(each, {})[i] = times
    if not left:
        return ""
    count = sum(max(times.values()) for times in left.values())
    told = []
    for (where, why), who in list(left.items())[:MOST_LEFT]:
        on = "" if len(who) == len(packed) else f" on {processes_label(who)}"
        told.append(f"`{name}{where}`{on}: {why}")
    if len(left) > MOST_LEFT:
        told.append(f"and {len(left) - MOST_LEFT} more")
    return (
        f"{plural(count, 'part')} of `{name}` cannot be pickled and stayed on the processes, "
        f"the rest was pulled: {'; '.join(told)}."
    )


def alike(packed: Mapping[int, Packed]) -> list[list[int]]:
    """Returns which processes have one value: those of one mesh, say, where there are several."""
    groups: dict[object, list[int]] = {}
    for i, answer in packed.items():
        layouts = tuple(layout for layout, _ in answer.array_digests)
        groups.setdefault((answer.digest, layouts), []).append(i)
    return list(groups.values())


def of_different_arrays(name: str, packed: Mapping[int, Packed]) -> tuple[Difference, ...]:
    """Returns which arrays of one value are parts of different arrays on the processes.

    Of values that differ none are: each process's is given by itself, and nothing put together.
    """
    if not agree(packed.values()) or len({answer.origins for answer in packed.values()}) == 1:
        return ()
    bound = {
        i: {
            name if len(answer.origins) == 1 else f"{name}, array {k}": Argument(k, name, *origin)
            for k, origin in enumerate(answer.origins)
            if origin is not None
        }
        for i, answer in packed.items()
    }
    return differing_names(bound)


def is_one_array(answers: Iterable[Packed], index: int) -> bool:
    """Whether processes mean one global array; its devices may all be one process's."""
    return len({answer.array_digests[index][0] for answer in answers}) == 1


def are_equal(answers: Iterable[Packed], index: int) -> bool:
    """Whether each process has an array of its own, and their bytes are equal."""
    digests = {answer.array_digests[index][1] for answer in answers}
    return len(digests) == 1 and b"" not in digests


SmallData = Mapping[tuple[int, int, int], Any]
"""Process, index of an array and device to the bytes of a shard, or of a slice's part of it."""


def small_data(packed: Mapping[int, Packed]) -> SmallData | None:
    """Returns the data that came with descriptions; None if they came from some only."""
    if any(answer.data is None for answer in packed.values()):
        return None
    return {
        (process, k, device): data
        for process, answer in packed.items()
        for k, device, data in answer.data or ()
    }


def fill_small(array: GatheredArray, found: SmallData, *, is_sliced: bool) -> None:
    """Gives an array the data that came with its description, if they did.

    Args:
        array: The array.
        found: What came.
        is_sliced: They are what a slice takes of each shard, not the shards.
    """
    wanted = array.wanted()
    dtype, words = numpy_dtype(wanted.info.host_dtype), wanted.info.word_shape
    parts, lost = pieces(wanted.region, wanted.info.shards, wanted.key.processes)
    sources = [(p.shard.process_index, wanted.key.index, p.shard.device_id) for p in parts]
    if lost or not all(source in found for source in sources):
        return  # only later replicas are left, or nothing: asking for it says so

    def data(piece: Piece) -> np.ndarray[Any, Any]:
        shard = piece.shard
        raw = np.frombuffer(found[shard.process_index, wanted.key.index, shard.device_id], dtype)
        if is_sliced:
            return raw.reshape((*piece.shape, *words))
        shape = [stop - start for start, stop in shard.index]
        return raw.reshape((*shape, *words))[piece.source]

    array.keep(assemble(wanted.region, parts, data, dtype, words))
