"""Saving the variables of a group to a directory, and loading them from it: the notebook's side."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from jaxnb.errors import JaxnbError, ProcessDiedError, UsageError
from jaxnb.labels import capitalized, paths_label, processes_label
from jaxnb.launch.folder import write_text
from jaxnb.model.cells import CallRequest
from jaxnb.model.group import GroupInfo
from jaxnb.recovery.files import (
    MANIFEST,
    name_of,
    put_in_place,
    require_room,
    target_of,
    why_not_own,
)
from jaxnb.recovery.fit_to_size import Facts, lost_here, require_readable, resized_notes
from jaxnb.recovery.messages import (
    Lost,
    Measured,
    Possession,
    Refused,
    SavedState,
    Source,
    StateFile,
    Taken,
    losses,
)
from jaxnb.wire.asking import Channel

FORMAT = 3

PACK_SECONDS = 3600.0
"""How long a process may pack or unpack; classes' own code runs then. Interrupt ends it sooner."""

_PROCESS = "jaxnb.recovery.process_saving"
_SURVEY = CallRequest(f"{_PROCESS}.survey", {})


class Told(NamedTuple):
    """What is told of saved variables.

    Attributes:
        variables: What they are, in words.
        lost: What was not saved.
        only: Those that some processes do not have, with those that have them.
    """

    variables: Mapping[str, str]
    lost: tuple[Lost, ...]
    only: Mapping[str, Sequence[int]]


@contextmanager
def _noted(state: str) -> Iterator[None]:
    """Notes what state things are in with what ends the block from outside."""
    try:
        yield
    except (ProcessDiedError, KeyboardInterrupt) as error:
        error.add_note(state)
        raise


