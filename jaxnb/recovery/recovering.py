"""A new group with the variables of the one before: the steps, one after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from jaxnb.display.blocks import Column, Note, Table
from jaxnb.display.card import Card, card_of, stacked
from jaxnb.errors import JaxnbError, RecoveryInterrupted, UsageError
from jaxnb.labels import capitalized, format_bytes, format_seconds, plural, processes_label
from jaxnb.launch.card_group import group_card
from jaxnb.launch.cluster import ProcessGroup
from jaxnb.lockstep.provenance import names_text
from jaxnb.model.cells import CallRequest
from jaxnb.model.dispatches import Difference
from jaxnb.model.group import GroupInfo
from jaxnb.recovery import messages
from jaxnb.recovery.carrier import Carrier, Packed
from jaxnb.recovery.fit_to_size import Facts, lost_here, resized_notes
from jaxnb.recovery.saving import PACK_SECONDS, Saver, Told, common, differing
from jaxnb.recovery.scratch import Scratch, scratch
from jaxnb.wire.asking import Channel


def recovered_card(group: GroupInfo, recovered: messages.Recovered) -> Card:
    """New processes with the variables of the old ones: what was kept, and what is lost."""
    kept = plural(len(recovered.kept), "variable")
    size = f" ({format_bytes(recovered.nbytes)})" if recovered.kept else ""
    new = f"{plural(len(group.processes), 'new process')} in {format_seconds(recovered.seconds)}"
    tail = f"{new} · kept {kept}{size}"
    if recovered.died:
        tail = f"{processes_label(recovered.died)} had died · {tail}"
    if len(recovered.new_losses) <= 1:  # a sentence says it
        return group_card(group, tail, False, recovered.notes)
    rows = messages.losses_rows(recovered.new_losses)
    columns = [Column("lost", least=8), Column("process"), Column("why", least=20)]
    table = Table(columns, rows[:_MOST_ROWS], more=(len(rows) - _MOST_ROWS, "row"))
    lost = card_of(table, Note(messages.USING_ONE.strip()))
    return stacked([group_card(group, tail, False, recovered.notes_but_losses), lost])


_MOST_ROWS = 12


def recovered_text(
    recovered: messages.Recovered,
    differences: Sequence[Difference] = (),
    tell: Callable[[Sequence[Difference]], str] = names_text,
) -> str:
    """Returns what the card says, as one paragraph below a cell.

    Args:
        recovered: What the recovery kept and lost.
        differences: The names under which its processes held parts of different arrays then.
        tell: Describes the differences.
    """
    return f"{recovered} {capitalized(tell(differences))}" if differences else str(recovered)


Progress = Callable[[str, str], None]

_PROCESS = "jaxnb.recovery.process_recovering"

_NOT_REPORTED = ("np.random.get_state()", "random.getstate()")
"""Not reported as missing: they differ between processes unless the user seeds them alike."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """Carries the variables of a group over to a new one.

    Until the processes are replaced nothing changes; after that, if something fails, the variables
    are in files, and the error has a note that says where.

    Attributes:
        cluster: Returns the current group's processes, for the system.
        carrier: Has the processes of the old group pack what they have.
        channel: Opens a channel to the current group; the event ends the conversation once it is
            set.
        group: Returns the current group.
        replace_all: Ends the old processes, and starts new ones.
        take_for_dead: Has processes of the new group count as dead.
        progress: Told of each stage.
        interrupted: Set by Interrupt. Before the processes are replaced, nothing changes then;
            while the new ones take the variables, they stop taking them; the variables are in
            files.
        size: The processes of the new group and the devices of each, if it is of another size.
    """

    cluster: Callable[[], ProcessGroup]
    carrier: Carrier
    channel: Callable[[threading.Event], Channel]
    group: Callable[[], GroupInfo]
    replace_all: Callable[[], None]
    take_for_dead: Callable[[Collection[int]], None]
    progress: Progress
    interrupted: threading.Event
    size: tuple[int, int] | None = None

    def run(self, unended: Collection[int] = ()) -> messages.Recovered | None:
        """Recovers the variables into new processes.

        Args:
            unended: The processes that are still in a cell.

        Returns:
            None if a host was lost meanwhile. Its processes count as dead, and the others have what
            they had: call it again.

        Raises:
            KeyboardInterrupt: It was interrupted.
            RecoveryInterrupted: It was interrupted while the processes were being replaced, which
                cannot stop half-way; everything was done.
        """
        started, lost = time.perf_counter(), self.cluster().hosts.lost()
        apart = None if self.size is None else differing(self.channel(self.interrupted))
        with self._dropped_if_it_fails():
            self.progress("packing", "the variables")
            packed = self.carrier.pack()
            self._require_all(packed)
        sizes = dict.fromkeys((each.process_index for each in self.group().processes), 0)
        sizes |= {i: measured.nbytes for i, measured in packed.processes.items()}
        # Who takes another's place reads what the others had, and in another size all read that.
        readers = sizes if self.size is not None else sizes.keys() - packed.processes.keys()
        sharing = self.cluster().hosts.hosts_after(readers)
        with scratch(self.cluster, sizes, sharing) as room:
            try:
                with self._dropped_if_it_fails():
                    files = self.carrier.write(packed, room.folder)
                    paths = {i: room.folder / file.name for i, file in files.items()}
                    self._require_fit(paths)
                    names = {i: file.name for i, file in files.items()}
                    self.cluster().hosts.share_scratch(names, sharing, self._copying())
                    saver = Saver(self.channel(self.interrupted), self.group())
                    manifest, told = saver.manifest(packed.processes, files)
                    room.complete(manifest)
            except JaxnbError:
                if self.cluster().hosts.lost() == lost:
                    raise
            if self.cluster().hosts.lost() != lost:
                return None

            def take() -> messages.Recovered:
                return self._in_new_group(paths, packed, told, saver.facts, apart, unended, started)

            found, was_interrupted = self._replaced(paths, room, saver.facts, take)
        if was_interrupted and found is not None:
            raise RecoveryInterrupted(found)
        if was_interrupted:
            self.interrupted.set()  # before it is run again
        return found

    def _replaced(
        self,
        paths: Mapping[int, Path],
        room: Scratch,
        before: Facts,
        take: Callable[[], messages.Recovered],
    ) -> tuple[messages.Recovered | None, bool]:
        """Replaces the processes, and has the new ones take the variables of files.

        If a host is lost with its files, the others bind theirs, and its processes count as dead.

        Returns:
            What was recovered; None in that case. And whether it was interrupted until then.
        """
        was_interrupted = False
        while True:
            self.replace_all()
            there, lost = room.hold(paths), self.cluster().hosts.lost()
            was_interrupted |= self.interrupted.is_set()
            self.interrupted.clear()
            try:
                with _said_where(room):
                    if self.size is not None or not there or len(there) == len(paths):
                        return take(), was_interrupted
                    saver = Saver(self.channel(self.interrupted), self.group())
                    saver.bind({i: paths[i] for i in there}, before, maps=True)
            except JaxnbError:
                if self.size is not None or self.cluster().hosts.lost() == lost:
                    raise
            else:
                self.take_for_dead(set(range(saver.num_processes)).difference(there))
                return None, was_interrupted

    def _require_all(self, packed: Packed) -> None:
        """Raises if the size is to change and not all have packed.

        Nobody else knows what a dead process had.
        """
        gone = [each.process_index for each in self.group().processes]
        gone = [index for index in gone if index not in packed.processes]
        if self.size is not None and gone:
            raise JaxnbError(
                f"{capitalized(processes_label(gone))} died or did not answer while the variables "
                "were packed. Nothing has changed. Type `%spmd_recover` first."
            )

    def _require_fit(self, paths: Mapping[int, Path]) -> None:
        if self.size is None:
            return
        asked = {
            i: CallRequest(f"{_PROCESS}.misfit", {"path": str(path), "size": self.size})
            for i, path in paths.items()
        }
        channel = self.channel(self.interrupted)
        answers = channel.ask_together(asked, 0, PACK_SECONDS)
        channel.require(answers, "the arrays were looked at", "and nothing has changed.")
        if misfit := next(filter(None, answers.values()), ""):
            size = " × ".join(map(str, self.size))
            raise UsageError(
                f"A group of {size} devices cannot lay out {misfit}. Nothing has changed. Take "
                "another size, or change the array first."
            )

    def _copying(self) -> Callable[[], None]:
        """Returns what raises if it is interrupted, and says once which hosts do not answer."""
        told: list[str] = []

        def step() -> None:
            if self.interrupted.is_set():
                raise KeyboardInterrupt(
                    "Interrupted while the variables were copied between hosts. Nothing has "
                    "changed. Type `%spmd_recover` to try again."
                )
            cluster = self.cluster()
            if not told and (silence := cluster.silence_text([*cluster.pids])):
                told.append(silence)
                self.carrier.notice(f"{silence}. Interrupt ends the wait and changes nothing.")

        return step

    @contextmanager
    def _dropped_if_it_fails(self) -> Iterator[None]:
        try:
            yield
        except BaseException:  # nothing has changed
            self.carrier.drop()
            raise

    def _in_new_group(
        self,
        paths: Mapping[int, Path],
        packed: Packed,
        told: Told,
        before: Facts,
        apart: list[str] | None,
        unended: Collection[int],
        started: float,
    ) -> messages.Recovered:
        channel = self.channel(self.interrupted)
        died = tuple(i for i in range(before.num_processes) if i not in paths)
        self.progress("unpacking", format_bytes(packed.nbytes))
        saver = Saver(channel, self.group())
        taken = saver.bind(paths, before, maps=True)
        given: tuple[str, ...] = ()
        missing: dict[str, str] = {}
        if died and paths:
            self.progress("giving variables", f"to {processes_label(died)}")
            given, missing = common(channel, paths.keys())
            taken |= saver.fill(paths, given, missing)
        lost = lost_here(told.lost, before.num_processes, saver.num_processes)
        # What all others have lost, and is the same on all, is lost on those that they gave it to.
        lost = [
            replace(each, processes=tuple(sorted({*each.processes, *died})))
            if set(paths) <= set(each.processes) and each.variable not in missing
            else each
            for each in lost
        ]
        lost += messages.losses({i: answer.lost for i, answer in taken.items()})
        old = {each.path for each in lost if each.is_old and set(paths) <= set(each.processes)}
        known: dict[str, set[int]] = {}
        for each in lost:
            known.setdefault(each.path, set()).update(each.processes)
        lost += [
            messages.Lost(name, told.variables.get(name, "state"), who, why, name in old)
            for name, why in missing.items()
            if name not in _NOT_REPORTED
            and (who := tuple(sorted(set(died) - known.get(name, set()))))
        ]
        gone = {each.path for each in lost}
        damaged = {name for each in lost for name in (each.variable, *each.also)}
        seconds = time.perf_counter() - started  # without the user's functions
        hooks = _call_hooks(channel)
        left = messages.without_made(lost, {i: answer.bound for i, answer in hooks.items()})
        made = {each.variable for each in lost} - {each.variable for each in left}
        return messages.Recovered(
            died=died,
            kept=tuple(name for name in told.variables if name not in gone),
            lost=tuple(left),
            seconds=seconds,
            nbytes=packed.nbytes,
            given=tuple(name for name in given if name.isidentifier() and name not in damaged),
            given_up=packed.given_up,
            unended=tuple(sorted(set(unended) - set(died))),
            hook_errors=_raised(hooks),
            hook_output={i: answer.printed for i, answer in hooks.items() if answer.printed},
            made=tuple(sorted(made)),
            resized=resized_notes(before.size, saver.facts.size, "is gone", apart),
        )


@contextmanager
def _said_where(room: Scratch) -> Iterator[None]:
    """Has what ends the block say where the variables are."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "Interrupted while the new processes took the variables over: using one that is "
            f"missing raises an error. All are in {room.folder}{room.on_hosts}: "
            f"`%spmd_load {room.folder}` binds them. Then remove the folder."
        ) from None
    except JaxnbError as error:
        reason = str(error).partition(" Type `%")[0]
        raise JaxnbError(
            f"The new processes could not take the variables. {reason} Those of all processes are "
            f"in {room.folder}{room.on_hosts}. Type `%spmd_restart`, then `%spmd_load "
            f"{room.folder}`; then remove the folder."
        ) from error


