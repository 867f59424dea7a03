"""How a value on the processes lies over devices: what ``session.layout`` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxnb.arrays.blocks import Block, blocks, bytes_per_device
from jaxnb.errors import UsageError
from jaxnb.model.arrays import ArrayInfo, MeshInfo, ShardInfo

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
            for device, nbytes in bytes_per_device(array).items() if k not in self.again else ():
                total[device] = total.get(device, 0) + nbytes
        return total

    def _card(self) -> Card:
        from jaxnb.arrays import card_array

        return card_array.layout_card(self.entries, self.others, self.lost, self.again)

    def __str__(self) -> str:
        return self._card().text

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return self._card()._repr_mimebundle_()
