"""Pulling: values and arrays from the processes into the notebook."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from jaxnb.arrays import refusals
from jaxnb.arrays.blocks import differing, merged
from jaxnb.arrays.gathered import ArrayKey, GatheredArray, Wanted
from jaxnb.arrays.lost import Gather, PerProcess, unpickle
from jaxnb.arrays.moving import Move, Mover, request_for
from jaxnb.arrays.packed import (
    agree,
    alike,
    come,
    expose_requests,
    is_one_array,
    left_text,
    moves_of,
    of_different_arrays,
    plans_of,
)
from jaxnb.arrays.regions import Path, Region, parse_path
from jaxnb.callers import levels_to_caller
from jaxnb.errors import ArrayGoneError, DivergenceWarning, JaxnbError, UsageError
from jaxnb.labels import capitalized
from jaxnb.lockstep.provenance import pull_text
from jaxnb.model.arrays import ArrayInfo, Exposed, NotFound, Packed, PackRequest
from jaxnb.wire.asking import Channel
from jaxnb.wire.messages import Unanswered

EAGER_BYTES = 1 << 20
"""If the arrays of a pull are together smaller than this, they come with their descriptions."""

EAGER_NOW_BYTES = 64 << 20
"""Those of a pull that is not lazy, if they are smaller than this. Of larger ones it is known first
whether they fit into memory."""


class ReplicasDifferWarning(UserWarning):
    """JAX takes the replicas of an array to be equal, and they are not."""


class NotMovedWarning(UserWarning):
    """Functions in what was pulled, or objects of a cell's classes, stayed on the processes."""


class OriginsDifferWarning(UserWarning):
    """One name holds parts of different arrays on several processes."""


class Group(Protocol):
    """What pulling and pushing need of a session."""

    @property
    def generation(self) -> int:
        """How often the group has been restarted."""

    @property
    def last_cell(self) -> int:
        """The number of the cell that has run last; 0 before the first."""

    def channel(self) -> AbstractContextManager[Channel]:
        """Waits until no cell runs, and keeps others out while the channel is used."""


@dataclass(frozen=True, slots=True)
class CellKey:
    """Which cell a value is of.

    Attributes:
        cell: The cell's number.
        generation: The group's generation when the cell ran.
    """

    cell: int
    generation: int