class Saver:
    """Saves and loads the variables of one group.

    Args:
        channel: To its processes.
        group: The group.

    Attributes:
        facts: What it is.
        num_processes: Its size.
    """

    def __init__(self, channel: Channel, group: GroupInfo) -> None:
        self._channel, self.facts = channel, Facts.of(group)
        self._hosts = {each.host for each in group.processes}
        self.num_processes = channel.num_processes

    def save(self, folder: str, names: Sequence[str], *, overwrite: bool) -> SavedState:
        """Saves variables: the whole directory is there in the end, or nothing is.

        Args:
            folder: The directory, which need not be there; the one above it must.
            names: The variables; all if there are none.
            overwrite: Replace what was saved there before.

        Raises:
            UsageError: The directory cannot be used, or a name is not on all processes.
            NotEnoughMemoryError: There is not so much room on the disk.
            JaxnbError: A process could not write, or gave no answer.
        """
        started = time.perf_counter()
        target = target_of(folder, overwrite=overwrite)
        unchanged = f"Nothing was saved: {target} is as it was."
        try:
            with _noted(unchanged):
                measured = self._all("measure", "packed", names=tuple(names))
                _require_names({i: answer.missing for i, answer in measured.items()})
                nbytes = sum(answer.nbytes for answer in measured.values())
                require_room(target.parent, nbytes)
                partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
                try:
                    written = self._all("write", "saved", nbytes, folder=str(partial))
                    _require_done(written, f"Nothing was saved{self._shared}")
                    text, told = self.manifest(measured, written)
                    write_text(partial / MANIFEST, text)
                except BaseException:
                    shutil.rmtree(partial, ignore_errors=True)
                    raise
            put_in_place(partial, target)
        finally:
            drop = CallRequest(f"{_PROCESS}.drop", {})
            self._channel.tell(dict.fromkeys(range(self.num_processes), drop))
        size = sum(file.nbytes for file in written.values())
        seconds = time.perf_counter() - started
        notes = _only_notes(told.only, told.variables)
        return SavedState(str(target), tuple(told.variables), size, told.lost, seconds, notes)

    @_noted("Variables may have been bound on some processes.")
    def load(self, folder: str, names: Sequence[str]) -> SavedState:
        """Binds saved variables on all processes; other variables stay.

        What is loaded was pickled: it is code, and is run. So a directory is taken only if nobody
        but this user can write to it.

        Args:
            folder: The directory.
            names: The variables; all if there are none.

        Raises:
            UsageError: It has no saved variables, or such that do not fit this group.
            JaxnbError: A file is not as it was written, or a process gave no answer; nothing was
                loaded.
        """
        started = time.perf_counter()
        path = Path(folder).expanduser().absolute()
        manifest = _read_manifest(path)
        saved_by = Facts(**manifest["group"])
        notes = require_readable(path, saved_by, self.facts)
        _require_known(path, names, manifest)
        found = _files_of(manifest, saved_by.num_processes)
        paths = {i: path / file.name for i, file in found.items()}
        rounds: dict[int, dict[int, dict[str, Any]]] = {}
        for i, file in found.items():  # each is read where it is used, if that is known
            number, index = divmod(i, self.num_processes)
            check = {"path": str(paths[i]), "expected": file.digest}
            rounds.setdefault(number, {})[index] = check
        for some in rounds.values():
            _require_done(self._each("check", "checked", some), "Nothing was loaded")
        taken = self.bind(paths, saved_by, names)
        if without := [i for i in range(saved_by.num_processes) if i not in found]:
            notes += (f"{capitalized(processes_label(without))} had died, and saved nothing.",)
        notes += resized_notes(saved_by.size, self.facts.size, "is not loaded")
        saved_lost = map(_lost, manifest["lost"])
        saved = lost_here(saved_lost, saved_by.num_processes, self.num_processes)
        bound = tuple(dict.fromkeys(name for answer in taken.values() for name in answer.names))
        lost = [each for each in saved if not names or each.variable in bound]
        lost += losses({i: answer.lost for i, answer in taken.items()})
        size = 0 if names else sum(file.nbytes for file in found.values())
        notes += _only_notes(manifest["only"], bound)
        seconds = time.perf_counter() - started
        return SavedState(str(path), bound, size, tuple(lost), seconds, notes, "loaded")

    def bind(
        self,
        paths: Mapping[int, Path],
        saved_by: Facts,
        names: Sequence[str] = (),
        *,
        maps: bool = False,
    ) -> dict[int, Taken]:
        """Has processes bind the variables of files, which are as they were written.

        In a group of another size each process binds those of the process of its index, the further
        ones those of the first; arrays over several processes are laid out anew.

        Args:
            paths: The file of each process that has one.
            saved_by: The group that has saved them.
            names: The variables; all if there are none.
            maps: Nobody else writes to the files: what is bound may stay in them.

        Raises:
            JaxnbError: One gave no answer; or something does not fit, and nothing is bound.
        """
        if saved_by.size == self.facts.size:
            sources = {i: Source(i, {i: str(path)}, 0, tuple(names)) for i, path in paths.items()}
        else:
            how = _all_of(paths), saved_by.num_devices, tuple(names)
            everyone = range(self.num_processes)
            sources = {i: Source(i if i in paths else min(paths), *how) for i in everyone}
            asked = {i: {"source": source} for i, source in sources.items()}
            _require_done(self._each("fits", "looked at", asked), "Nothing was loaded")
        return self._load_each(sources, "and other processes have theirs. Load again.", maps=maps)

    def fill(
        self,
        paths: Mapping[int, Path],
        names: tuple[str, ...],
        missing: Mapping[str, str],
    ) -> dict[int, Taken]:
        """Has processes that have no file bind what all others hold equal.

        Args:
            paths: The files of the others, as they were bound.
            names: What they hold equal.
            missing: What they do not, and why.

        Raises:
            JaxnbError: One gave no answer.
        """
        chosen = names or ("",)  # no names would mean all
        sources = {
            i: Source(min(paths), _all_of(paths), 0, chosen, missing)
            for i in range(self.num_processes)
            if i not in paths
        }
        return self._load_each(sources, "and the others keep theirs.", maps=True)

    @property
    def _shared(self) -> str:
        if len(self._hosts) == 1:
            return ""
        return ". Save to a folder on a file system that the hosts share"

    def _load_each(self, sources: Mapping[int, Source], *then: str, maps: bool) -> dict[int, Taken]:
        asked = {i: {"source": source, "maps": maps} for i, source in sources.items()}
        return self._each("load", "loaded", asked, *then)

    def _all(self, function: str, done: str, nbytes: int = 0, **arguments: Any) -> dict[int, Any]:
        everyone = dict.fromkeys(range(self.num_processes), arguments)
        return self._each(function, done, everyone, nbytes=nbytes)

    def _each(
        self,
        function: str,
        done: str,
        arguments: Mapping[int, dict[str, Any]],
        *then: str,
        nbytes: int = 0,
    ) -> dict[int, Any]:
        requests = {i: CallRequest(f"{_PROCESS}.{function}", each) for i, each in arguments.items()}
        answers = self._channel.ask_together(requests, nbytes, PACK_SECONDS)
        self._channel.require(answers, f"variables were {done}", *then)
        return answers

    def manifest(
        self, measured: Mapping[int, Measured], written: Mapping[int, StateFile]
    ) -> tuple[str, Told]:
        """Returns the text that tells of the files in a directory, and what it tells."""
        variables: dict[str, str] = {}
        for answer in measured.values():
            for name, text in answer.variables.items():
                variables.setdefault(name, text)
        lost = losses({i: answer.lost for i, answer in measured.items()})
        only = _only_on({i: answer.variables for i, answer in measured.items()})
        manifest = {
            "format": FORMAT,
            "saved": time.strftime("%Y-%m-%d %H:%M:%S"),
            "group": asdict(self.facts),
            "variables": variables,
            "only": only,
            "lost": [asdict(each) for each in lost],
            "files": [asdict(file) for _, file in sorted(written.items())],
        }
        return json.dumps(manifest, indent=1), Told(variables, lost, only)


