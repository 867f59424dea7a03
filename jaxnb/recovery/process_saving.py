"""Writes this process's variables to a file, takes them from one, and describes them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import jax
from jax.sharding import Mesh

from jaxnb.arrays.lost import LostValue, loss_of
from jaxnb.arrays.process_canonical import canonical_digest
from jaxnb.arrays.process_describe import require_tree
from jaxnb.compat.jax_arrays import array_of_ref_now
from jaxnb.recovery import files, process_variables
from jaxnb.recovery.fit_to_size import MisfitError
from jaxnb.recovery.messages import Measured, Possession, Refused, Source, StateFile, Taken
from jaxnb.recovery.process_arrays import Listing
from jaxnb.recovery.process_pickling import PackedState, pack
from jaxnb.recovery.process_pickling_code import is_found_by_name
from jaxnb.recovery.process_reading import Reading
from jaxnb.recovery.process_variables import unwrapped
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
    _waiting = pack(chosen.values)
    return Measured(chosen.texts, _waiting.nbytes, _waiting.lost)


def write(process: ThisProcess, *, folder: str) -> StateFile | Refused:
    """Writes what :func:`measure` has packed to a file in a directory."""
    packed = _waiting
    assert packed is not None
    path = Path(folder) / files.name_of(process.index)
    try:
        return packed.write(path)
    except OSError as error:
        chosen, why = path.parent.parent, error.strerror or error
        if chosen.is_dir() and not path.parent.is_dir():  # which the notebook has made in it
            why = "its host has another directory of that name than the notebook's"
        return Refused(f"could not write to {chosen} ({why})")
    finally:
        drop(process)


def drop(process: ThisProcess) -> None:
    """Drops what :func:`measure` has packed."""
    global _waiting
    _waiting = None


def check(process: ThisProcess, *, path: str, expected: str) -> Refused | None:
    """Looks whether a file is this user's, and as it was written; nothing in it is made yet."""
    if reason := files.why_not_own(Path(path)):
        return Refused(f"found that {reason}")
    try:
        is_same = files.digest(Path(path)) == expected
    except OSError as error:
        return Refused(f"could not read its file ({error.strerror or error})")
    return None if is_same else Refused("found its file not as it was written: do not use it")


def fits(process: ThisProcess, *, source: Source) -> Refused | None:
    """Looks whether the arrays of a group of another size can be laid out here; makes nothing."""
    try:
        Reading(source, process.shell.user_ns).require_fit()
    except MisfitError as error:
        return Refused(f"cannot lay out {error}")
    return None


def load(process: ThisProcess, *, source: Source, maps: bool = False) -> Taken:
    """Binds the variables of a file.

    Args:
        process: This process.
        source: The files, which :func:`check` has found as they were written.
        maps: See :func:`~jaxnb.recovery.files.read`.
    """
    reading = Reading(source, process.shell.user_ns, maps=maps)
    without = frozenset[str]()
    if reading.is_resized:
        without = process_variables.PARTS_OF_PLACES
        without |= frozenset() if reading.is_own else process_variables.OWN_PARTS
    _note_untaken(process, reading)
    with jax.transfer_guard("allow"):
        found = reading.unpacked(process_variables.binder(process.shell, source.names, without))
    chosen = process_variables.bind(process.shell, found, source.names)
    lost = reading.losses(chosen)
    return Taken(tuple(chosen), (*lost, *process_variables.bind_in_modules(found, source.names)))


def _note_untaken(process: ThisProcess, reading: Reading) -> None:
    """Has each use of a variable raise until it is taken: an interrupt may end that."""
    source = reading.source
    if not source.names:
        untaken = [each for each in reading.contents.names if each not in process.shell.user_ns]
        why = "it was interrupted as it took its variables"
        advice = f"`%spmd_load {Path(source.paths[source.process]).parent}` binds it."
        process_variables.bind_lost(process, dict.fromkeys(untaken, why), advice=advice)
    elif not (reading.is_own or reading.is_resized):
        why = "it was interrupted as it took what the others hold"
        missing = {**dict.fromkeys(source.names, why), **source.missing}
        process_variables.bind_lost(process, missing, ", which is new")


def survey(process: ThisProcess) -> dict[str, Possession]:
    """Describes what this process has, so that it can be compared with what others have."""
    values = process_variables.to_give(process.shell)
    return {name: _possession(name, value) for name, value in values.items()}


def _possession(name: str, value: Any) -> Possession:
    if type(value) is LostValue:
        return Possession(b"", loss_of(value)[1])
    listing = Listing(compares=True)
    packed = pack({name: value}, listing=listing)
    if new := [part for part in packed.lost if not part.is_old]:
        return Possession(b"", new[0].reason)
    return Possession(
        _digest(packed),
        is_common=name in process_variables.COMMON_PARTS
        or _is_code(value)
        or ((listing.is_common or bool(packed.lost)) and _has_nothing_of_its_own(value)),
        arrays=tuple(array.path or name for array in packed.contents.arrays),
        origins=tuple(array.origin for array in packed.contents.arrays),
        lost=tuple(part.path for part in packed.lost),
        is_drawn=type(value).__module__.startswith("matplotlib."),
    )


def _digest(packed: PackedState) -> bytes:
    total = hashlib.blake2b(canonical_digest(packed.contents.pickle), digest_size=16)
    for buffer in packed.contents.buffers:
        total.update(buffer.data)
    return total.digest()


def _has_nothing_of_its_own(value: Any) -> bool:
    """Whether all leaves of a value are of several processes: arrays, meshes, shardings, code.

    Anything else in it (a rank, an array of this process) may differ on a process that is gone.
    """
    function = unwrapped(value)[-1]
    try:
        if isinstance(function, FunctionType):
            cells = [each.cell_contents for each in function.__closure__ or ()]
            value = [cells, function.__defaults__, function.__kwdefaults__]
        require_tree(value)
        leaves = jax.tree.leaves(value)
    except Exception:  # of the user's code that flattens their class, or of an empty cell
        return False
    return all(map(_is_of_several, leaves))


def _is_of_several(leaf: Any) -> bool:
    array = array_of_ref_now(leaf)
    leaf = leaf if array is None else array
    if isinstance(leaf, jax.Array):
        return not leaf.is_fully_addressable
    shared = Mesh | jax.sharding.Sharding | jax.P | LostValue
    return isinstance(leaf, shared) or _is_code(leaf)


def _is_code(value: Any) -> bool:
    """Whether a value is nothing but code, which all processes have run alike."""
    if isinstance(value, ModuleType | type):
        return True
    function = unwrapped(value)[-1]  # of what was jitted, say
    if not isinstance(function, FunctionType):
        return False
    has_values = function.__closure__ or function.__defaults__ or function.__kwdefaults__
    return is_found_by_name(function) or not has_values
