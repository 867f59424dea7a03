"""Arrays as they lie over devices, and what is asked and told as they are moved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from jaxnb.model.dispatches import Argument

MAX_DIGEST_BYTES = 64 << 20
"""Larger values are not compared across processes, nor are larger shards of an accelerator, which
would have to be copied to the host. Arrays in host memory are compared whatever their size."""


@dataclass(frozen=True)
class MeshInfo:
    """A ``jax.sharding.Mesh`` as data.

    Attributes:
        axis_names: Names of the axes.
        shape: Size of each axis.
        axis_types: ``"Auto"``, ``"Explicit"`` or ``"Manual"`` for each axis.
        device_ids: ``Device.id`` in row-major order of the mesh.
    """

    axis_names: tuple[str, ...]
    shape: tuple[int, ...]
    axis_types: tuple[str, ...]
    device_ids: tuple[int, ...]

    @property
    def label(self) -> str:
        """``"data 4 × model 2"``."""
        sizes = zip(self.axis_names, self.shape, strict=True)
        return " × ".join(f"{name} {size}" for name, size in sizes)


@dataclass(frozen=True)
class ShardInfo:
    """One shard of an array: which device holds which part.

    Attributes:
        device_id: ``Device.id`` of the holder.
        process_index: The process that owns the device.
        index: For each dimension the half-open ``(start, stop)`` it covers.
        replica_id: 0 for exactly one holder of each part.
        digest: A digest of its bytes where the process that owns it computed one (replicas
            that must agree), else empty.
    """

    device_id: int
    process_index: int
    index: tuple[tuple[int, int], ...]
    replica_id: int
    digest: bytes = b""


@dataclass(frozen=True)
class ArrayInfo:
    """A ``jax.Array`` as one process describes it, its data left where they are.

    Attributes:
        shape: Global shape.
        dtype: Name of the dtype, e.g. ``"bfloat16"``.
        itemsize_bits: Size of one element in bits on a device.
        sharding: ``str(array.sharding)``; empty for an array that is only planned.
        spec: The partition spec as text, ``"P('data', None)"``; None without a mesh.
        mesh: The mesh; None for other shardings.
        memory_kind: E.g. ``"device"``; None if the backend names none.
        fully_replicated: Every device holds the whole array.
        fully_addressable: The describing process holds every shard (a process-local array).
        shards: All shards of the array, of every process, in device order. Only the
            describing process's own have digests.
        corner: What this process holds of the array's corners: pairs of a global index and
            the element there as text. The corners are, of the first slice, the first and last
            :data:`jaxnb.arrays.blocks.EDGE_ITEMS` along the last two dimensions.
        deleted: The buffer was donated or deleted; the other fields still hold.
        host_dtype: Name of the dtype that its elements have in NumPy: the same, except that
            PRNG keys are ``"uint32"`` words.
        word_shape: Trailing dimensions that it has in NumPy beside ``shape``: ``(2,)`` for
            PRNG keys of two words each, empty otherwise.
        suspect: Of what parts it is made, if these are of different arrays; empty if they are not,
            as far as is known.
        source: Where the array came from; None for an array of one process alone, and where that
            is not known.
        gone: The processes on which it was deleted or donated, or that are dead, where others still
            hold their parts.
        axes: For each dimension the mesh axes that split it; None without a mesh.
        unreduced: The mesh axes over which the devices hold summands of the elements.
    """

    shape: tuple[int, ...]
    dtype: str
    itemsize_bits: int
    sharding: str
    spec: str | None
    mesh: MeshInfo | None
    memory_kind: str | None
    fully_replicated: bool
    fully_addressable: bool
    shards: tuple[ShardInfo, ...]
    corner: tuple[tuple[tuple[int, ...], str], ...] = ()
    deleted: bool = False
    host_dtype: str = ""
    word_shape: tuple[int, ...] = ()
    suspect: str = ""
    source: Argument | None = None
    gone: tuple[int, ...] = ()
    axes: tuple[tuple[str, ...], ...] | None = None
    unreduced: tuple[str, ...] = ()


@dataclass(frozen=True)
class ArrayLeaf:
    """Stands in a pickled value for an array that is described beside it.

    Attributes:
        index: Its place among the described arrays.
    """

    index: int


# A *transfer* is one pull or push. While it lasts, a process keeps the buffers that take part in
# it; their :class:`Exposure` tells the notebook where they are. A *holder* names a pull or a
# cell whose arrays can be asked for later.

SliceInfo = tuple[int, int | None, int]
"""The arguments of a ``slice``."""


@dataclass(frozen=True)
class MemoryPass:
    """Lets the notebook find out whether it can reach a process's memory.

    Attributes:
        pid: The process's id, as it sees it; in another container it means another process.
        address: Where ``nonce`` stands in its memory.
        nonce: Random bytes.
    """

    pid: int
    address: int
    nonce: bytes = field(repr=False)


@dataclass(frozen=True)
class Exposure:
    """A buffer of a process, open to the notebook until the transfer is released.

    Attributes:
        buffer: Its number in the transfer.
        address: Where it is in the process's memory.
        nbytes: Its size in bytes.
    """

    buffer: int
    address: int
    nbytes: int


Part = Exposure | Any
"""Bytes of a process: a buffer that is open to the notebook, or few bytes themselves."""


@dataclass(frozen=True)
class PackRequest:
    """Which value is wanted: its structure, and the descriptions of its arrays.

    Attributes:
        transfer: Names the transfer, and as a holder the arrays of the value.
        path: The value's name, with attributes and subscripts: ``"state.opt['mu']"``.
        cell: Instead of a path: the :attr:`~jaxnb.model.CellRequest.request_id` of a cell
            whose value was too large to travel with its result.
        digest: The digest that the cell's value had; empty if it had none.
        eager_bytes: The data of arrays that together have no more come with the answer.
        inline_bytes: If they have no more than this, in it; more are exposed.
        only_plain: A value is not wanted that code of the user's has to be run for.
    """

    transfer: str
    path: str = ""
    cell: str = ""
    digest: bytes = b""
    eager_bytes: int = 0
    inline_bytes: int = 0
    only_plain: bool = False


@dataclass(frozen=True)
class Packed:
    """A value, its data still in the process.

    Attributes:
        process_index: Who answers.
        transfer: Names the transfer, and holds the arrays.
        type_name: Qualified name of the value's type.
        digest: Equal on two processes only if the values are equal in every byte, but for
            their arrays.
        array_digests: For each array a digest of its layout, equal for one global array, and
            one of its bytes, empty for an array that is spread.
        skeleton: The pickled value; an :class:`ArrayLeaf` stands for each array.
        buffers: What the pickle leaves out of band, in order.
        arrays: The arrays, by :attr:`ArrayLeaf.index`.
        access: How to find out whether the notebook reaches the process's memory.
        subscripts: How many subscripts at the end of the path are left to the notebook to
            apply: those of an array.
        data: The data of small arrays: an array's index, a device, and what its shard gives, for
            this process's first replicas. None where they have to be asked for.
        left: The code of cells in it, for which a :class:`NotMoved` stands.
        sources: Where each of the arrays came from, pickled: it is read where processes differ.
        is_array: The value is an array itself, or a ref to one.
    """

    process_index: int
    transfer: str
    type_name: str
    digest: bytes = field(repr=False)
    array_digests: tuple[tuple[bytes, bytes], ...] = field(repr=False)
    skeleton: bytes = field(repr=False)
    buffers: tuple[Exposure, ...]
    arrays: tuple[ArrayInfo, ...]
    access: MemoryPass
    subscripts: int = 0
    data: tuple[tuple[int, int, Part], ...] | None = field(default=None, repr=False)
    left: tuple[str, ...] = ()
    sources: bytes = field(default=b"", repr=False)
    is_array: bool = False

    @property
    def is_open(self) -> bool:
        """Whether buffers are open until the transfer is released."""
        parts = (*self.buffers, *(part for _, _, part in self.data or ()))
        return any(isinstance(part, Exposure) for part in parts)


@dataclass(frozen=True)
class NotFound:
    """A process does not have what the path names.

    Attributes:
        process_index: Who answers.
        reason: Why, e.g. ``"has no `x`"``.
        is_lost: There was such an array, and it is lost.
    """

    process_index: int
    reason: str
    is_lost: bool = False


@dataclass(frozen=True)
class PartRequest:
    """A box of one shard.

    Attributes:
        array: The array's index in its holder.
        device_id: The device that holds the shard.
        slices: The box, within the shard; empty for all of it.
    """

    array: int
    device_id: int
    slices: tuple[SliceInfo, ...] = ()


@dataclass(frozen=True)
class ExposeRequest:
    """Which parts of arrays a process is to keep in host memory, where the notebook reads them.

    Attributes:
        transfer: Names the transfer.
        holder: The pull or cell that the arrays were described for.
        parts: What is wanted.
        inline_bytes: If they have together no more than this, they come in the answer.
    """

    transfer: str
    holder: str
    parts: tuple[PartRequest, ...]
    inline_bytes: int


@dataclass(frozen=True)
class Exposed:
    """Buffers that the notebook may read until the transfer is released.

    Attributes:
        process_index: Who answers.
        transfer: Names the transfer.
        data: What was asked for: an array's index in its holder, a device, and what its shard
            gives.
        access: How to find out whether the notebook reaches the process's memory.
    """

    process_index: int
    transfer: str
    data: tuple[tuple[int, int, Part], ...] = field(repr=False)
    access: MemoryPass

    @property
    def is_open(self) -> bool:
        """Whether buffers are open until the transfer is released."""
        return any(isinstance(part, Exposure) for _, _, part in self.data)


GoneReason = Literal["dropped", "deleted", "ref", "unreduced"]
"""Why an array cannot be read: no name holds it any more; it was deleted or donated; a ref
on one device may have been written to; each device has a summand of it only."""


@dataclass(frozen=True)
class Gone:
    """An array that was described earlier cannot be read.

    Attributes:
        process_index: Who answers.
        array: Its index in the holder.
        reason: Why.
        axes: The mesh axes over which it is to be summed, of one that is unreduced.
    """

    process_index: int
    array: int
    reason: GoneReason
    axes: tuple[str, ...] = ()


@dataclass(frozen=True)
class LayoutReply:
    """The arrays of a value, their data left where they are.

    Attributes:
        process_index: Who answers.
        entries: Path to each array and its description.
        others: How many leaves of the value are no arrays of JAX.
        lost: The paths of those that were arrays of JAX, and are lost.
        again: Which of the entries are an array that an earlier one is too.
    """

    process_index: int
    entries: tuple[tuple[str, ArrayInfo], ...]
    others: int
    lost: tuple[str, ...] = ()
    again: tuple[int, ...] = ()


@dataclass(frozen=True)
class HostArray:
    """An array of the notebook, on its way to the processes.

    Attributes:
        shape: Its shape.
        dtype: Name of its dtype.
    """

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class PlaceRequest:
    """Asks a process to make room for values that are about to be pushed.

    Nothing is bound to a name yet, unless their data are few and have come.

    Attributes:
        transfer: Names the transfer.
        skeleton: The pickled values by name; an :class:`ArrayLeaf` stands for each array that
            is to become a ``jax.Array``.
        arrays: These arrays, by :attr:`ArrayLeaf.index`.
        buffers: Sizes of what the pickle leaves out of band, in order.
        spec: A partition spec as plain data, or containers of them; None for replicated.
        mesh: Name of the mesh; None for the one there is.
        place: Whether arrays become ``jax.Array``; else they stay what they are.
        data: What there is to write into the rooms, if that is little: the arrays, and the buffers.
    """

    transfer: str
    skeleton: bytes = field(repr=False)
    arrays: tuple[HostArray, ...] = ()
    buffers: tuple[int, ...] = ()
    spec: Any = None
    mesh: str | None = None
    place: bool = False
    data: tuple[tuple[Any, ...], tuple[Any, ...]] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Refused:
    """What was to be pushed does not fit; nothing was moved.

    Attributes:
        process_index: Who answers.
        reason: Why, for people.
        needed: The bytes of memory that it needs, where there are not so many; else 0.
        available: Those that there are.
    """

    process_index: int
    reason: str
    needed: int = 0
    available: int = 0


@dataclass(frozen=True)
class Placed:
    """A process is ready to receive what is pushed.

    Attributes:
        process_index: Who answers.
        dtypes: What each array's dtype will be, by :attr:`ArrayLeaf.index`: without
            ``jax_enable_x64`` those of 64 bits have 32 on a device.
        layouts: How each will lie; must be the same on every process.
        out_of_band: Room for the pickle's buffers.
        blocks: Room for the parts that this process holds: an array's index, the half-open
            ``(start, stop)`` that the part covers of each dimension, and the room.
        access: How to find out whether the notebook reaches the process's memory.
    """

    process_index: int
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    out_of_band: tuple[Exposure, ...]
    blocks: tuple[tuple[int, tuple[tuple[int, int], ...], Exposure], ...]
    access: MemoryPass
