"""How a value on the processes lies over devices: what ``session.layout`` returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jaxnb.arrays.blocks import Block, blocks, bytes_per_device, each_its_own, merged, placing
from jaxnb.errors import UsageError
from jaxnb.lockstep.provenance import apart_text
from jaxnb.model.arrays import ArrayInfo, LayoutReply, MeshInfo, ShardInfo

if TYPE_CHECKING:
    from jaxnb.display.card import Card


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """How an array, or the arrays of a pytree, lie over processes and devices.

    A notebook shows it as a picture, ``print`` as a table. The attributes beside ``entries``
    are those of the only array; with several they raise.

    Attributes:
        entries: Path to each array and its description.
            An array that each process has for itself is described once, with the shards of all.
        others: How many leaves of the value are no arrays of JAX.
        lost: The paths of those that were arrays, and are lost on some process.
        again: Which of the entries are an array that an earlier one is too, on all processes.
    """

    entries: tuple[tuple[str, ArrayInfo], ...]
    others: int = 0
    lost: tuple[str, ...] = ()
    again: frozenset[int] = frozenset()

    @property
    def array(self) -> ArrayInfo:
        """The description of the only array.

        Raises:
            UsageError: There is none, or more than one.
        """
        if len(self.entries) != 1:
            raise UsageError(
                f"The value has {len(self.entries)} arrays; `layout.entries` lists them."
            )
        return self.entries[0][1]

    @property
    def shape(self) -> tuple[int, ...]:
        """Global shape."""
        return self.array.shape

    @property
    def dtype(self) -> str:
        """Name of the dtype."""
        return self.array.dtype

    @property
    def spec(self) -> str | None:
        """The partition spec as text; None without a mesh."""
        return self.array.spec

    @property
    def mesh(self) -> MeshInfo | None:
        """The mesh, or None."""
        return self.array.mesh

    @property
    def shards(self) -> tuple[ShardInfo, ...]:
        """All shards, in device order."""
        return self.array.shards

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The parts, each with everyone who holds it."""
        return blocks(self.array.shards)

    @property
    def bytes_per_device(self) -> Mapping[int, int]:
        """Device id to the bytes that it holds, of all arrays; each array counts once."""
        total: dict[int, int] = {}
        for k, (_, array) in enumerate(self.entries):
            counts = k not in self.again and not array.deleted
            for device, nbytes in bytes_per_device(array).items() if counts else ():
                total[device] = total.get(device, 0) + nbytes
        return total

    def _card(self) -> Card:
        from jaxnb.arrays import card_array

        return card_array.layout_card(self.entries, self.others, self.lost, self.again)

    def __str__(self) -> str:
        return self._card().text

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return self._card()._repr_mimebundle_()


def joined(
    replies: Sequence[LayoutReply], dead: frozenset[int] = frozenset()
) -> ArrayLayout | None:
    """Returns what processes say of one value; None if it has other arrays on other processes.

    Args:
        replies: What they say.
        dead: The processes that are dead.
    """
    paths = [[text for text, _ in reply.entries] for reply in replies]
    if any(p != paths[0] for p in paths) or _are_placed_apart(replies):
        return None
    entries = tuple(
        (text, _merged({reply.process_index: reply.entries[k][1] for reply in replies}, dead))
        for k, text in enumerate(paths[0])
    )
    lost = dict.fromkeys(text for reply in replies for text in reply.lost)
    again = frozenset.intersection(*(frozenset(reply.again) for reply in replies))
    return ArrayLayout(entries, replies[0].others, tuple(lost), again)


def _are_placed_apart(replies: Sequence[LayoutReply]) -> bool:
    """Whether an array of these replies is neither one of all processes nor one of each."""
    each = [[array for _, array in row] for row in zip(*(r.entries for r in replies), strict=True)]
    return any(
        (len(set(map(placing, arrays))) > 1 and not all(a.fully_addressable for a in arrays))
        or len({(array.shape, array.dtype) for array in arrays}) > 1
        for arrays in each
    )


def can_be_pulled(replies: Sequence[LayoutReply]) -> bool:
    """Whether each process's arrays are whole on processes that say the same of them."""
    same = {
        reply.process_index: tuple((a.dtype, placing(a)) for _, a in reply.entries)
        for reply in replies
    }
    return all(
        same.get(shard.process_index) == same[reply.process_index]
        for reply in replies
        for _, array in reply.entries
        for shard in array.shards
    )


def _merged(arrays: Mapping[int, ArrayInfo], dead: frozenset[int]) -> ArrayInfo:
    """Returns all processes' descriptions of one array as one; says if it is not one array."""
    described = list(arrays.values())
    deleted = {i for i, array in arrays.items() if array.deleted}
    if len(described) > 1 and all(array.fully_addressable for array in described):
        own = each_its_own([array for array in described if not array.deleted] or described)
        return own if own.deleted else replace(own, gone=tuple(sorted(deleted)))
    gone = deleted | dead
    gone &= {shard.process_index for shard in described[0].shards}
    found = merged([array for array in described if not array.deleted] or described)
    if not found.deleted:
        found = replace(found, gone=tuple(sorted(gone)))
    if found.suspect or found.fully_replicated or found.fully_addressable:
        return found
    return replace(found, suspect=apart_text({i: each.source for i, each in arrays.items()}))
