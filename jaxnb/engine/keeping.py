"""What belongs to a backend, copied to host memory, and made again on the next one's devices.

The old arrays stay where they are until the new ones take their places: whoever looks at a
user's object meanwhile, and whatever rebuilds one, sees a ``jax.Array``, never a stand-in.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental.layout import Format
from jax.sharding import Mesh, NamedSharding, Sharding, SingleDeviceSharding

from jaxnb.engine import _jax_internals, settling, shards
from jaxnb.engine._jax_internals import exact_arrays as exact
from jaxnb.engine.layouts import dtype_facts, shards_of, unreduced_axes
from jaxnb.engine.lost import MAKE_AGAIN, LostArray
from jaxnb.engine.origins import ORIGINS

Devices = Mapping[int, jax.Device]


def type_text(array: jax.Array) -> str:
    """Returns an array's type: ``"float32[4, 2]"``."""
    return f"{dtype_facts(array.dtype).name}{list(array.shape)}"


def is_array(value: Any) -> bool:
    """Whether a value is an array with buffers of its own.

    PRNG keys and refs are not: they hold an array, which is replaced inside them.
    """
    return _is_concrete_array(value) and not is_of_keys(value)


def is_of_keys(value: Any) -> bool:
    """Whether a value is an array of PRNG keys, which holds an array of their words."""
    return _is_concrete_array(value) and jax.numpy.issubdtype(value.dtype, jax.dtypes.extended)


def _is_concrete_array(value: Any) -> bool:
    kind = type(value)
    return issubclass(kind, jax.Array) and not issubclass(kind, jax.core.Tracer)


def is_of_devices(value: Any) -> bool:
    """Whether a value is of no use once its backend is gone."""
    kind = type(value)
    if issubclass(kind, Mesh):
        return not value.empty
    if issubclass(kind, Sharding):
        return _is_concrete(value)
    if issubclass(kind, jax.Device | jax.stages.Compiled | jax.stages.Lowered):
        return True
    client = exact.coordination_client_type()
    return (client is not None and kind is client) or is_array(value)


def _is_concrete(sharding: Any) -> bool:
    if isinstance(sharding, NamedSharding):
        return isinstance(sharding.mesh, Mesh) and not sharding.mesh.empty
    return type(sharding).__module__.startswith("jax")


def is_known(sharding: Any) -> bool:
    """Whether a sharding is of a kind that can be given to another process."""
    return isinstance(sharding, SingleDeviceSharding) or (
        isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh)
    )


def device_of(thing: Any) -> jax.Device | None:
    """Returns one of the devices that something is on; None if it does not tell."""
    try:
        if isinstance(thing, jax.Device):
            return thing
        if isinstance(thing, Mesh):
            found: jax.Device = thing.devices.flat[0]
            return found
        sharding = thing.sharding if isinstance(thing, jax.Array) else thing
        return next(iter(sharding.device_set)) if isinstance(sharding, Sharding) else None
    except Exception:  # a sharding that knows its devices within a computation only
        return None


def lost_with(array: jax.Array, dead: frozenset[int]) -> bool:
    """Whether dead processes had shards of an array that nobody else has."""
    return not array.is_deleted() and loses_shards(array.sharding, tuple(array.shape), dead)


def loses_shards(sharding: Any, shape: tuple[int, ...], dead: frozenset[int]) -> bool:
    """The same of an array of a sharding and a shape, whether it is there or not."""
    if not dead or not is_known(sharding) or sharding.is_fully_addressable:
        return False
    found = shards_of(sharding, shape)
    gone = [shard for shard in found if shard.process_index in dead]
    if unreduced_axes(sharding):  # each device has a summand of its own
        return bool(gone)
    held = {shard.index for shard in found if shard.process_index not in dead}
    return any(g.index not in held and all(b > a for a, b in g.index) for g in gone)