def _all_of(paths: Mapping[int, Path]) -> dict[int, str]:
    return {i: str(path) for i, path in paths.items()}


def _only_on(variables: Mapping[int, Mapping[str, str]]) -> dict[str, list[int]]:
    """Returns the variables that some processes do not have, with those that have them."""
    found: dict[str, list[int]] = {}
    for index, names in variables.items():
        for name in names:
            found.setdefault(name, []).append(index)
    return {name: who for name, who in found.items() if len(who) < len(variables)}


def _only_notes(only: Mapping[str, Sequence[int]], names: Iterable[str]) -> tuple[str, ...]:
    by: dict[tuple[int, ...], list[str]] = {}
    for name in names:
        if name in only:
            by.setdefault(tuple(only[name]), []).append(name)
    return tuple(f"Only on {processes_label(who)}: {paths_label(of)}." for who, of in by.items())


def _require_known(path: Path, names: Sequence[str], manifest: dict[str, Any]) -> None:
    known = manifest["variables"]
    if missing := [name for name in names if name not in known]:
        raise UsageError(
            f"{path} has no {paths_label(missing)}. Nothing was loaded. It has "
            f"{paths_label(known, most=20)}."
        )
    for name in names:
        if name in manifest["only"]:
            raise UsageError(
                f"{path} has `{name}` on {processes_label(manifest['only'][name])} only. Nothing "
                "was loaded. Leave the names out to load what each process has."
            )


def _files_of(manifest: dict[str, Any], num_processes: int) -> dict[int, StateFile]:
    """Returns each process's file; one that had died has none."""
    found = {Path(each["name"]).name: StateFile(**each) for each in manifest["files"]}
    return {i: found[name_of(i)] for i in range(num_processes) if name_of(i) in found}


def _require_names(missing: Mapping[int, Sequence[str]]) -> None:
    for index, names in missing.items():
        if names:
            raise UsageError(
                f"Process {index} has no {paths_label(names)}. Nothing was saved. Only whole "
                "variables are saved."
            )


def _require_done(answers: Mapping[int, Any], otherwise: str) -> None:
    refused = {i: answer for i, answer in answers.items() if isinstance(answer, Refused)}
    if refused:
        answer = next(iter(refused.values()))
        same = [i for i, each in refused.items() if each == answer]
        raise JaxnbError(f"{capitalized(processes_label(same))} {answer.reason}. {otherwise}.")