class Puller:
    """Brings values and arrays to the notebook; what a :class:`GatheredArray` reads from.

    Args:
        group: The session.
        mover: Moves the bytes.
    """

    def __init__(self, group: Group, mover: Mover) -> None:
        self._group = group
        self._mover = mover

    # ------------------------------------------------------------------ values

    def pull(self, text: str, ranks: Sequence[int] | None, *, lazy: bool) -> Any:
        """Returns what a path names; see :meth:`jaxnb.session.Session.pull`."""
        path = parse_path(text)
        with self._group.channel() as channel:
            packed = self._pack(channel, path, ranks, EAGER_BYTES if lazy else EAGER_NOW_BYTES)
            value, arrays = self._values(channel, path, packed)
            if not lazy:
                missing = [array for array in arrays if not array.is_here]
                data = self._read(channel, [array.wanted() for array in missing])
                for array, found in zip(missing, data, strict=True):
                    array.keep(found)
        apart = pull_text(path.text, of_different_arrays(path.text, packed))
        for array in arrays:
            if said := refusals.replicas_text(array._key, array.info):
                warnings.warn(said, ReplicasDifferWarning, stacklevel=levels_to_caller())
            elif array.info.suspect and not apart:
                said = f"`{path.text}` {array.info.suspect}."
                warnings.warn(said, DivergenceWarning, stacklevel=levels_to_caller())
        if said := left_text(path.text, packed):
            warnings.warn(said, NotMovedWarning, stacklevel=levels_to_caller())
        if apart:
            warnings.warn(apart, OriginsDifferWarning, stacklevel=levels_to_caller())
        return value

    def cell_value(
        self, index: int, request: PackRequest, key: CellKey, gather: Gather | None
    ) -> Any:
        """Returns the value of a cell that was too large to travel with its result.

        Args:
            index: The process that has it.
            request: What to ask it for.
            key: Which cell it was.
            gather: Makes the arrays in it that stayed on the processes.
        """
        name = f"The value of cell [{key.cell}] on process {index}"
        with self._group.channel() as channel:
            self._require_generation(key.generation, name)
            answer = channel.ask_together(
                {index: request_for("pulls.pack", request=request)}, nbytes=1 << 30
            )[index]
            if isinstance(answer, Unanswered):
                raise JaxnbError(f"{name} could not be fetched: the process {answer.reason}.")
            try:
                return self._read_value(
                    channel,
                    answer,
                    f"the value of cell [{key.cell}]",
                    lambda k: gather(k, answer.arrays[k]) if gather else answer.arrays[k],
                )
            finally:
                channel.tell({index: request_for("pushes.release", transfer=request.transfer)})

    def gather(
        self, request_id: str, key: CellKey, processes: Sequence[int], index: int, info: ArrayInfo
    ) -> GatheredArray:
        """Returns an array of a cell's value, its data still on the processes."""
        name = f"the value of cell [{key.cell}]"
        named = ArrayKey(request_id, index, name, "", tuple(processes), key.generation)
        return GatheredArray(info, named, self)

    def _pack(
        self, channel: Channel, path: Path, ranks: Sequence[int] | None, eager_bytes: int
    ) -> dict[int, Packed]:
        """Asks the processes what the path names.

        Without ``ranks`` all living processes are asked: data can be rescued from what is left of
        a group. Those that are in a cell are asked too, and refused with what they are doing.
        """
        channel.require_living(f"`{path.text}` was pulled")
        asked = sorted({*channel.able, *channel.in_cells}) if ranks is None else list(ranks)
        wanted = PackRequest(
            transfer=uuid.uuid4().hex,
            path=path.text,
            eager_bytes=eager_bytes,
            inline_bytes=self._mover.inline_bytes,
            only_plain=True,
        )
        release = request_for("pushes.release", transfer=wanted.transfer)
        request = request_for("pulls.pack", request=wanted, is_interruptible=True)
        try:
            answers = channel.ask(dict.fromkeys(asked, request), nbytes=1 << 30)
            if None in answers.values():  # code of the user's may compute over all of them
                channel.tell(dict.fromkeys(asked, release))
                request = request_for("pulls.pack", request=replace(wanted, only_plain=False))
                answers = channel.ask_together(dict.fromkeys(asked, request), nbytes=1 << 30)
            self._require_packed(channel, path, answers)
        except BaseException:
            channel.tell(dict.fromkeys(asked, release))
            raise
        return answers

    def _require_packed(self, channel: Channel, path: Path, answers: Mapping[int, Any]) -> None:
        if any(isinstance(answer, NotFound) for answer in answers.values()):
            raise refusals.missing_error(path, answers)
        for index, answer in answers.items():
            if isinstance(answer, Unanswered) and answer.error is not None:
                raise refusals.unpacked_error(path, index, answer.error)
        channel.require(answers, f"`{path.text}` was pulled")

    def _values(
        self, channel: Channel, path: Path, packed: Mapping[int, Packed]
    ) -> tuple[Any, list[GatheredArray]]:
        """Makes the value, or the values by process, and the list of the arrays in them."""
        arrays: list[GatheredArray] = []
        try:
            if agree(packed.values()):
                return self._agreed(channel, path, packed, arrays), arrays
            refusals.require_one_layout(
                path.without(next(iter(packed.values())).subscripts), packed
            )
            found: dict[int, Any] = {}
            for those in alike(packed):
                value = self._agreed(channel, path, {i: packed[i] for i in those}, arrays)
                found |= dict.fromkeys(those, value)
            return PerProcess(sorted(found.items())), arrays
        finally:
            channel.tell(
                {
                    i: request_for("pushes.release", transfer=a.transfer)
                    for i, a in packed.items()
                    if a.is_open
                }
            )

    def _agreed(
        self,
        channel: Channel,
        path: Path,
        packed: Mapping[int, Packed],
        arrays: list[GatheredArray],
    ) -> Any:
        """Makes a value that processes agree on; its non-array parts come from one of them."""
        first = next(iter(packed.values()))
        # Only a path that names an array itself keeps subscripts; check them before anything moves.
        region = (
            _region(first.arrays[0].shape, path, first.subscripts) if first.subscripts else None
        )

        name = path.without(first.subscripts)

        # Arrays that lie alike have one description.
        joined: dict[tuple[int, ...], tuple[ArrayInfo, Region]] = {}

        def array(index: int) -> GatheredArray:
            described = [p.arrays[index] for p in packed.values()]
            ids = tuple(map(id, described))
            if ids not in joined:
                joined[ids] = merged(described), region or Region.whole(described[0].shape)
            info, taken = joined[ids]
            holders = tuple(packed)
            if info.fully_addressable and not is_one_array(packed.values(), index):
                # Each process has an array of its own. Their bytes are equal, but shards of several
                # arrays are no array: take one process's, and one whose replicas differ before
                # others, so that the pull warns of it.
                owner = next((p for p in packed.values() if differing(p.arrays[index])), first)
                info, holders = owner.arrays[index], (owner.process_index,)
            key = ArrayKey(
                holder=first.transfer,
                index=index,
                name=name,
                path=name,
                processes=holders,
                generation=self._group.generation,
                is_part=not first.is_array,
                after=self._group.last_cell,
            )
            return GatheredArray(info, key, self, taken)

        made = [array(k) for k in range(len(first.arrays))]
        arrays += made
        # Filled before: to unpickle the containing object may read them.
        self._fill(channel, packed, made, f"`{path.text}`")
        return self._read_value(channel, first, f"`{path.text}`", made.__getitem__)

    def _fill(
        self,
        channel: Channel,
        packed: Mapping[int, Packed],
        arrays: Sequence[GatheredArray],
        name: str,
    ) -> None:
        """Gives arrays the data that came with the answers."""
        those = come(packed, arrays)
        plans = [plan for _, plan in those]
        refusals.require_memory_for_pull(sum(plan.nbytes for plan in plans), name)
        targets = [plan.allocate() for plan in plans]
        self._mover.read(channel, moves_of(plans, targets, packed), name)
        for (array, plan), target in zip(those, targets, strict=True):
            array.keep(plan.finish(target))

    def _read_value(
        self, channel: Channel, packed: Packed, name: str, array: Callable[[int], Any]
    ) -> Any:
        """Reads a process's value: what its pickle leaves out of band, then the pickle.

        Args:
            channel: The channel.
            packed: The value.
            name: What to call it in the middle of a sentence.
            array: Returns the array for an index, where the pickle leaves one out.
        """
        size = sum(exposure.nbytes for exposure in packed.buffers)
        refusals.require_memory_for_pull(size, name)
        buffers = [np.empty(exposure.nbytes, np.uint8) for exposure in packed.buffers]
        moves = [
            Move(packed.process_index, packed.access, packed.transfer, exposure, buffer)
            for exposure, buffer in zip(packed.buffers, buffers, strict=True)
        ]
        self._mover.read(channel, moves, name)
        try:
            return unpickle(packed.skeleton, buffers, array)
        except JaxnbError:  # raised by a pull that a class made while being unpickled
            raise
        except Exception as error:  # a class or a package that is missing here
            raise JaxnbError(
                f"{capitalized(name)} ({packed.type_name}) on process {packed.process_index} "
                f"cannot be read in the notebook: {type(error).__name__}: {error}. Its classes "
                "must be importable here too. It is unchanged there."
            ) from error

    # ------------------------------------------------------------------ arrays

    @property
    def generation(self) -> int:
        """How often the group has been restarted."""
        return self._group.generation

    def read(self, wanted: Sequence[Wanted]) -> list[np.ndarray[Any, Any]]:
        """Returns data of arrays, in order."""
        with self._group.channel() as channel:
            for each in wanted:
                self._require_generation(each.key.generation, refusals.whose(each.key))
            return self._read(channel, wanted)

    def _read(self, channel: Channel, wanted: Sequence[Wanted]) -> list[np.ndarray[Any, Any]]:
        if not wanted:
            return []
        refusals.require_not_deleted(wanted)
        able = set(channel.able)
        plans = plans_of(wanted, able)
        for each in plans:
            if each.lost:
                raise JaxnbError(refusals.lost_text(each.wanted, each.lost, able, channel.in_cells))
        name = ", ".join(dict.fromkeys(refusals.whose(each.key) for each in wanted))
        nbytes = sum(plan.nbytes for plan in plans)
        refusals.require_memory_for_pull(nbytes, name)
        transfer = uuid.uuid4().hex
        requests = expose_requests(transfer, plans, self._mover.inline_bytes)
        answers: dict[int, Any] = {}
        try:
            answers = channel.ask(requests, nbytes=nbytes)
            refusals.require_there(wanted, answers)
            channel.require(answers, f"{name} was pulled")
            targets = [plan.allocate() for plan in plans]
            self._mover.read(channel, moves_of(plans, targets, answers), name)
        finally:
            release = request_for("pushes.release", transfer=transfer)
            open_on = [
                i for i in requests if not isinstance(a := answers.get(i), Exposed) or a.is_open
            ]
            channel.tell(dict.fromkeys(open_on, release))
        return [plan.finish(target) for plan, target in zip(plans, targets, strict=True)]

    def _require_generation(self, generation: int, whose: str) -> None:
        if generation != self._group.generation:
            raise ArrayGoneError(
                f"{capitalized(whose)} is gone: the group was restarted since, and it had not been "
                "pulled."
            )


def _region(shape: tuple[int, ...], path: Path, subscripts: int) -> Region:
    try:
        return Region.of(shape, path.last_keys(subscripts))
    except (IndexError, TypeError) as error:  # NumPy's own errors, or NotBasicIndexError
        raise UsageError(
            f"`{path.text}`: {error}; the array has shape {shape}. Nothing was moved."
        ) from None
