"""Saving the variables of a group to a directory, and loading them from it: the notebook's side."""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from jaxnb.errors import JaxnbError, NotEnoughMemoryError, UsageError
from jaxnb.headroom import available_bytes
from jaxnb.labels import capitalized, format_bytes, paths_label, processes_label
from jaxnb.model import CallRequest, GroupInfo
from jaxnb.recovery.files import name_of
from jaxnb.recovery.messages import (
    Lost,
    Measured,
    Refused,
    SavedState,
    StateFile,
    Taken,
    losses,
)

MANIFEST = "variables.json"
"""What tells of the files in a directory, for people too."""

FORMAT = 1

PACK_SECONDS = 3600.0
"""How long a process may pack or unpack; classes' own code runs then. Interrupt ends it sooner."""

_PROCESS = "jaxnb.recovery.process_saving"


class Asked(Protocol):
    """What processes are asked through: a :class:`~jaxnb.asking.Channel`."""

    num_processes: int

    def ask_together(
        self, requests: Mapping[int, Any], nbytes: int = 0, seconds: float | None = None
    ) -> dict[int, Any]:
        """Asks them; code of the user's may compute."""

    def require(self, answers: Mapping[int, Any], doing: str, then: str = ...) -> None:
        """Raises what kept one from answering."""

    def tell(self, requests: Mapping[int, Any]) -> None:
        """Tells them something, and waits for no answer."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """What a saved state has to fit."""

    jax: str
    python: str
    platform: str
    num_processes: int
    devices_per_process: int

    @classmethod
    def of(cls, group: GroupInfo) -> _Facts:
        python = ".".join(platform.python_version_tuple()[:2])
        devices = {len(process.devices) for process in group.processes}
        count = len(group.processes)
        return cls(group.jax_version, python, group.platform, count, max(devices))


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


class Saver:
    """Saves and loads the variables of one group.

    Args:
        channel: To its processes.
        group: The group.

    Attributes:
        num_processes: Its size.
    """

    def __init__(self, channel: Asked, group: GroupInfo) -> None:
        self._channel, self._facts = channel, _Facts.of(group)
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
        target = _target(folder, overwrite=overwrite)
        try:
            measured = self._all("measure", "packed", names=tuple(names))
            _require_names({i: answer.missing for i, answer in measured.items()})
            nbytes = sum(answer.nbytes for answer in measured.values())
            _require_room(target.parent, nbytes)
            partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
            try:
                written = self._all("write", "saved", nbytes, folder=str(partial))
                _require_done(written, "Nothing was saved")
                told = self.write_manifest(partial, measured, written)
                _put_in_place(partial, target)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
        finally:
            self._channel.tell(self._requests("drop"))
        size = sum(file.nbytes for file in written.values())
        seconds = time.perf_counter() - started
        notes = _only_notes(told.only, told.variables)
        return SavedState(str(target), tuple(told.variables), size, told.lost, seconds, notes)

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
        notes = _require_fit(path, manifest["group"], self._facts)
        _require_known(path, names, manifest)
        found = _files_of(manifest, self._channel.num_processes)
        for file in found.values():
            _require_own(path / file.name)
        checks = {
            i: {"path": str(path / file.name), "expected": file.digest} for i, file in found.items()
        }
        _require_done(self._each("check", "checked", checks), "Nothing was loaded")
        taken = self.bind(path, found, names)
        if without := [i for i in range(self._channel.num_processes) if i not in found]:
            notes += (f"{capitalized(processes_label(without))} had died, and saved nothing.",)
        saved = [
            Lost(**{**each, "processes": tuple(each["processes"])}) for each in manifest["lost"]
        ]
        bound = tuple(dict.fromkeys(name for answer in taken.values() for name in answer.names))
        lost = [each for each in saved if not names or each.variable in bound]
        lost += losses({i: answer.lost for i, answer in taken.items()})
        size = 0 if names else sum(file.nbytes for file in found.values())
        notes += _only_notes(manifest["only"], bound)
        seconds = time.perf_counter() - started
        return SavedState(str(path), bound, size, tuple(lost), seconds, notes, "loaded")

    def bind(
        self, folder: Path, files: Mapping[int, StateFile], names: Sequence[str] = ()
    ) -> dict[int, Taken]:
        """Has processes bind the variables of files, which are as they were written.

        Args:
            folder: The directory.
            files: The file of each process that is to.
            names: The variables; all if there are none.

        Raises:
            JaxnbError: One gave no answer.
        """
        loads = {
            i: {"path": str(folder / file.name), "names": tuple(names)} for i, file in files.items()
        }
        return self._each("load", "loaded", loads, "and other processes have theirs. Load again.")

    def _requests(self, function: str, **arguments: Any) -> dict[int, CallRequest]:
        everyone = range(self._channel.num_processes)
        return dict.fromkeys(everyone, CallRequest(f"{_PROCESS}.{function}", arguments))

    def _all(self, function: str, done: str, nbytes: int = 0, **arguments: Any) -> dict[int, Any]:
        return self._asked(self._requests(function, **arguments), done, nbytes)

    def _each(
        self, function: str, done: str, arguments: Mapping[int, dict[str, Any]], *then: str
    ) -> dict[int, Any]:
        requests = {i: CallRequest(f"{_PROCESS}.{function}", each) for i, each in arguments.items()}
        return self._asked(requests, done, 0, *then)

    def _asked(
        self, requests: Mapping[int, Any], done: str, nbytes: int, *then: str
    ) -> dict[int, Any]:
        answers = self._channel.ask_together(requests, nbytes, PACK_SECONDS)
        self._channel.require(answers, f"variables were {done}", *then)
        return answers

    def write_manifest(
        self, folder: Path, measured: Mapping[int, Measured], written: Mapping[int, StateFile]
    ) -> Told:
        """Writes what tells of the files in a directory; returns what it tells."""
        variables: dict[str, str] = {}
        for answer in measured.values():
            variables |= answer.variables
        lost = losses({i: answer.lost for i, answer in measured.items()})
        only = _only_on({i: answer.variables for i, answer in measured.items()})
        manifest = {
            "format": FORMAT,
            "saved": time.strftime("%Y-%m-%d %H:%M:%S"),
            "group": asdict(self._facts),
            "variables": variables,
            "only": only,
            "lost": [asdict(each) for each in lost],
            "files": [asdict(file) for _, file in sorted(written.items())],
        }
        with (folder / MANIFEST).open("w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=1, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        return Told(variables, lost, only)


@contextmanager
def scratch_folder(nbytes: int) -> Iterator[Path]:
    """Yields a directory for variables on their way: in memory, where the system has that.

    It is removed if what is done with it succeeds; else it is left if there is anything in it, and
    a note says where it is.

    Args:
        nbytes: Their size.

    Raises:
        NotEnoughMemoryError: There is no room for them.
    """
    folder = Path(tempfile.mkdtemp(prefix="jaxnb-", dir=_with_room(nbytes)))
    try:
        yield folder
    except BaseException as error:
        if not folder.is_dir():  # somebody has removed it
            error.add_note(f"{folder}, which had the variables, has been removed meanwhile.")
        elif any(folder.iterdir()):
            error.add_note(
                "Not all of the new processes have their variables. These are in "
                f"{folder}: `%spmd_load {folder}` binds them in a group of this size. Then remove "
                "it."
            )
        else:
            folder.rmdir()
        raise
    shutil.rmtree(folder, ignore_errors=True)


def _with_room(nbytes: int) -> Path:
    """Returns where there is room for a second copy of variables: in memory, or on the disk."""
    memory, disk = Path("/dev/shm"), Path(tempfile.gettempdir())
    rooms = {disk: shutil.disk_usage(disk).free}
    if os.access(memory, os.W_OK):
        rooms = {memory: min(shutil.disk_usage(memory).free, available_bytes())} | rooms
    for place, room in rooms.items():
        if nbytes < room:
            return place
    told = ", ".join(f"{format_bytes(room)} in {place}" for place, room in rooms.items())
    raise NotEnoughMemoryError(
        f"The variables of all processes take {format_bytes(nbytes)}, and there is no room for a "
        f"second copy: {told}. Nothing has changed. Delete some, or save what you need to a larger "
        "disk: `%spmd_save DIR NAMES`."
    )


def _target(folder: str, *, overwrite: bool) -> Path:
    target = Path(folder).expanduser().absolute()
    if not target.parent.is_dir():
        raise UsageError(
            f"There is no directory {target.parent}. Nothing was saved. Make it: `!mkdir -p "
            f"{target.parent}`."
        )
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return target
    if not target.is_dir():
        raise UsageError(f"{target} is a file. Nothing was saved. Name a directory.")
    if not (target / MANIFEST).is_file():
        raise UsageError(
            f"{target} is there, and has no saved variables. Nothing was saved. Name a directory "
            "that is not there yet."
        )
    if not overwrite:
        raise UsageError(
            f"{target} has saved variables already. Nothing was saved. Name another directory, or "
            "replace them: `%spmd_save --overwrite DIR`, `spmd.save(dir, overwrite=True)`."
        )
    return target


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
    found = {each["name"]: StateFile(**each) for each in manifest["files"]}
    return {i: found[name_of(i)] for i in range(num_processes) if name_of(i) in found}


def _require_names(missing: Mapping[int, Sequence[str]]) -> None:
    for index, names in missing.items():
        if names:
            raise UsageError(
                f"Process {index} has no {paths_label(names)}. Nothing was saved. Only whole "
                "variables are saved."
            )


def _require_room(folder: Path, nbytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if nbytes > free:
        raise NotEnoughMemoryError(
            f"The variables of all processes take {format_bytes(nbytes)}, and {folder} has "
            f"{format_bytes(free)} free. Nothing was saved. Name the variables to save, or another "
            "directory."
        )


def _require_done(answers: Mapping[int, Any], otherwise: str) -> None:
    refused = {i: answer for i, answer in answers.items() if isinstance(answer, Refused)}
    if refused:
        answer = next(iter(refused.values()))
        same = [i for i, each in refused.items() if each == answer]
        raise JaxnbError(f"{capitalized(processes_label(same))} {answer.reason}. {otherwise}.")


def _put_in_place(partial: Path, target: Path) -> None:
    """Replaces a directory by another at once, as far as the file system can."""
    if not target.exists() or not any(target.iterdir()):
        partial.rename(target)  # an empty directory is replaced
        return
    old = partial.with_name(f"{partial.name}-old")
    target.rename(old)
    partial.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _read_manifest(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise UsageError(f"There is no directory {path}. Nothing was loaded.")
    if not (path / MANIFEST).is_file():
        raise UsageError(f"{path} has no saved variables ({MANIFEST}). Nothing was loaded.")
    for each in (path, path / MANIFEST):
        _require_own(each)
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
    found: dict[str, Any] = manifest
    return found


def _require_own(path: Path) -> None:
    """Takes what nobody else can have written: it is unpickled, and so run."""
    try:
        found = path.stat()
    except OSError as error:
        raise JaxnbError(f"{path} cannot be read ({error.strerror}). Nothing was loaded.") from None
    if found.st_uid not in (os.getuid(), 0) or found.st_mode & 0o022:
        raise JaxnbError(
            f"{path} can be written by other users than you, and to load variables is to run code. "
            "Nothing was loaded. If you trust it, make it yours: `chown`, `chmod go-w`."
        )


def _require_fit(path: Path, saved: dict[str, Any], now: _Facts) -> tuple[str, ...]:
    """Returns what there is to say where it fits.

    Raises:
        UsageError: It does not fit.
    """
    for field, sentence in (
        ("python", "by Python {}; this is {}, which cannot read its functions' code"),
        ("platform", "on {} devices; these are {}"),
        ("num_processes", "by a group of {} processes; this one has {} processes"),
        ("devices_per_process", "with {} devices per process; this group has {}"),
    ):
        if saved[field] != getattr(now, field):
            raise UsageError(
                f"{path} was saved {sentence.format(saved[field], getattr(now, field))}. Nothing "
                f"was loaded. It fits a group of `%spmd_start -n {saved['num_processes']} "
                f"--devices-per-process {saved['devices_per_process']} --platform "
                f"{saved['platform']}`, with Python {saved['python']}."
            )
    if saved["jax"] == now.jax:
        return ()
    return (f"Saved with JAX {saved['jax']}, loaded with {now.jax}.",)