def _read_manifest(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise UsageError(f"There is no directory {path}. Nothing was loaded.")
    if not (path / MANIFEST).is_file():
        raise UsageError(f"{path} has no saved variables ({MANIFEST}). Nothing was loaded.")
    for each in (path, path / MANIFEST):
        if reason := why_not_own(each):
            raise JaxnbError(f"{reason}. Nothing was loaded.")
    try:
        manifest: Any = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except ValueError as error:
        raise JaxnbError(
            f"{path / MANIFEST} is not as it was written ({error}). Nothing was loaded."
        ) from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UsageError(
            f"{path} was saved by another version of jaxnb, in a form that this one cannot read. "
            "Nothing was loaded."
        )
    try:
        group = Facts(**manifest["group"])
        [StateFile(**each) for each in manifest["files"]]
        [_lost(each) for each in manifest["lost"]]
        dict(manifest["only"]), dict(manifest["variables"])
        is_whole = bool(_files_of(manifest, group.num_processes)) and group.num_devices > 0
    except (LookupError, TypeError, ValueError):
        is_whole = False
    if not is_whole:
        raise JaxnbError(f"{path / MANIFEST} is not as it was written. Nothing was loaded.")
    found: dict[str, Any] = manifest
    return found


def _lost(plain: Mapping[str, Any]) -> Lost:
    tuples = {name: tuple(plain[name]) for name in ("processes", "also")}
    return Lost(**{**plain, **tuples})


def common(channel: Channel, living: Collection[int]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Returns the names that processes hold equal, and the others with what keeps them from it.

    Args:
        channel: To the processes.
        living: Those that have their variables.

    Raises:
        JaxnbError: A process gave no answer.
    """
    found = channel.ask_together(dict.fromkeys(living, _SURVEY), 0, PACK_SECONDS)
    channel.require(found, "variables were compared", "and the others keep theirs.")
    missing: dict[str, str] = {}
    for name in dict.fromkeys(name for possessions in found.values() for name in possessions):
        if reason := why_not({i: possessions.get(name) for i, possessions in found.items()}):
            missing[name] = reason
    return tuple(name for name in found[min(living)] if name not in missing), missing


def differing(channel: Channel) -> list[str] | None:
    """Returns the variables that differ by process; None if one does not tell."""
    asked = dict.fromkeys(range(channel.num_processes), _SURVEY)
    found = channel.ask_together(asked, 0, PACK_SECONDS)
    if not all(type(possessions) is dict for possessions in found.values()):
        return None
    digests: dict[str, set[bytes | None]] = {}
    for name in dict.fromkeys(name for possessions in found.values() for name in possessions):
        held = [possessions.get(name) for possessions in found.values()]
        digests[name] = {each and (b"" if each.is_drawn else each.digest) for each in held}
    return [name for name, those in digests.items() if len(those) > 1 and name.isidentifier()]


def why_not(held: Mapping[int, Possession | None]) -> str:
    """Returns why a value cannot be given to a new process; empty if it can.

    Args:
        held: What each of the others has under the name.
    """
    without = sorted(i for i, possession in held.items() if possession is None)
    possessions = [possession for possession in held.values() if possession is not None]
    if without:
        return f"process {without[0]} does not have it either"
    for i, possession in held.items():
        if possession is not None and not possession.digest:
            why = possession.reason
            carried = "" if why.startswith("cannot be pickled") else "cannot be carried over: "
            return f"that of process {i} {carried}{why}"
    if len({possession.digest for possession in possessions}) > 1:
        broken = [(i, each.lost[0]) for i, each in held.items() if each is not None and each.lost]
        if broken:
            i, path = min(broken)
            part = "it" if path.isidentifier() else f"a part of it, `{path}`"
            return f"process {i} has lost {part}"
        is_drawn = all(each.is_drawn for each in possessions)
        return "a figure is drawn by each process" if is_drawn else "differs by process"
    if len({possession.origins for possession in possessions}) > 1:
        apart = zip(possessions[0].arrays, *(each.origins for each in possessions), strict=True)
        path = next(path for path, *origins in apart if len(set(origins)) > 1)
        return f"the others hold shards of different arrays in `{path}`, from different steps"
    if len(possessions) == 1 and not possessions[0].is_common:
        return "only one process holds it, so it may not be the same for all"
    return ""
