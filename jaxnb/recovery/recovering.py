"""A new group with the variables of the one before: the steps, one after the other."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from jaxnb.display.card import Card
from jaxnb.errors import JaxnbError, RecoveryInterrupted, UsageError
from jaxnb.labels import capitalized, format_bytes, format_seconds, plural, processes_label
from jaxnb.launch.card_group import group_card
from jaxnb.launch.cluster import ProcessGroup
from jaxnb.lockstep.provenance import names_text
from jaxnb.model.cells import CallRequest
from jaxnb.model.dispatches import Difference
from jaxnb.model.group import GroupInfo, SentinelFault
from jaxnb.recovery import messages
from jaxnb.recovery.fit_to_size import Facts, lost_here, resized_notes
from jaxnb.recovery.saving import PACK_SECONDS, Saver, Told, common, differing
from jaxnb.recovery.scratch import scratch
from jaxnb.wire.asking import Channel
from jaxnb.wire.messages import Exchange
from jaxnb.wire.sentinels import Sentinels


def recovered_card(group: GroupInfo, recovered: messages.Recovered) -> Card:
    """New processes with the variables of the old ones: what was kept, and what is lost."""
    kept = plural(len(recovered.kept), "variable")
    size = f" ({format_bytes(recovered.nbytes)})" if recovered.kept else ""
    tail = f"new processes in {format_seconds(recovered.seconds)} · kept {kept}{size}"
    if recovered.died:
        tail = f"{processes_label(recovered.died)} replaced · {tail}"
    return group_card(group, tail, False, recovered.notes)


def recovered_text(
    recovered: messages.Recovered,
    differences: Sequence[Difference] = (),
    tell: Callable[[Sequence[Difference]], str] = names_text,
) -> str:
    """Returns what the card says, as one paragraph below a cell.

    Args:
        recovered: What the recovery kept and lost.
        differences: The names under which its processes held parts of different arrays then.
        tell: Describes the differences that are not among the lost names.
    """
    gone = {each.path for each in recovered.lost}
    rest = [each for each in differences if each.place not in gone]
    return f"{recovered} {capitalized(tell(rest))}" if rest else str(recovered)


PAUSE_SECONDS = 0.02
"""Time between two questions to a process about its progress."""

SILENT_SECONDS = 10.0
"""A process that is silent for this long is given up. It is this long because on a busy machine all
are late, and C code may hold the GIL."""

HEALTHY_SECONDS = 60.0
"""A process that answered at first is waited for this long; then the recovery is given up and no
process is ended."""

_PROCESS = "jaxnb.recovery.process_recovering"

_Verb = Literal["pack", "write"]
_DONE: Mapping[_Verb, str] = {"pack": "packed", "write": "written"}
"""What processes are asked to do, as a participle; their functions are called that, too."""


@dataclass(frozen=True, slots=True)
class Packed:
    """What processes have packed.

    Attributes:
        processes: What each of them has; those that died or were given up are missing.
        given_up: Why each living process that could not pack was given up.
    """

    processes: Mapping[int, messages.Measured]
    given_up: Mapping[int, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """The size of all of it."""
        return sum(each.nbytes for each in self.processes.values())


class Carrier:
    """Has the processes of a group pack their variables, and write them to files.

    Nothing changes in them: they may be asked again, or simply used further.

    Args:
        sentinels: Who is asked.
        processes: Those of the group, by index.
        stopped: Returns which of some processes are stopped, and what lets each go on.
        dead: Returns who has died so far.
        interrupted: Ends it with KeyboardInterrupt once it is set; nothing has changed then.
        notice: Shows the user a sentence.
        require_there: Raises if the processes ended for a reason other than dying (a restart, a
            close).
        skips_unfinished: What is still computed is waited for only briefly, then left out: the
            user has given up on it.
    """

    def __init__(
        self,
        sentinels: Sentinels,
        processes: Collection[int],
        stopped: Callable[[Collection[int]], Mapping[int, str]],
        dead: Callable[[], Collection[int]],
        interrupted: threading.Event,
        notice: Callable[[str], None],
        require_there: Callable[[], None],
        *,
        skips_unfinished: bool = False,
    ) -> None:
        self._skips_unfinished = skips_unfinished
        self._sentinels, self._processes, self._dead = sentinels, set(processes), dead
        self._stopped = stopped
        self._interrupted, self._notice = interrupted, notice
        self._require_there = require_there
        self._silent_since: dict[int, float] = {}
        self._healthy: set[int] = set()
        self._told: set[tuple[int, bool]] = set()

    def pack(self) -> Packed:
        """Makes all processes pack their variables, without arrays whose shards only the dead had.

        A process that answers at first is never given up: if it is silent later, an object holds
        the interpreter while it is pickled (a large dictionary, say), and may end.

        Raises:
            JaxnbError: One could not (no memory, say), or was silent for long; nothing has changed.
            KeyboardInterrupt: It was interrupted; nothing has changed.
        """
        running = self._processes - self._stopped(self._processes).keys()
        self._healthy = set(self._sentinels.ask(running, f"{_PROCESS}.drop"))
        gone: set[int] = set(self._dead())
        given_up: dict[int, str] = {}
        while True:
            living = self._processes - gone
            attempt: dict[str, Any] = {"name": uuid.uuid4().hex, "dead": sorted(gone)}
            attempt["skips_unfinished"] = self._skips_unfinished
            answers = self._until_all(living, "pack", attempt, given_up)
            now_gone = set(self._dead()) | given_up.keys()
            if now_gone <= gone:
                return Packed(answers, given_up)
            gone |= now_gone  # those lost meanwhile held parts of arrays too: pack again

    def write(self, packed: Packed, folder: Path) -> dict[int, messages.StateFile]:
        """Has the processes write what they have packed.

        Args:
            packed: What they have packed.
            folder: The directory on each host that they write to.

        Raises:
            JaxnbError: One could not, or has died; nothing else has changed.
        """
        given_up: dict[int, str] = {}
        told = {"folder": str(folder)}
        answers = self._until_all(packed.processes, "write", told, given_up)
        if missing := packed.processes.keys() - answers.keys():
            ended = ((i, given_up.get(i, "has died")) for i in sorted(missing))
            sentence = "; ".join(f"process {i} {reason}" for i, reason in ended)
            raise JaxnbError(
                f"The variables could not be written: {sentence}. Nothing else has changed. Type "
                "`%spmd_recover` again."
            )
        return answers

    def drop(self) -> None:
        """Has them drop what they have packed, if they are there."""
        try:
            self._require_there()
        except JaxnbError:
            return
        living = self._processes - set(self._dead()) - self._silent_since.keys()
        self._sentinels.ask(living, f"{_PROCESS}.drop")

    def _until_all(
        self,
        processes: Collection[int],
        verb: _Verb,
        arguments: Mapping[str, Any],
        given_up: dict[int, str],
    ) -> dict[int, Any]:
        """Asks processes until all have answered, died, or been given up."""
        found: dict[int, Any] = {}
        while left := set(processes) - found.keys() - given_up.keys() - set(self._dead()):
            answers = self._sentinels.ask_all(
                left, f"{_PROCESS}.{_DONE[verb]}", seconds=None, **arguments
            )
            self._require_there()
            for index, answer in answers.items():
                if isinstance(answer, messages.Refused | SentinelFault):
                    reason = answer.reason if isinstance(answer, messages.Refused) else answer.error
                    raise JaxnbError(
                        f"Process {index} could not {verb} its variables: {reason}. Nothing has "
                        "changed. Mend that and try again, or type `%spmd_restart` for fresh "
                        "processes without variables."
                    )
                if answer is not None:
                    found[index] = answer
            for index in answers:
                self._silent_since.pop(index, None)
            silent = {i: self._why_given_up(i, verb) for i in left - answers.keys()}
            given_up |= {i: why for i, why in silent.items() if why}
            if self._interrupted.is_set():
                raise KeyboardInterrupt(
                    f"Interrupted while the variables were {_DONE[verb]}. Nothing has changed. Try "
                    "again, or type `%spmd_restart` for fresh processes."
                )
            if left - found.keys():
                # They go on in a thread of theirs, which each question takes time from.
                Exchange().get(PAUSE_SECONDS)
        return found

    def _why_given_up(self, index: int, verb: _Verb) -> str:
        """Returns why a silent process is given up; empty if it is waited for."""
        now, command = time.monotonic(), self._stopped([index]).get(index)
        stopped = command is not None
        since = self._silent_since.setdefault(index, now)
        is_first = (index, stopped) not in self._told
        self._told.add((index, stopped))
        if index in self._healthy:
            if is_first:
                doing = "pickling an object" if verb == "pack" else "C code"
                why = f"{doing} may keep Python from running"
                why = f"it is stopped (`{command}`)" if stopped else why
                self._notice(
                    f"process {index} does not answer while it {verb}s its variables: {why}. It is "
                    "waited for. Interrupt ends the wait and changes nothing; if it does not "
                    "answer then, `%spmd_recover` ends it by force, and it loses its variables."
                )
            if now - since > HEALTHY_SECONDS:
                raise JaxnbError(
                    f"Process {index} has not answered for {HEALTHY_SECONDS:g} s while its "
                    f"variables were {_DONE[verb]}. Nothing has changed. It may answer yet; type "
                    "`%spmd_recover` to try again: if it is silent then, it is ended by force and "
                    "loses its variables."
                )
            return ""
        if stopped:  # nobody knows how long that lasts
            return "was stopped"
        if is_first:
            then = "it is ended by force" if verb == "pack" else "nothing is carried over"
            self._notice(
                f"process {index} does not answer; {then} unless it answers within "
                f"{SILENT_SECONDS:g} s. Interrupt ends the wait and changes nothing."
            )
        return "did not answer" if now - since > SILENT_SECONDS else ""


Progress = Callable[[str, str], None]

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
    progress: Progress
    interrupted: threading.Event
    size: tuple[int, int] | None = None

    def run(self, unended: Collection[int] = ()) -> messages.Recovered:
        """Recovers the variables into new processes.

        Args:
            unended: The processes that are still in a cell.

        Raises:
            KeyboardInterrupt: It was interrupted.
            RecoveryInterrupted: It was interrupted while the processes were being replaced, which
                cannot stop half-way; everything was done.
        """
        started = time.perf_counter()
        apart = None if self.size is None else differing(self.channel(self.interrupted))
        with self._dropped_if_it_fails():
            self.progress("packing", "the variables")
            packed = self.carrier.pack()
            self._require_all(packed)
        sizes = dict.fromkeys((each.process_index for each in self.group().processes), 0)
        sizes |= {i: measured.nbytes for i, measured in packed.processes.items()}
        # Who takes another's place reads what the others had, and in another size all read that.
        readers = sizes if self.size is not None else sizes.keys() - packed.processes.keys()
        sharing = self.cluster().hosts_after(readers)
        with scratch(self.cluster, sizes, sharing) as room:
            with self._dropped_if_it_fails():
                files = self.carrier.write(packed, room.folder)
                paths = {i: room.folder / file.name for i, file in files.items()}
                self._require_fit(paths)
                names = {i: file.name for i, file in files.items()}
                self.cluster().share_scratch(names, sharing, self._require_not_interrupted)
                saver = Saver(self.channel(self.interrupted), self.group())
                manifest, told = saver.manifest(packed.processes, files)
                room.complete(manifest)
            self.replace_all()
            room.hold()
            was_interrupted = self.interrupted.is_set()
            self.interrupted.clear()
            try:
                found = self._in_new_group(
                    paths, packed, told, saver.facts, apart, unended, started
                )
            except KeyboardInterrupt:
                raise KeyboardInterrupt(
                    "Interrupted while the new processes took the variables over: using one that "
                    f"is missing raises an error. All are in {room.folder}{room.on_hosts}: "
                    f"`%spmd_load {room.folder}` binds them. Then remove the folder."
                ) from None
            except JaxnbError as error:
                reason = str(error).partition(" Type `%")[0]
                raise JaxnbError(
                    f"The new processes could not take the variables. {reason} Those of all "
                    f"processes are in {room.folder}{room.on_hosts}. Type `%spmd_restart`, then "
                    f"`%spmd_load {room.folder}`; then remove the folder."
                ) from error
        if was_interrupted:
            raise RecoveryInterrupted(found)
        return found

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

    def _require_not_interrupted(self) -> None:
        if self.interrupted.is_set():
            raise KeyboardInterrupt(
                "Interrupted while the variables were copied between hosts. Nothing has changed."
            )

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
        lost += messages.losses({i: answer.lost for i, answer in taken.items()})
        known: dict[str, set[int]] = {}
        for each in lost:
            known.setdefault(each.path, set()).update(each.processes)
        lost += [
            messages.Lost(name, told.variables.get(name, "state"), who, why)
            for name, why in missing.items()
            if name not in _NOT_REPORTED
            and (who := tuple(sorted(set(died) - known.get(name, set()))))
        ]
        gone, damaged = {each.path for each in lost}, {each.variable for each in lost}
        seconds = time.perf_counter() - started  # without the user's functions
        hook_errors, hook_output = _call_hooks(channel)
        return messages.Recovered(
            died=died,
            kept=tuple(name for name in told.variables if name not in gone),
            lost=tuple(lost),
            seconds=seconds,
            nbytes=packed.nbytes,
            given=tuple(name for name in given if name.isidentifier() and name not in damaged),
            given_up=packed.given_up,
            unended=tuple(sorted(set(unended) - set(died))),
            hook_errors=hook_errors,
            hook_output=hook_output,
            resized=resized_notes(before.size, saver.facts.size, "is gone", apart),
        )


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


def _call_hooks(channel: Channel) -> tuple[tuple[str, ...], dict[int, str]]:
    """Has all call what :func:`jaxnb.on_recover` was given; returns what it raised and printed."""
    requests = dict.fromkeys(
        range(channel.num_processes), CallRequest(f"{_PROCESS}.call_hooks", {})
    )
    answers: dict[int, messages.CalledHooks] = channel.ask_together(requests, 0, PACK_SECONDS)
    doing = "the functions given to jaxnb.on_recover were called"
    channel.require(answers, doing, "and the variables are there.")
    raised: dict[str, list[int]] = {}
    for index, answer in sorted(answers.items()):
        for text in answer.raised:
            raised.setdefault(text, []).append(index)
    errors = tuple(f"{processes_label(who)}: {text}" for text, who in raised.items())
    return errors, {index: answer.printed for index, answer in answers.items() if answer.printed}
