"""Has the processes of a group pack their variables, and write them to files."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from jaxnb.errors import JaxnbError
from jaxnb.model.group import SentinelFault
from jaxnb.recovery import messages
from jaxnb.wire.messages import Exchange
from jaxnb.wire.sentinels import Sentinels

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
        self._interrupted, self.notice = interrupted, notice
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
                self.notice(
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
            self.notice(
                f"process {index} does not answer; {then} unless it answers within "
                f"{SILENT_SECONDS:g} s. Interrupt ends the wait and changes nothing."
            )
        return "did not answer" if now - since > SILENT_SECONDS else ""
