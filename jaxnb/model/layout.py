"""Arrays: how they lie over processes and devices."""

from __future__ import annotations

from dataclasses import dataclass

from jaxnb.model.origins import Argument

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
        sharding: ``str(array.sharding)``.
        spec: The partition spec as text, ``"P('data', None)"``; None without a mesh.
        mesh: The mesh; None for other shardings.
        memory_kind: E.g. ``"device"``; None if the backend names none.
        fully_replicated: Every device holds the whole array.
        fully_addressable: The describing process holds every shard (a process-local array).
        shards: All shards of the array, of every process, in device order. Only the
            describing process's own have digests.
        corner: What this process holds of the array's corners: pairs of a global index and
            the element there as text. The corners are the first and last
            :data:`jaxnb.arrays.EDGE_ITEMS` along each dimension.
        deleted: The buffer was donated or deleted; the other fields still hold.
        host_dtype: Name of the dtype that its elements have in NumPy: the same, except that
            PRNG keys are ``"uint32"`` words.
        word_shape: Trailing dimensions that it has in NumPy beside ``shape``: ``(2,)`` for
            PRNG keys of two words each, empty otherwise.
        origin: The number of what made it, equal on all processes; 0 for an array of one process
            alone.
        suspect: Of what parts it is made, if these are of different arrays; empty if they are not,
            as far as is known.
        source: Where the array came from; None for an array of one process alone, and where that
            is not known.
        gone: The processes on which it was deleted or donated, or that are dead, where others still
            hold their parts.
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
    origin: int = 0
    suspect: str = ""
    source: Argument | None = None
    gone: tuple[int, ...] = ()


@dataclass(frozen=True)
class ArrayLeaf:
    """Stands in a pickled value for an array that is described beside it.

    Attributes:
        index: Its place among the described arrays.
    """

    index: int
