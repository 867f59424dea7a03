"""Pushing: values and arrays from the notebook onto the processes."""

from __future__ import annotations

import io
import pickle
import sys
import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from jaxnb.arrays.blocks import is_spec
from jaxnb.arrays.blocks import normalize as normalize_spec
from jaxnb.arrays.gathered import GatheredArray, fits, numpy_dtype
from jaxnb.arrays.lost import NotMoved, PerProcess
from jaxnb.arrays.moving import INLINE_PARTS_BYTES, Move, Mover, request_for
from jaxnb.arrays.pulling import Group
from jaxnb.arrays.refusals import require_memory_for_push
from jaxnb.arrays.regions import view
from jaxnb.errors import JaxnbError, UsageError
from jaxnb.labels import processes_label, ranks_label
from jaxnb.model.arrays import ArrayLeaf, HostArray, Placed, PlaceRequest, Refused
from jaxnb.model.cells import CallRequest
from jaxnb.wire.asking import Channel
from jaxnb.wire.pickling import OutOfBand, adjacent, is_plain


class Pusher:
    """Sends values and arrays to the processes.

    Args:
        group: The session.
        mover: Moves the bytes.
    """

    def __init__(self, group: Group, mover: Mover) -> None:
        self._group = group
        self._mover = mover

    def push(
        self, values: Mapping[str, Any], spec: Any, mesh: str | None, ranks: Sequence[int]
    ) -> None:
        """Binds values to names on the processes; see :meth:`jaxnb.session.Session.push`."""
        place = spec is not None or mesh is not None
        if place and any(isinstance(value, PerProcess) for value in values.values()):
            raise UsageError(
                "Values that differ by process cannot be spread over a mesh: a global array is "
                "one. Nothing was moved. Push them without spec and mesh."
            )
        packages = _packages(values, ranks, place=place, spec=_plain_spec(spec), mesh=mesh)
        names = _listed(values)
        is_bound = threading.Event()
        try:
            self._send(packages, names, is_bound)
        except KeyboardInterrupt:
            if not is_bound.is_set():
                raise
            raise KeyboardInterrupt(
                f"Interrupted too late: {names} was pushed, and the variables on the processes "
                "have their new values. The group is ready."
            ) from None

    def _send(
        self, packages: Mapping[int, _Package], names: str, is_bound: threading.Event
    ) -> None:
        """Sends packages, all or nothing; sets ``is_bound`` once it is not undone any more."""
        first = next(iter(packages.values())).request
        end = partial(request_for, transfer=first.transfer)
        with self._group.channel() as channel:
            # A value is bound on all processes or, if one cannot make it, on none.
            try:
                placed = self._place(channel, packages, names)
                if first.data is None:
                    moves = _moves(packages, placed)
                    self._mover.write(channel, moves, names)
                    size = sum(move.exposure.nbytes for move in moves)
                    build = dict.fromkeys(packages, end("pushes.build", is_interruptible=True))
                    answers = _asked(channel, packages, build, size)
                    channel.require(answers, f"{names} was pushed")
                channel.check()
            except BaseException:
                channel.tell(dict.fromkeys(packages, end("pushes.undo")))
                raise
            is_bound.set()
            channel.tell(dict.fromkeys(packages, end("pushes.release")))

    def _place(
        self, channel: Channel, packages: Mapping[int, _Package], names: str
    ) -> dict[int, Placed]:
        # The pickle goes with the first message; what it leaves out of band comes later.
        pickled = sum(len(package.request.skeleton) for package in packages.values())
        require_memory_for_push(pickled, names)
        place = {
            i: request_for("pushes.place", request=each.request, is_interruptible=True)
            for i, each in packages.items()
        }
        answers = _asked(channel, packages, place)
        refused = [a for a in answers.values() if isinstance(a, Refused)]
        if refused:
            first = refused[0]
            where = f"process {first.process_index}"
            require_memory_for_push(first.needed, names, where, first.available)
            raise UsageError(first.reason)
        channel.require(answers, f"{names} was pushed")
        _require_one_layout(answers)
        _require_fitting_numbers(next(iter(packages.values())), next(iter(answers.values())))
        needed = sum(
            room.nbytes
            for answer in answers.values()
            for room in (*answer.out_of_band, *(room for _, _, room in answer.blocks))
        )
        require_memory_for_push(needed, names)
        return answers