def wait_for_cells(
    unended: Callable[[], set[int]], seconds: float, pause: Callable[[float], object]
) -> set[int]:
    """Waits for processes that are still in a cell; returns who has not come back.

    Args:
        unended: Returns who is still in one.
        seconds: How long to wait at most.
        pause: Waits up to this many seconds for one of them.
    """
    deadline = time.monotonic() + seconds
    while left := unended():
        if time.monotonic() >= deadline:
            return left
        pause(0.05)
    return set()


def _call_hooks(channel: Channel) -> dict[int, messages.CalledHooks]:
    """Has all call what :func:`jaxnb.on_recover` was given; returns what became of it."""
    requests = dict.fromkeys(
        range(channel.num_processes), CallRequest(f"{_PROCESS}.call_hooks", {})
    )
    answers: dict[int, messages.CalledHooks] = channel.ask_together(requests, 0, PACK_SECONDS)
    doing = "the functions given to jaxnb.on_recover were called"
    channel.require(answers, doing, "and the variables are there.")
    return answers


def _raised(hooks: Mapping[int, messages.CalledHooks]) -> tuple[str, ...]:
    """Returns what the functions raised, and where."""
    raised: dict[str, list[int]] = {}
    for index, answer in sorted(hooks.items()):
        for text in answer.raised:
            raised.setdefault(text, []).append(index)
    return tuple(f"{processes_label(who)}: {text}" for text, who in raised.items())