def lost_text(
    sharding: Any, shape: tuple[int, ...], dtype: str, dead: Collection[int], name: str = ""
) -> str:
    """Returns what has become of an array that lost shards with processes, as a clause."""
    had = {shard.process_index for shard in shards_of(sharding, shape)}
    lost = ", ".join(map(str, sorted(had & set(dead))))
    processes = "process" if len(had & set(dead)) == 1 else "processes"
    kind = f"{dtype}{list(shape)}"
    return (
        f"`{name or kind}` ({kind}) lost the shards of {processes} {lost}, which "
        "died and of which there was no replica"
    )


class Again:
    """Returns what takes the place of something on the new devices; the same one each time.

    Args:
        devices: The new devices, by their numbers, which are those of the old ones.
    """

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        # The old one is kept too: else its id could become another object's.
        self._made: dict[int, tuple[Any, Any]] = {}

    def __call__(self, thing: Any) -> Any:
        """Returns the new device, mesh, sharding or connection; other things are returned as is."""
        kind = type(thing)
        if not issubclass(kind, Mesh | Sharding | jax.Device):
            client = exact.coordination_client_type()
            return _jax_internals.coordination_client() if kind is client else thing
        if id(thing) not in self._made:
            self._made[id(thing)] = thing, self._make(thing)
        return self._made[id(thing)][1]

    def device(self, number: int) -> jax.Device:
        """Returns the device of a number."""
        return self._devices[number]

    def forget_old(self) -> None:
        """Lets the old things go that are known only here; they can be asked for no more."""
        self._made.clear()

    def _make(self, thing: Any) -> Any:
        if isinstance(thing, jax.Device):
            old: Any = thing
            return self._devices[old.id]
        if isinstance(thing, Mesh):
            grid = np.empty(thing.devices.size, dtype=object)
            grid[:] = [self(device) for device in thing.devices.flat]
            shaped = grid.reshape(thing.devices.shape)
            return Mesh(shaped, thing.axis_names, axis_types=thing.axis_types)
        if not is_of_devices(thing):
            return thing
        # A sharding says of what it is made: its mesh or devices, spec, memory kind and the rest.
        make, arguments, *_ = thing.__reduce__()
        return make(*map(self._argument, arguments))

    def _argument(self, value: Any) -> Any:
        if type(value).__name__ == "DeviceList":
            return type(value)(tuple(self(device) for device in value))
        if isinstance(value, tuple):
            return tuple(map(self, value))
        return self(value)


class Kept:
    """Something of a backend, apart from it."""

    def restore(self, again: Again) -> Any:
        """Returns what takes its place."""
        raise NotImplementedError