@dataclass(frozen=True, slots=True)
class _Package:
    """A push, ready to go.

    Attributes:
        request: What is asked of the processes first.
        arrays: What becomes arrays of JAX.
        buffers: What the pickle leaves out of band.
        is_plain: The processes run no code of the user's to make it.
    """

    request: PlaceRequest
    arrays: tuple[np.ndarray[Any, Any], ...]
    buffers: tuple[np.ndarray[Any, Any], ...]
    is_plain: bool


def _asked(
    channel: Channel,
    packages: Mapping[int, _Package],
    requests: Mapping[int, CallRequest],
    nbytes: int = 0,
) -> dict[int, Any]:
    """Asks processes, together where code of the user's may compute over several of them."""
    is_plain = all(package.is_plain for package in packages.values())
    ask = channel.ask if is_plain else channel.ask_together
    return ask(requests, nbytes)


class _Pickler(pickle.Pickler):
    """Pickles what is pushed, its arrays of JAX as NumPy.

    Args:
        file: Where to write.
        place: Leave arrays out, to become arrays of JAX.
    """

    def __init__(self, file: Any, place: bool) -> None:
        self.out_of_band = OutOfBand()
        super().__init__(file, protocol=5, buffer_callback=self.out_of_band)
        self._place = place
        self.arrays: list[np.ndarray[Any, Any]] = []

    def reducer_override(self, value: Any) -> Any:
        """Tells how to pickle arrays; pickle asks for each object that is not plain."""
        if isinstance(value, GatheredArray) or _is_of_jax(value):
            _require_no_keys(value)
            return self._of_array(np.asarray(value))
        if isinstance(value, NotMoved):
            raise UsageError(
                f"It holds {value!r}, which only stands for something on the processes: to push it "
                "would put that in the other's place. Nothing was moved. Take it out first, or "
                "change the value where it is, in a `%%spmd` cell."
            )
        if isinstance(value, np.ndarray) and self._place:
            if isinstance(value, np.ma.MaskedArray):
                raise UsageError(
                    "A masked array would lose its mask as a jax.Array. Nothing was moved. Type "
                    "`array.filled(...)` first."
                )
            return self._of_array(value)
        return adjacent(value)

    def _of_array(self, array: np.ndarray[Any, Any]) -> Any:
        if not self._place:
            return array.__reduce_ex__(5)
        if not _is_numeric(array.dtype):
            raise UsageError(
                f"An array of dtype {array.dtype} cannot become a jax.Array. Nothing was moved. "
                "Push it without spec and mesh: then it stays a NumPy array."
            )
        self.arrays.append(array)
        return ArrayLeaf, (len(self.arrays) - 1,)


def _is_numeric(dtype: np.dtype[Any]) -> bool:
    """Whether JAX has arrays of a dtype, be its bytes in another order; not of long double."""
    is_of_ml_dtypes = dtype.isbuiltin == 2
    return is_of_ml_dtypes or (dtype.kind in "biufc" and dtype.char not in "gG")


def _is_of_jax(value: Any) -> bool:
    jax = sys.modules.get("jax")  # a notebook that has not imported it has no such array
    return jax is not None and isinstance(value, jax.Array)


def _require_no_keys(value: Any) -> None:
    """Refuses PRNG keys: NumPy has none, and their words alone would not be keys there."""
    dtype = str(value.info.dtype if isinstance(value, GatheredArray) else value.dtype)
    if dtype.startswith("key<"):
        raise UsageError(
            f"PRNG keys ({dtype}) cannot be pushed as keys. Nothing was moved. Push their words "
            "(`np.asarray(keys)` of a pulled array, else `np.asarray(jax.random.key_data(keys))`), "
            "then type `%spmd keys = jax.random.wrap_key_data(words)`, with the `impl=` of the "
            "keys if it is not the default."
        )


def _packages(
    values: Mapping[str, Any], ranks: Sequence[int], **settings: Any
) -> dict[int, _Package]:
    """Pickles what each process is to have: the same, or its own of what differs by process."""
    transfer = uuid.uuid4().hex
    own = {name: v for name, v in values.items() if isinstance(v, PerProcess)}
    if not own:
        return dict.fromkeys(ranks, _package(values, transfer, **settings))
    for name, value in own.items():
        if missing := sorted(set(ranks) - set(value)):
            raise UsageError(
                f"`{name}` has values for {processes_label(value)} and none for "
                f"{processes_label(missing)}. Nothing was moved. Push it to these alone: `--ranks "
                f"{ranks_label(value)}`, in Python `ranks={sorted(value)}`."
            )
    packages = {
        i: _package(
            {name: v[i] if name in own else v for name, v in values.items()}, transfer, **settings
        )
        for i in ranks
    }
    if all(each.request.data is not None for each in packages.values()):
        return packages
    return {
        i: replace(each, request=replace(each.request, data=None)) for i, each in packages.items()
    }


