"""The recorder: what this process dispatches to more processes than itself."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jaxnb.compat import jax_dispatch as internals
from jaxnb.compat.jax_runtime import hook_barriers, separate_main_thread
from jaxnb.lockstep import process_inputs
from jaxnb.lockstep import process_recorded as recorded
from jaxnb.lockstep.process_cell import Agreement, InLockstep
from jaxnb.lockstep.process_inputs import OwnSettings
from jaxnb.lockstep.process_interrupts import only_looks, refuse
from jaxnb.lockstep.process_origins import ORIGINS, end_of, line_in, number_of
from jaxnb.model.cells import CellRequest, JointRequest
from jaxnb.model.dispatches import Argument, CheckMode, Dispatch, Made, Processes, Recording, Trail

if TYPE_CHECKING:
    from jaxnb.arrays.process_replicas import Replicas


class Recorder:
    """Sees every dispatch of a computation that spans processes.

    What a process computes alone is not recorded, and stays on JAX's fast path.

    Args:
        process_index: This process.
        lockstep: Agrees with the other processes before a dispatch.
        watch: Looks at the values of computations.
        replicas: Digests arrays that are replicated, before their first use.

    Attributes:
        lockstep: Agrees with the other processes before a dispatch.
        settings: This process's settings that change programs.
        missing: Why nothing is recorded in this process; empty if it is.
        programs: What was dispatched, for people.
        launches: What has failed of what was dispatched.
        agreement: Lets them be made once all processes are about to.
        reduced: What works less well than it should with this JAX, and why, as sentences.
    """

    def __init__(
        self, process_index: int, lockstep: InLockstep, watch: recorded.Watch, replicas: Replicas
    ) -> None:
        self._process_index = process_index
        self.lockstep = lockstep
        self._cell = recorded.CellSoFar(has_ended=True)
        self.launches = recorded.Launches()
        self.replicas = replicas
        self._known: weakref.WeakKeyDictionary[Any, recorded.Known] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._making = recorded.Making()
        self.programs = recorded.Programs()
        self._has_fast_paths = self._has_slow_paths = self._has_looked = False
        self._watch, self.look_before = watch, watch.before
        self.agreement = Agreement(process_index, lockstep, replicas, self._making, self.launches)
        self.missing = internals.hook_dispatches(self)
        ORIGINS.install(self.depth, replicas.put)
        lockstep.arguments = self.arguments
        self.settings = OwnSettings()
        self.reduced = () if self.missing else self._install()

    def _install(self) -> tuple[str, ...]:
        """Installs what the recorder can do without; returns what it has to do without."""
        recorded.note_starts(
            lambda: self._is_off() and not (self._making.is_main and self._cell.has_ended)
        )
        missing = (*internals.not_compared(), *ORIGINS.missing)
        found = [f"Not compared: {each}." for each in missing]
        if why := hook_barriers(self._barrier):
            found.append(f"Not agreed on: barriers of the coordination service ({why}).")
        if why := separate_main_thread():
            found.append(f"A thread's first call may delay the main thread's ({why}).")
        if why := internals.note_options_and_arguments():
            found.append(f"Not compared: compiler_options of jax.jit ({why}).")
        if why := internals.note_unchecked_results():
            found.append(f"Not compared: results of a shard_map without check_vma ({why}).")
        return tuple(found)

    @contextlib.contextmanager
    def on_trial(self) -> Iterator[None]:
        """Records what is dispatched in the block, outside of any cell."""
        kept = self._cell, self._has_fast_paths, self._has_slow_paths
        mode: CheckMode = "off" if self.missing else "strict"
        self._cell = recorded.CellSoFar(mode, "", time.monotonic(), is_agreed=False)
        try:
            yield
        finally:
            self._cell.mode = "off"
            self._cell = kept[0]
            self._has_fast_paths, self._has_slow_paths = kept[1:]

    def take_out(self, why: str) -> None:
        """Takes the hooks out of JAX: nothing is recorded from now on, as ``missing`` says."""
        self.missing, self.reduced = why, ()
        internals.unhook_dispatches()

    def begin(self, request: CellRequest, code_name: str) -> None:
        """Begins the recording of a cell.

        Args:
            request: The cell.
            code_name: The file name of its code in tracebacks.
        """
        mode: CheckMode = "off" if self.missing else request.check
        self._choose_paths(mode)
        self._cell = recorded.CellSoFar(mode, code_name, time.monotonic(), number=request.cell)
        self._cell.run = number_of(request.request_id)
        self.replicas.begin(is_compared=mode != "off")
        self.launches.let_go()
        ORIGINS.begin(request.request_id, request.cell, code_name)

    def meet(self, request: CellRequest) -> None:
        """Begins what concerns the other processes of a cell.

        Raises:
            OSError: The conductor has ended.
            JaxnbError: What looks at values cannot.
        """
        self._watch.require_seen(self.missing)
        if self._cell.mode == "strict":
            self.lockstep.begin(request.serial, request.ranks)

    def end(self, note: str) -> tuple[Trail, ...]:
        """Ends the recording of a cell: what is dispatched later, by a thread, is not compared.

        Args:
            note: How the cell ended on this process, for those that still wait for it.

        Returns:
            What it has dispatched, in short.
        """
        try:
            if self._cell.mode == "strict":
                self.lockstep.end(note)
        finally:
            self._cell.has_ended = True
            ORIGINS.end()
        return self.trails()

    def _choose_paths(self, mode: CheckMode) -> None:
        """Has jitted functions take the paths that a mode needs, if they have others by now."""
        has_others = self._has_slow_paths if mode == "off" else self._has_fast_paths
        if has_others or self._watch.is_on or self._has_looked:
            internals.choose_paths_again()
            self._has_fast_paths = self._has_slow_paths = False
        self._has_looked = self._watch.is_on

    @contextlib.contextmanager
    def joint(self, request: JointRequest) -> Iterator[None]:
        """Has what the block dispatches agreed on by all that were asked the same."""
        mode: CheckMode = "off" if self.missing else request.check
        self._choose_paths(mode)
        cell, note = self._cell, "had finished"
        kept, cell.mode = cell.mode, mode
        try:
            if mode == "strict":
                with contextlib.suppress(OSError):  # without its service the group is no more
                    self.lockstep.begin(request.serial, request.ranks)
            yield
        except BaseException as error:
            note = f"raised {type(error).__name__}"
            raise
        finally:
            cell.mode = kept
            self.lockstep.end(note)

    def cell_seconds(self) -> float | None:
        """Returns for how long a cell has been running; None if none is."""
        cell = self._cell
        return None if cell.has_ended else time.monotonic() - cell.started

    @property
    def started(self) -> float:
        """When the last cell began, on ``time.monotonic()``: what its times are counted from."""
        return self._cell.started

    def entries(self) -> list[recorded.Entry]:
        """Returns the last dispatches of the cell, oldest first."""
        with self._lock:
            return list(self._cell.ring)

    def trails(self) -> tuple[Trail, ...]:
        """Returns what the cell has dispatched so far, in short."""
        with self._lock:
            trails = self._cell.trails.items()
            found = [Trail(processes, count) for processes, count in trails if count]
        return tuple(sorted(found, key=lambda trail: trail.processes))

    def refused_at(self) -> tuple[int | None, ...]:
        """Returns at which lines of the cell the processes did not agree, each once."""
        return tuple(self._cell.refused_at)

    def recording(self, most: int = recorded.RING) -> Recording:
        """Returns the last dispatches of the cell."""
        with self._lock:
            entries, refused = list(self._cell.ring)[-most:], self._cell.refused
        return Recording(
            self._process_index,
            self.trails(),
            tuple(recorded.as_dispatch(each, is_one_of_many=True) for each in entries),
            None if refused is None else recorded.as_dispatch(refused),
        )

    # ------------------------------------------------------------------ what JAX tells

    def is_recorded(self, executable: Any) -> bool:
        """Whether an executable must be kept off JAX's fast path."""
        if self._watch.is_on:
            return True
        if len(self.seen(executable).processes) < 2:
            return False
        if self._cell.mode == "off":
            self._has_fast_paths = True
            return False
        self._has_slow_paths = True
        return True

    @property
    def looks_at_values(self) -> bool:
        """Whether arguments and results are looked at."""
        return self._watch.is_on

    def look_after(self, executable: Any, depth: int, had: Any, results: Sequence[Any]) -> None:
        """Looks at the results of a computation; waits for them."""
        known, entries = self.seen(executable), self._making.entries
        number = entries[depth].number if len(entries) > depth else 0
        line = line_in(sys._getframe(1), self._cell.name)
        self._watch.after(known.name, known.processes, number, line, had, results)

    def _is_off(self) -> bool:
        """Whether what this thread dispatches is not checked."""
        return self._cell.mode == "off" or self._making.is_unchecked

    def depth(self) -> int:
        """Returns how many dispatches this thread is making."""
        return len(self._making.entries)

    def before(self, executable: Any, arguments: Sequence[Any]) -> None:
        """Records a dispatch that is about to be made, if it spans processes."""
        if only_looks():
            refuse(self.seen(executable).processes)
        if self._is_off():
            return
        known = self.seen(executable)
        if len(known.processes) < 2:
            return
        if known.arguments is None:
            known.arguments = recorded.shapes_of(arguments)
            known.results = recorded.shapes_of(internals.executable_results(executable))
            known.kept = internals.executable_kept(executable, len(arguments))
        used = internals.executable_inputs(executable, arguments)
        cell = self._cell
        line = line_in(sys._getframe(1), cell.name)
        seconds = time.monotonic() - cell.started
        digest, of_host = process_inputs.digests_of(used) if used else (0, ())
        origins = ORIGINS.of_arguments(used)
        given = hash((digest, *ORIGINS.numbers(origins)))
        entry = recorded.Entry(0, known, line, seconds, given, digest, origins, of_host)
        if self._making.is_main:
            entry.cpu = recorded.cpu_of_others()
        if not cell.is_agreed:
            self._note(cell, entry)
        elif self._process_index in known.processes:
            self.agreement.reach(cell, entry, used, self.depth())
            self._note(cell, entry)

    def _note(self, cell: recorded.CellSoFar, entry: recorded.Entry) -> None:
        self._making.entries.append(entry)  # first: an interrupt may strike anywhere
        known, is_main = entry.known, self._making.is_main
        with self._lock:
            if is_main:  # other threads' come in any order, and are not counted
                cell.trails[known.processes] += 1
                entry.number = cell.trails[known.processes]
            cell.ring.append(entry)
        if is_main:
            base = hash((cell.run, entry.number, *known.processes))
        elif all(made.base for number, made in entry.origins if number):
            # Of a thread's nobody knows how many came before: it is known by what it computes.
            base = hash((known.fingerprint, entry.inputs, *known.processes))
        else:
            base = 0
        if base:
            entry.made = Made(base, "dispatch", known.name, cell.number, entry.number, entry.line)
        entry.origins = entry.of_host = ()  # their arguments are asked for before they run only

    def made(self, depth: int, results: Sequence[Any], written: Sequence[Any]) -> None:
        """Gives the results of a dispatch their origins."""
        entries = self._making.entries
        if len(entries) <= depth:
            return
        entry = entries[depth]
        entry.is_made = True
        is_main = self._making.is_main
        self.launches.made(self._cell, entry, results, is_main=is_main)
        if (made := entry.made) is not None:
            ORIGINS.dispatched(made, results)
            if written:
                ORIGINS.replaced(made, written)
        if is_main:
            self.replicas.results.made(entry, [*results, *written] if written else results)

    def arguments(self, processes: Processes, number: int) -> list[Argument]:
        """Returns what is given to a dispatch that waits to be let run, or was not let run.

        Args:
            processes: Those that it spans.
            number: Which one over these it is in the cell.
        """
        entry = self._making.attempt or self._cell.refused
        if entry is None or (entry.known.processes, entry.number) != (processes, number):
            return []
        of_host = process_inputs.arguments_of_host(entry.origins, entry.of_host)
        names = dict(enumerate(entry.names))  # none of refs that it is closed over
        found = [*ORIGINS.described(entry.origins), *of_host]
        return [replace(each, parameter=names.get(each.position, "")) for each in found]

    def failed(self, depth: int, error: BaseException) -> None:
        """Notes what was raised while dispatches were made."""
        for entry in self._making.entries[depth:]:
            entry.end = end_of(error)
            if entry.end != "interrupted" and not entry.is_made:
                self.launches.note_failed(self._cell, entry, error)

    def done(self, depth: int) -> None:
        """Notes that dispatches have ended.

        Raises:
            BaseException: What a signal's handler raises that was put off until now.
        """
        making = self._making
        entries = making.entries
        if len(entries) > depth:
            if making.is_main:
                stop = time.monotonic() - self._cell.started
                for entry in entries[depth:]:
                    entry.stop = stop
            del entries[depth:]
        self.lockstep.done(depth)  # last: from here on a signal's handler may raise

    def _barrier(self, name: str, processes: Sequence[int] | None) -> AbstractContextManager[None]:
        return self.agreement.barrier(self._cell, name, processes, self.depth())

    def seen(self, executable: Any) -> recorded.Known:
        """Returns what is the same for all dispatches of an executable."""
        known = self._known.get(executable)
        if known is None:
            known = self._known[executable] = recorded.known_of(executable, self.programs)
        return known


