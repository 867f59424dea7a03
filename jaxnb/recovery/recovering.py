"""A new group with the variables of the one before: the steps, one after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from jaxnb.errors import JaxnbError, RecoveryInterrupted, UsageError
from jaxnb.labels import format_bytes, processes_label
from jaxnb.model.cells import CallRequest
from jaxnb.model.group import GroupInfo
from jaxnb.recovery.carrying import Carrier, Packed
from jaxnb.recovery.directories import MANIFEST, scratch_folder
from jaxnb.recovery.facts import Facts, lost_here, resized_notes
from jaxnb.recovery.files import arrays_in
from jaxnb.recovery.filling import differing, fill
from jaxnb.recovery.fit_to_size import MisfitError, require_all_fit
from jaxnb.recovery.gift_messages import Filled
from jaxnb.recovery.messages import CalledHooks, Lost, Recovered, StateFile, losses
from jaxnb.recovery.saving import PACK_SECONDS, Asked, Saver, Told

Progress = Callable[[str, str], None]

_HOOKS = "jaxnb.recovery.process_hooks.call"


class _Carried(NamedTuple):
    """What goes over to the new group: files, and what there is to say of them."""

    folder: Path
    packed: Packed
    files: Mapping[int, StateFile]
    told: Told
    before: Facts
    differing: list[str] | None


@dataclass(frozen=True, slots=True)
class Recovery:
    """Carries the variables of a group over to a new one.

    Until the processes are replaced nothing changes; after that, if something fails, the variables
    are in files, and the error has a note that says where.

    Attributes:
        carrier: Has the processes of the old group pack what they have.
        channel: Opens a channel to the processes of the group that there is; what it is given ends
            the conversation once it is set.
        group: Returns what that is.
        replace_all: Ends the old processes, and starts new ones.
        progress: Told of each stage.
        interrupted: Set by Interrupt. Before the processes are replaced nothing changes then;
            while the new ones take the variables, they end to do so, and these are in files.
        size: The processes of the new group and the devices of each, if it is of another size.
    """

    carrier: Carrier
    channel: Callable[[threading.Event], Asked]
    group: Callable[[], GroupInfo]
    replace_all: Callable[[], None]
    progress: Progress
    interrupted: threading.Event
    size: tuple[int, int] | None = None

    def run(self, unended: Collection[int] = ()) -> Recovered:
        """Does it.

        Args:
            unended: The processes that are still in a cell.

        Raises:
            KeyboardInterrupt: It was interrupted.
            RecoveryInterrupted: It was while the processes were replaced, which cannot stop
                half-way; all was done.
        """
        started = time.perf_counter()
        apart = None if self.size is None else differing(self.channel(self.interrupted))
        with self._dropped_if_it_fails():
            self.progress("packing", "the variables")
            packed = self.carrier.pack()
        with scratch_folder(packed.nbytes) as folder:
            with self._dropped_if_it_fails(folder):
                files = self.carrier.write(packed, folder)
                saver = Saver(self.channel(self.interrupted), self.group())
                told = saver.write_manifest(folder, packed.processes, files)
                self._require_fit(folder, files)
                carried = _Carried(folder, packed, files, told, saver.facts, apart)
            self.replace_all()
            was_interrupted = self.interrupted.is_set()
            self.interrupted.clear()
            try:
                found = self._in_new_group(carried, unended, started)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(
                    "Interrupted while the new processes took the variables over: using one that "
                    "is missing raises an error. All are in "
                    f"{folder}: `%spmd_load {folder}` binds them. Remove it then."
                ) from None
            except JaxnbError as error:
                reason = str(error).partition(" Type `%")[0]
                raise JaxnbError(
                    f"The new processes could not take the variables. {reason} Those of all "
                    f"processes are in {folder}. Type `%spmd_restart`, then `%spmd_load {folder}`, "
                    "and remove it then."
                ) from error
        if was_interrupted:
            raise RecoveryInterrupted(found)
        return found

    def _require_fit(self, folder: Path, files: Mapping[int, StateFile]) -> None:
        if self.size is None:
            return
        try:
            for file in files.values():
                require_all_fit(arrays_in(folder / file.name), self.size)
        except MisfitError as error:
            size = " × ".join(map(str, self.size))
            raise UsageError(
                f"A group of {size} devices cannot lay out {error}. Nothing has changed. Take "
                "another size, or change the array first."
            ) from None

    @contextmanager
    def _dropped_if_it_fails(self, folder: Path | None = None) -> Iterator[None]:
        try:
            yield
        except BaseException:  # nothing has changed
            self.carrier.drop()
            if folder is not None:
                (folder / MANIFEST).unlink(missing_ok=True)
            raise

    def _in_new_group(
        self, carried: _Carried, unended: Collection[int], started: float
    ) -> Recovered:
        folder, packed, files, told, before, apart = carried
        channel = self.channel(self.interrupted)
        died = tuple(i for i in range(before.num_processes) if i not in files)
        self.progress("unpacking", format_bytes(packed.nbytes))
        saver = Saver(channel, self.group())
        taken = saver.bind(folder, files, (), before, maps=True)
        filled = Filled()
        if died and files:
            self.progress("giving variables", f"to {processes_label(died)}")
            filled = fill(channel, files.keys(), died)
        lost = lost_here(told.lost, before.num_processes, saver.num_processes)
        lost += losses({i: answer.lost for i, answer in taken.items()})
        lost += losses(filled.lost)
        known: dict[str, set[int]] = {}
        for each in lost:
            known.setdefault(each.path, set()).update(each.processes)
        lost += [
            Lost(name, told.variables.get(name, "state"), who, why)
            for name, why in filled.missing.items()
            if (who := tuple(sorted(set(died) - known.get(name, set()))))
        ]
        gone, damaged = {each.path for each in lost}, {each.variable for each in lost}
        return Recovered(
            died,
            tuple(name for name in told.variables if name not in gone),
            tuple(lost),
            time.perf_counter() - started,
            packed.nbytes,
            tuple(name for name in filled.names if name not in damaged),
            packed.given_up,
            tuple(sorted(set(unended) - set(died))),
            *_call_hooks(channel),
            resized_notes(before.size, saver.facts.size, "is gone", apart),
        )


def wait_for_cells(
    unended: Callable[[], set[int]], seconds: float, pause: Callable[[float], object]
) -> set[int]:
    """Waits for processes that were given up; returns who has not come back.

    Args:
        unended: Returns who has not yet.
        seconds: How long to wait at most.
        pause: Waits for so long at most for one of them.
    """
    deadline = time.monotonic() + seconds
    while left := unended():
        if time.monotonic() >= deadline:
            return left
        pause(0.05)
    return set()


def _call_hooks(channel: Asked) -> tuple[tuple[str, ...], dict[int, str]]:
    """Has all call what :func:`jaxnb.on_recover` was given; returns what it raised and printed."""
    requests = dict.fromkeys(range(channel.num_processes), CallRequest(_HOOKS, {}))
    answers: dict[int, CalledHooks] = channel.ask_together(requests, 0, PACK_SECONDS)
    doing = "what jaxnb.on_recover was given was called"
    channel.require(answers, doing, "and the variables are there.")
    raised: dict[str, list[int]] = {}
    for index, answer in sorted(answers.items()):
        for text in answer.raised:
            raised.setdefault(text, []).append(index)
    errors = tuple(f"{processes_label(who)}: {text}" for text, who in raised.items())
    return errors, {index: answer.printed for index, answer in answers.items() if answer.printed}