def _package(
    values: Mapping[str, Any], transfer: str, *, place: bool, spec: Any, mesh: str | None
) -> _Package:
    file = io.BytesIO()
    pickler = _Pickler(file, place)
    try:
        pickler.dump(dict(values))
    except JaxnbError:
        raise
    except Exception as error:  # a user's __reduce__ may raise anything
        names = [name for name, value in values.items() if not _can_be_pickled(value, place)]
        raise UsageError(
            f"{_listed(names or values)} cannot be pickled "
            f"({type(error).__name__}: {error}). Nothing was "
            "moved. Push plain data (arrays, numbers, text, containers of them), or make the "
            "object in a `%%spmd` cell."
        ) from error
    arrays, buffers = tuple(pickler.arrays), tuple(pickler.out_of_band.buffers)
    is_little = sum(each.nbytes for each in (*arrays, *buffers)) <= INLINE_PARTS_BYTES
    request = PlaceRequest(
        transfer=transfer,
        skeleton=file.getvalue(),
        arrays=tuple(HostArray(a.shape, a.dtype.name) for a in arrays),
        buffers=tuple(buffer.nbytes for buffer in buffers),
        spec=spec,
        mesh=mesh,
        place=place,
        data=(tuple(map(np.asarray, arrays)), buffers) if is_little else None,
    )
    return _Package(request, arrays, buffers, all(map(_is_plain, values.values())))


def _is_plain(value: Any) -> bool:
    return is_plain(value, GatheredArray)


def _can_be_pickled(value: Any, place: bool) -> bool:
    try:
        _Pickler(io.BytesIO(), place).dump(value)
    except Exception:  # as in _package, which tells of the first
        return False
    return True


def _plain_spec(spec: Any) -> Any:
    """Returns a spec, or a container of specs, as plain data."""
    if spec is None:
        return None
    if is_spec(spec):
        return normalize_spec(spec)
    if isinstance(spec, Mapping):
        return {key: _plain_spec(part) for key, part in spec.items()}
    if isinstance(spec, list):
        return [_plain_spec(part) for part in spec]
    return normalize_spec(spec)  # raises, and says what a spec is


def _moves(packages: Mapping[int, _Package], placed: Mapping[int, Placed]) -> list[Move]:
    moves = []
    for index, answer in placed.items():
        package = packages[index]
        transfer = package.request.transfer
        for buffer, room in zip(package.buffers, answer.out_of_band, strict=True):
            moves.append(Move(index, answer.access, transfer, room, buffer))
        for k, part, room in answer.blocks:
            box = view(package.arrays[k], (slice(start, stop) for start, stop in part))
            dtype = numpy_dtype(answer.dtypes[k])
            moves.append(Move(index, answer.access, transfer, room, box, dtype))
    return moves


def _require_one_layout(answers: Mapping[int, Placed]) -> None:
    layouts: dict[tuple[str, ...], list[int]] = {}
    for index, answer in answers.items():
        layouts.setdefault(answer.layouts, []).append(index)
    if len(layouts) > 1:
        parts = [f"{processes_label(who)}: {layout[0]}" for layout, who in layouts.items()]
        raise UsageError(
            f"The processes' meshes differ ({'; '.join(parts)}), so they would not make one "
            "array. Nothing was moved. Make the mesh by the same code on all processes."
        )


def _require_fitting_numbers(package: _Package, placed: Placed) -> None:
    """Refuses numbers that would be others: JAX has 32 bits unless told otherwise."""
    for array, name in zip(package.arrays, placed.dtypes, strict=True):
        if not fits(array, numpy_dtype(name)):
            raise UsageError(
                f"Values of dtype {array.dtype} do not fit in {name}, which they become on the "
                "processes, since jax_enable_x64 is off there. Nothing was moved. Type "
                "`%spmd jax.config.update('jax_enable_x64', True)` before the processes compute "
                "anything, or convert the array."
            )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