# The hooks into JAX are private names of it. Where one is gone, takes other arguments or returns
# something else, that has to come out here, at the start, and not inside a user's ``jit``.

CALLS = 5
"""A first call of a jitted function, two cached ones (JAX's caches are looked up in two ways), and
two of one compiled ahead of time, of which the second is cached. All processes must make as many,
since each waits for the others."""

Call = Callable[[Any], Any]


def run(
    recorder: Recorder,
    calls: Sequence[Call],
    plain: Callable[[], Call],
    argument: Any,
    *,
    is_alone: bool,
) -> tuple[Any, tuple[Dispatch, ...]]:
    """Makes calls that all processes make, with the recorder on.

    Where that fails, or what was recorded is not what was done, the recorder is taken out of JAX
    again, ``recorder.missing`` says why, and the calls that are left are made without it: the other
    processes wait for them.

    Args:
        recorder: This process's.
        calls: ``CALLS`` calls of one computation.
        plain: Returns the same computation for use without the recorder.
        argument: What it takes.
        is_alone: There is one process, so nothing is to be recorded.

    Returns:
        What the last call returned, and what was recorded; nothing if nothing is to be.

    Raises:
        Exception: The computation itself fails.
    """
    made, problem, result = 0, "", None
    with recorder.on_trial():
        try:
            for call in calls:
                result = call(argument)
                made += 1
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        found = recorder.recording().dispatches
    if problem:
        # It is on its way if it was recorded, and was not what failed.
        made += len(found) > made and not found[-1].end
    elif not recorder.missing:
        problem = _what_is_wrong(found, 0 if is_alone else CALLS)
    if problem:
        recorder.take_out(f"on the sum that joins the processes: {problem}")
        found = ()
        if made < CALLS:
            function = plain()
            for _ in range(CALLS - made):
                result = function(argument)
    return result, found


def _what_is_wrong(found: Sequence[Dispatch], wanted: int) -> str:
    """Returns why this cannot be what :func:`run` has done; empty if it can."""
    if [each.number for each in found] != [*range(1, wanted + 1)]:
        return f"{len(found)} of {wanted} dispatches were recorded"
    for each in found:
        if not each.name or not each.fingerprint or not each.collectives or each.arguments is None:
            return f"dispatch {each.number} was recorded as {each}, without all that identifies it"
        if each.end:
            return f"dispatch {each.number} was recorded as {each.end}"
    if len({(each.name, each.fingerprint, each.arguments, each.results) for each in found}) > 1:
        return f"one computation was recorded as {', '.join(map(str, found))}"
    return ""