class KeptPlain(Kept):
    """A mesh, a sharding, a device, or the connection to the coordination service."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing

    def restore(self, again: Again) -> Any:
        """Returns the same on the new devices."""
        return again(self._thing)


class Unkept(Kept):
    """Something that cannot be kept: an array whose computation was broken off, say.

    Args:
        what: What it is, as the beginning of a sentence.
        why: Why it is lost.

    Attributes:
        name: The path under which the user has it, which its error says; empty if there is none.
    """

    def __init__(self, what: str, why: str) -> None:
        self.what, self.why, self.name = what, why, ""

    @property
    def text(self) -> str:
        """What it is, and why it is lost."""
        return f"{self.what} ({self.why})"

    def restore(self, again: Again) -> LostArray:
        """Returns what raises at each use."""
        what = f"`{self.name}` ({self.what})" if self.name else self.what
        sentence = f"{what} was made before the group was reconnected, and is gone: {self.why}"
        return LostArray(sentence, advice=MAKE_AGAIN)


class LostShards(Kept):
    """An array that lost shards with a process; the others' are kept to look at.

    Args:
        array: The array.
        how: What is kept of it, or of the array of its words if it is one of keys; None of neither.
        name: Where it is, as a path; empty if it is under no name.
        dead: The processes that have died.
    """

    def __init__(self, array: jax.Array, how: Kept | None, name: str, dead: frozenset[int]) -> None:
        self.name = name or type_text(array)
        shape = tuple(array.shape)
        dtype = dtype_facts(array.dtype).name
        self._what = lost_text(array.sharding, shape, dtype, dead, self.name)
        self._shards: tuple[Any, ...] = ()
        if isinstance(how, Unkept):
            self._what += f"; {how.why}"
        elif isinstance(how, KeptArray):
            # Words have one dimension more.
            self._shards = tuple((index[: len(shape)], part) for index, part in how.parts())

    def restore(self, again: Again) -> LostArray:
        """Returns what raises at each use."""
        return LostArray(self._what, self._shards)


class KeptArray(Kept):
    """An array, its shards of this process copied to host memory.

    Copied, as the host's view of a CPU array would keep the old backend and its threads.

    Attributes:
        views: The arrays of single shards that JAX keeps with it, by id, and their devices.
    """

    def __init__(self, array: jax.Array) -> None:
        self._sharding, self._committed = array.sharding, array.committed
        self._aval: Any = array.aval
        self._attributes = added_attributes(array)
        self._origin = ORIGINS.of(array)
        # What JAX has worked out is not up to date in the array of a ref that was written to.
        for name in vars(array).keys() - self._attributes.keys():
            del vars(array)[name]
        self._layout: Any = None if array.is_deleted() else special_layout(array)
        self._data: dict[int, Any] | None = None
        self.views: dict[int, int] = {}
        if not array.is_deleted():
            shards_here = array.addressable_shards
            self.views = {id(shard.data): shard.device.id for shard in shards_here}
            self._data = {s.device.id: np.array(shards.host_view(s.data)) for s in shards_here}
        self.nbytes = sum(part.nbytes for part in (self._data or {}).values())
        self.made: Any = None

    @property
    def sharding(self) -> Any:
        """Its sharding, on the old devices."""
        return self._sharding

    @property
    def shape(self) -> tuple[int, ...]:
        """The whole array's."""
        return tuple(self._aval.shape)

    def parts(self) -> tuple[Any, ...]:
        """Returns what this process has: the slices of the whole array, and the elements."""
        indices: Any = self._sharding.addressable_devices_indices_map(self.shape)
        return tuple(
            (index, (self._data or {})[device.id])
            for device, index in indices.items()
            if device.id in (self._data or {})
        )

    @property
    def is_deleted(self) -> bool:
        """Whether the array had been deleted, or donated to a computation."""
        return self._data is None

    def restore(self, again: Again) -> Any:
        """Returns the array: abstract value, layout and attributes are what they were.

        The copies are dropped, so that memory has the elements twice at most.
        """
        sharding = again(self._sharding)
        if self._data is None:
            devices = sharding.addressable_devices_indices_map(self._aval.shape)  # in order
            empty = np.empty((0,), self._aval.dtype)
            parts = [_put(empty, device, sharding.memory_kind) for device in devices]
            made: Any = exact.make_deleted_array(
                self._aval, sharding, parts, committed=self._committed
            )
            if made is None:
                made = LostArray("This array was deleted", advice=MAKE_AGAIN)
        else:
            made = restored(
                self._aval,
                sharding,
                {again.device(i): part for i, part in self._data.items()},
                committed=self._committed,
                layout=self._layout,
            )
            vars(made).update(self._attributes)
            ORIGINS.carry(self._origin, made)
            self._data = {}
        self.made = made
        return made


class KeptView(Kept):
    """The array of one shard that JAX keeps with an array: ``x.addressable_data(0)``.

    Args:
        whole: The array.
        device_id: The device of the shard.
        attributes: The view's own attributes.
    """

    def __init__(self, whole: KeptArray, device_id: int, attributes: dict[str, Any]) -> None:
        self.whole, self._device_id, self._attributes = whole, device_id, attributes

    def restore(self, again: Again) -> Any:
        """Returns the new array's shard; the whole must have been restored."""
        found = shards.shard_of(self.whole.made, self._device_id)
        vars(found).update(self._attributes)
        return found


