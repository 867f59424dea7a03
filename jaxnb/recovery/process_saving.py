"""Writes this process's variables to a file, and takes them from one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from jaxnb.arrays.lost import loss_of
from jaxnb.arrays.process_names import paths_to
from jaxnb.recovery import files, process_variables
from jaxnb.recovery.fit_to_size import MisfitError
from jaxnb.recovery.messages import LostPart, Measured, Refused, Resized, StateFile, Taken
from jaxnb.recovery.process_arrays import Listing
from jaxnb.recovery.process_pickling import PackedState, pack
from jaxnb.recovery.process_spread import Resizing, meshes_of, resizing
from jaxnb.recovery.process_unpacking import unpack
from jaxnb.wire.process_sentinel import ThisProcess

_waiting: PackedState | None = None
"""What :func:`measure` has packed and :func:`write` has not written yet."""


def measure(process: ThisProcess, *, names: Sequence[str]) -> Measured:
    """Packs variables, and keeps them until they are written or dropped.

    Args:
        process: This process.
        names: Their names; all if there are none.
    """
    global _waiting
    missing = tuple(name for name in names if name not in process.shell.user_ns)
    if missing:
        return Measured({}, 0, (), missing)
    chosen = process_variables.to_save(process.shell, names)
    _waiting = pack(chosen.values, listing=Listing())
    return Measured(chosen.texts, _waiting.nbytes, _waiting.lost)


def write(process: ThisProcess, *, folder: str) -> StateFile | Refused:
    """Writes what :func:`measure` has packed to a file in a directory."""
    packed = _waiting
    assert packed is not None
    path = Path(folder) / files.name_of(process.index)
    try:
        found = files.write(path, packed.names, packed.pickle, packed.buffers, packed.arrays)
    except OSError as error:
        return Refused(f"could not write to {path.parent.parent} ({error.strerror or error})")
    finally:
        drop(process)
    return StateFile(path.name, path.stat().st_size, found)


def drop(process: ThisProcess) -> None:
    """Drops what :func:`measure` has packed."""
    global _waiting
    _waiting = None


def check(process: ThisProcess, *, path: str, expected: str) -> Refused | None:
    """Looks whether a file is as it was written; nothing in it is made yet."""
    try:
        is_same = files.digest(Path(path)) == expected
    except OSError as error:
        return Refused(f"could not read its file ({error.strerror or error})")
    return None if is_same else Refused("found its file not as it was written: do not use it")


def fits(process: ThisProcess, *, names: Sequence[str], resized: Resized) -> Refused | None:
    """Looks whether the arrays of a group of another size can be laid out here; makes nothing."""
    try:
        _resizing(process.shell, resized).require_fit(names)
    except MisfitError as error:
        return Refused(f"cannot lay out {error}")
    return None


def load(
    process: ThisProcess,
    *,
    path: str,
    names: Sequence[str],
    resized: Resized | None = None,
    maps: bool = False,
) -> Taken:
    """Binds the variables of a file.

    Args:
        process: This process.
        path: The file, which :func:`check` has found as it was written.
        names: Which of them; all if there are none.
        resized: The group was of another size when they were saved.
        maps: See :func:`~jaxnb.recovery.files.read`.
    """
    how, without = None, frozenset[str]()
    if resized is None:
        contents = files.read(Path(path), maps=maps)
    else:
        how, without = (
            _resizing(process.shell, resized, maps=maps),
            process_variables.PARTS_OF_PLACES,
        )
        contents = how.contents[resized.process]
        if resized.process != process.index:
            without |= process_variables.OWN_PARTS
    met = process_variables.binder(process.shell, names, without)
    if not names:
        # Until it is taken: an interrupt may end this, and a second one what would come after it.
        untaken = [name for name in contents.names if name not in process.shell.user_ns]
        why = "it was interrupted as it took its variables"
        advice = f"`%spmd_load {Path(path).parent}` binds it."
        process_variables.bind_lost(process, dict.fromkeys(untaken, why), advice=advice)
    with jax.transfer_guard("allow"), resizing(how):
        unpacked = unpack(contents.pickle, contents.buffers, contents.names, met)
    chosen = process_variables.bind(process.shell, unpacked.variables, names)
    lost = unpacked.lost_of(chosen)
    if names:  # what they share with other variables was met there
        found = paths_to(chosen, {*map(id, unpacked.stand_ins)})
        lost += [
            LostPart(found[id(each)].path, *loss_of(each))
            for each in unpacked.stand_ins
            if id(each) in found and not any(part.reason == loss_of(each)[1] for part in lost)
        ]
    else:
        lost += process_variables.bind_in_modules(unpacked.variables)
    return Taken(tuple(chosen), tuple(lost))


def _resizing(shell: Any, resized: Resized, *, maps: bool = False) -> Resizing:
    contents = {i: files.read(Path(path), maps=maps) for i, path in resized.paths.items()}
    meshes = meshes_of(shell.user_ns)
    return Resizing(resized.process, resized.num_devices, contents, meshes)
