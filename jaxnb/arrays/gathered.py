"""An array of the processes in the notebook: :class:`GatheredArray`, its data there until used."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from jaxnb.arrays.regions import NotBasicIndexError, Region, boxes
from jaxnb.errors import JaxnbError
from jaxnb.model.arrays import ArrayInfo, MeshInfo, ShardInfo

if TYPE_CHECKING:
    from jaxnb.arrays.pulling import Puller

_NUMERIC_KINDS = "biufc"

_CAST_BYTES = 8 << 20
"""So much is cast at once, where a copy of all could be too large."""


class UnknownDtypeError(JaxnbError, LookupError):
    """No dtype has this name in NumPy or ml_dtypes as they are installed here."""


@functools.cache  # an array of a pull has it looked up several times
def numpy_dtype(name: str) -> np.dtype:
    """Returns the dtype that JAX gives this name.

    Args:
        name: A numeric dtype's own name, e.g. ``"float32"`` or ``"bfloat16"``. Aliases
            (``"float"``, ``"f4"``) and dtypes that JAX has no arrays of are unknown.

    Raises:
        UnknownDtypeError: There is none here.
    """
    # np.dtype(name) would take aliases too, and warn about some names that are none.
    scalar = np.sctypeDict.get(name)
    if scalar is not None:
        dtype: np.dtype = np.dtype(scalar)
        if dtype.name == name and dtype.kind in _NUMERIC_KINDS:
            return dtype
    return _ml_dtype(name)


def fits(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> bool:
    """Whether a cast keeps numbers what they are, but for rounding: none is cut or overflows."""
    if dtype.itemsize >= array.dtype.itemsize or not array.size:
        return True
    if array.dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return bool(limits.min <= array.min() and array.max() <= limits.max)
    try:
        with np.errstate(all="ignore", over="raise"):
            for box in boxes(array, _CAST_BYTES):
                box.astype(dtype)
    except FloatingPointError:
        return False
    return True


def _ml_dtype(name: str) -> np.dtype:
    """The dtype of that name in ml_dtypes."""
    import ml_dtypes

    scalar = getattr(ml_dtypes, name, None)
    if isinstance(scalar, type) and issubclass(scalar, np.generic):
        return np.dtype(scalar)
    raise UnknownDtypeError(
        f"There is no dtype {name!r} in NumPy {np.__version__} or ml_dtypes "
        f"{ml_dtypes.__version__} on the notebook's side. If the processes have it, their "
        "ml_dtypes is newer: `pip install -U ml_dtypes` where the notebook kernel runs."
    )


_READ_ONLY = (
    "A GatheredArray cannot be written to. Type `np.array(x)` for a copy that can, and "
    "`spmd.push(x=copy, spec=...)` to send it to the processes."
)


@dataclass(frozen=True, slots=True)
class ArrayKey:
    """Names an array that processes hold.

    Attributes:
        holder: The pull or cell that it was described for.
        index: Its index there.
        name: What the user calls it.
        path: The path to look it up again; empty for the value of a cell.
        processes: Those that described it. Others may hold parts of it, but which of their
            arrays it is, is not known.
        generation: The group's, which a restart raises.
        is_part: The value that is named holds it, and is none itself.
        after: The cell that had run last when it was pulled, 0 for none; None if it was not pulled.
    """

    holder: str
    index: int
    name: str
    path: str
    processes: tuple[int, ...]
    generation: int
    is_part: bool = False
    after: int | None = None


class Wanted(NamedTuple):
    """A region of an array, to be brought to the notebook.

    Attributes:
        info: The array.
        key: Its name.
        region: What of it.
        shard: Only from this shard, whose index the region is in; None for whoever has it.
    """

    info: ArrayInfo
    key: ArrayKey
    region: Region
    shard: ShardInfo | None = None


@dataclass(frozen=True, slots=True)
class ShardingInfo:
    """How an array is spread, as data.

    Attributes:
        text: What JAX prints for it.
        spec: The partition spec as text; None without a mesh.
        mesh: The mesh, or None.
        memory_kind: E.g. ``"device"``.
    """

    text: str
    spec: str | None
    mesh: MeshInfo | None
    memory_kind: str | None

    def __str__(self) -> str:
        return self.text


class GatheredShard:
    """One shard of a :class:`GatheredArray`.

    Attributes:
        device_id: ``Device.id`` of its holder.
        process_index: The process that owns the device.
        index: What it covers, as slices.
        replica_id: 0 for exactly one holder of each part.
    """

    def __init__(self, info: ShardInfo, array: GatheredArray) -> None:
        self._info = info
        self._array = array
        self.device_id = info.device_id
        self.process_index = info.process_index
        self.index = tuple(slice(start, stop) for start, stop in info.index)
        self.replica_id = info.replica_id

    @property
    def data(self) -> np.ndarray[Any, Any]:
        """The bytes of this very device, replica or not; each access fetches them."""
        array = self._array
        region = Region.whole(array.info.shape)[self.index]
        return array._reader.read([Wanted(array.info, array._key, region, self._info)])[0]

    def __repr__(self) -> str:
        box = ", ".join(f"{s.start}:{s.stop}" for s in self.index)
        return (
            f"<shard [{box}] on device {self.device_id} of process {self.process_index}, "
            f"replica {self.replica_id}>"
        )


class GatheredArray(NDArrayOperatorsMixin):
    """A global ``jax.Array`` as the notebook holds it.

    Its data stay on the processes until they are used. ``np.asarray(array)`` brings all of
    them, once; ``array[1000:1010]`` brings what it takes. Only one replica of each part
    travels, and no collective is issued, so it works while the group is out of step. NumPy's
    operators and functions take it like an array of NumPy's.

    The array is the one that was there when it was pulled: JAX's arrays never change. If the
    processes have dropped, deleted or donated it by the time that data are asked for, that is
    an error; what has been brought stays. The whole array, once here, is read-only, as
    ``np.asarray`` of a ``jax.Array`` is; ``np.array(array)`` is a copy to write to.

    Attributes:
        info: The array's description.
    """

    def __init__(
        self, info: ArrayInfo, key: ArrayKey, reader: Puller, region: Region | None = None
    ) -> None:
        self.info = info
        self._key = key
        self._reader = reader
        self._region = Region.whole(info.shape) if region is None else region
        self._data: np.ndarray[Any, Any] | None = None
        self._there = "deleted before it was pulled" if info.deleted else "data there until used"

    # ------------------------------------------------------------------ what it is

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in NumPy; that of PRNG keys has their words as its last dimension."""
        return self._region.result_shape + self.info.word_shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype in NumPy; ``uint32`` for PRNG keys."""
        return numpy_dtype(self.info.host_dtype)

    @property
    def ndim(self) -> int:
        """Number of dimensions in NumPy."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements in NumPy."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Size in the notebook's memory in bytes."""
        return self.size * self.itemsize

    @property
    def itemsize(self) -> int:
        """Size of an element in the notebook's memory in bytes."""
        return self.dtype.itemsize

    @property
    def sharding(self) -> ShardingInfo:
        """How the array on the processes is spread."""
        info = self.info
        return ShardingInfo(info.sharding, info.spec, info.mesh, info.memory_kind)

    @property
    def shards(self) -> tuple[GatheredShard, ...]:
        """All shards of the array on the processes, replicas too, in device order."""
        return tuple(GatheredShard(shard, self) for shard in self.info.shards)

    @property
    def is_here(self) -> bool:
        """Whether the data have been brought to the notebook."""
        return self._data is not None

    @property
    def is_gone(self) -> bool:
        """Whether its data have gone with the processes that had them, and are not here."""
        return not self.is_here and self._key.generation != self._reader.generation

    def __repr__(self) -> str:
        processes = sorted({shard.process_index for shard in self.info.shards})
        where = f"process {processes[0]}" if len(processes) == 1 else f"{len(processes)} processes"
        of = f" of {self._key.name}{self._region}" if self._key.name else ""
        how = f" {self.info.spec}" if self.info.spec else ""
        if not self._region.is_whole:  # the spec is that of the whole array
            of += f" ({self.info.dtype}[{', '.join(map(str, self.info.shape))}]{how})"
            how = ""
        here = "data here" if self.is_here else self._there
        shape = ", ".join(map(str, self._region.result_shape))
        suspect = f", {self.info.suspect}" if self.info.suspect else ""
        return f"<GatheredArray {self.info.dtype}[{shape}]{how}{of}, over {where}, {here}{suspect}>"

    # ------------------------------------------------------------------ its data

    def wanted(self) -> Wanted:
        """What has to be read for the data to be here."""
        return Wanted(self.info, self._key, self._region)

    def keep(self, data: np.ndarray[Any, Any]) -> None:
        """Takes the data that :meth:`wanted` names."""
        data.flags.writeable = False
        self._data = data

    def _whole(self) -> np.ndarray[Any, Any]:
        if self._data is None:
            self._there = "could not be read"  # unless it can
            self.keep(self._reader.read([self.wanted()])[0])
        assert self._data is not None
        return self._data

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        whole = self._whole()
        if dtype is not None and np.dtype(dtype) != whole.dtype:
            if copy is False:
                raise ValueError(f"{whole.dtype} cannot be seen as {dtype} without a copy")
            return whole.astype(dtype)
        return whole.copy() if copy else whole

    def __getitem__(self, index: Any) -> Any:
        if self._data is None:
            try:
                region = self._region[index]
            except (NotBasicIndexError, IndexError):
                # NumPy does it. If it has to refuse, it does so before anything moves.
                np.broadcast_to(np.False_, self.shape)[index]
            else:
                return self._reader.read([Wanted(self.info, self._key, region)])[0][()]
        return self._whole()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError(_READ_ONLY)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._whole())

    def __bool__(self) -> bool:
        return bool(self._whole())

    def __int__(self) -> int:
        return int(self._whole())

    def __float__(self) -> float:
        return float(self._whole())

    def __complex__(self) -> complex:
        return complex(self._whole())

    def __index__(self) -> int:
        return self._whole().__index__()

    def __round__(self, ndigits: int | None = None) -> Any:
        whole: Any = self._whole()
        return np.round(whole, ndigits or 0) if whole.ndim else round(whole[()], ndigits)

    def __format__(self, spec: str) -> str:
        return format(self._whole()[()], spec) if spec else str(self)

    def __contains__(self, value: Any) -> bool:
        return value in self._whole()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **settings: Any) -> Any:
        if any(isinstance(out, GatheredArray) for out in settings.get("out", ())):
            raise TypeError(_READ_ONLY)  # also `x += 1`
        if ufunc in (np.equal, np.not_equal) and any(x is None for x in inputs) and not settings:
            return np.full(self.shape, ufunc is np.not_equal)[()]  # no element is None
        arrays = [np.asarray(x) if isinstance(x, GatheredArray) else x for x in inputs]
        return getattr(ufunc, method)(*arrays, **settings)

    def __getattr__(self, name: str) -> Any:
        # `array.mean()`, `array.T` …: what NumPy's arrays have, and nothing that is private:
        # front ends probe for that, and would move the data.
        if name.startswith("_") or not hasattr(np.ndarray, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._whole(), name)

    def __reduce__(self) -> Any:
        return self._whole().__reduce__()