def put_away(value: Any) -> Kept:
    """Returns what something of a backend is made again from.

    Raises:
        MemoryError: There is no room for the copy of an array.
    """
    if isinstance(value, jax.Array):
        if settling.is_pending(value):
            return Unkept(type_text(value), "its computation did not end")
        try:
            return KeptArray(value)
        except MemoryError:
            raise
        except Exception:  # what JAX raised in the computation that was to give it
            return Unkept(type_text(value), "its computation was broken off")
    if isinstance(value, jax.stages.Compiled):
        return Unkept("What lower(...).compile() gave", "compile it again")
    if isinstance(value, jax.stages.Lowered):
        return Unkept("What lower(...) gave", "lower it again")
    return KeptPlain(value)


def restored(
    aval: Any, sharding: Any, data: Mapping[Any, Any], *, committed: bool, layout: Any = None
) -> jax.Array:
    """Makes an array of host data, with no word to other processes.

    Every array that a recovery restores on a process that was there before is made here.

    Args:
        aval: Its abstract value.
        sharding: Its sharding, on devices that there are.
        data: This process's shards on the host, by device.
        committed: Whether it is bound to its devices.
        layout: How its elements lie in memory; None for JAX's default.
    """
    parts = [_put(part, device, sharding.memory_kind, layout) for device, part in data.items()]
    return exact.make_array(aval, sharding, parts, committed=committed)


def _put(part: Any, device: Any, memory_kind: str | None, layout: Any = None) -> jax.Array:
    place: Any = SingleDeviceSharding(device, memory_kind=memory_kind)
    put: jax.Array = jax.device_put(part, place if layout is None else Format(layout, place))
    return put


def special_layout(array: jax.Array) -> Any:
    """Returns an array's layout if it is not row-major; None if it is, or JAX does not tell."""
    if array.ndim < 2:  # to ask takes as long as all the rest of copying a small one
        return None
    try:
        concrete: Any = array
        layout: Any = concrete.format.layout
    except Exception:  # an array without shards on this process
        return None
    if layout is None or tuple(layout.major_to_minor) == tuple(range(array.ndim)):
        return None
    return layout


def added_attributes(array: jax.Array) -> dict[str, Any]:
    """Returns the attributes of an array that are not what JAX has worked out and keeps there."""
    kind = type(array)
    return {name: value for name, value in vars(array).items() if not hasattr(kind, name)}


def key_impl(array: jax.Array) -> Any:
    """Returns which generator an array of PRNG keys is for; None for other arrays."""
    is_key = jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key)
    return jax.random.key_impl(array) if is_key else None


def uncommitted(part: Any, sharding: Any, impl: Any, *, weak: bool = False) -> jax.Array:
    """Returns an array that goes along to whatever devices it is used on."""
    with jax.default_device(next(iter(sharding.device_set))):
        array = jax.device_put(part)
    return exact.weakly_typed(array, weak) if impl is None else _as_keys(array, impl)


def assembled(
    shape: tuple[int, ...],
    dtype: Any,
    sharding: Any,
    data: Mapping[int, Any],
    impl: Any,
    *,
    weak: bool = False,
) -> jax.Array:
    """Returns an array made of this process's shards, with no word to other processes.

    Every array that a process that is new gets from the others is made here, but for
    uncommitted ones.

    Args:
        shape: The whole array's.
        dtype: Its dtype.
        sharding: Its sharding, on devices that there are.
        data: This process's shards on the host, by device id.
        impl: See :func:`key_impl`.
        weak: Whether its type is weak.
    """
    devices = {device.id: device for device in sharding.addressable_devices}
    parts = [_put(part, devices[i], sharding.memory_kind) for i, part in data.items()]
    if impl is not None:
        parts = [_as_keys(part, impl) for part in parts]
    array = jax.make_array_from_single_device_arrays(shape, sharding, parts, dtype=dtype)
    return array if impl is not None else exact.weakly_typed(array, weak)


def _as_keys(words: jax.Array, impl: Any) -> jax.Array:
    keys: jax.Array = jax.random.wrap_key_data(words, impl=impl)
    return keys
