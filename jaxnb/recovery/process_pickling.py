"""The variables of this process, packed for another process that takes its place.

Names are packed together: what they share stays shared. What cannot be packed does not keep the
rest from it: a stand-in takes its place that raises at each use, and it is named, with its path.
"""

from __future__ import annotations

import io
import itertools
import mmap
import pickle
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from pickle import whichmodule  # type: ignore[attr-defined]
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np

from jaxnb.arrays.lost import LostValue, loss_of
from jaxnb.arrays.process_names import Found, is_of_user, paths_to
from jaxnb.recovery import files
from jaxnb.recovery.files import Contents
from jaxnb.recovery.messages import Lost, StateFile
from jaxnb.recovery.process_arrays import Check, Listing, PartLostError, wait
from jaxnb.recovery.process_losses import Loss, because_of, others_of, reason_of, reduced_lost
from jaxnb.recovery.process_pickling_code import CodePickler
from jaxnb.wire.pickling import OutOfBand, adjacent


def with_elements(found: Any) -> Any:
    """Takes the elements out of iterators at once: what fails there is this object's."""
    if not isinstance(found, tuple) or len(found) < 4:
        return found
    elements = (each if each is None else iter([*each]) for each in found[3:5])
    return (*found[:3], *elements, *found[5:])


def checked(value: Any, found: Any) -> Any:
    """Returns what an object says of how to pickle it, if pickle takes it.

    Raises:
        pickle.PicklingError: It does not.
    """
    if isinstance(found, str):
        if type(value) is BuiltinFunctionType or _is_global(value, found):
            return found
        raise pickle.PicklingError(f"cannot be found by its name, {found}")
    if not (isinstance(found, tuple) and 2 <= len(found) <= 6 and callable(found[0])):
        raise pickle.PicklingError(f"its __reduce__ returned {type(found).__name__}")
    if not isinstance(found[1], tuple):
        raise pickle.PicklingError("its __reduce__ returned no tuple of arguments")
    return found


def error_reduced(error: BaseException, found: Any) -> Any:
    """Adds what pickle leaves out of an exception: what it was raised from.

    Args:
        error: The exception.
        found: What it says itself of how to pickle it.
    """
    cause, context = error.__cause__, error.__context__
    if (cause is None and context is None) or not isinstance(found, tuple) or len(found) > 3:
        return found
    own = found[2] if len(found) == 3 else None
    return (*found[:2], (own, cause, context, error.__suppress_context__), None, None, _fill_error)


def _fill_error(error: BaseException, state: tuple[Any, ...]) -> None:
    own, error.__cause__, error.__context__, error.__suppress_context__ = state
    if own is not None:
        error.__setstate__(own)


def _is_global(value: Any, name: str) -> bool:
    home = whichmodule(value, name)
    if home == "__main__":  # it is not bound yet when it is needed
        return False
    module: Any = sys.modules.get(home)
    for part in name.split("."):
        module = getattr(module, part, None)
    return module is value


def _reduced_own(value: Any, names: dict[str, dict[int, str]]) -> Any:
    """Returns what imports an object that is a library's own: ``jax.config``, ``sys.stdout``.

    A copy would be another object than that which the library goes on to use.

    Args:
        value: The object.
        names: By module what was found in it; more is added.

    Returns:
        What a ``reducer_override`` returns; NotImplemented if no module has it.
    """
    for name in ("stdin", "stdout", "stderr"):
        if value is getattr(sys, name):
            return _attribute, ("sys", name)
    kind = type(value)
    if getattr(kind, "_instance", None) is value and hasattr(kind, "instance"):
        return _attribute_of, (kind, "instance")  # IPython's shell: there is one
    home = kind.__module__
    if issubclass(kind, type | FunctionType) or home in ("builtins", "__main__"):
        return NotImplemented
    if home not in names:
        inside = vars(sys.modules[home]) if home in sys.modules else {}
        names[home] = {id(each): n for n, each in inside.items() if type(each).__module__ == home}
    found = names[home].get(id(value))
    return NotImplemented if found is None else (_attribute, (home, found))


def _attribute_of(kind: type, name: str) -> Any:
    return getattr(kind, name)()


def _attribute(module: str, name: str) -> Any:
    return getattr(__import__(module, fromlist=[name]), name)


MOST_ASKED = 5
"""So often an object is asked that another thread changes meanwhile."""

MAX_PASSES = 8
"""So often names are packed again without what was found to hold a part that is lost."""


_NOBODY_IS_ASKED_OF = (dict, list, tuple, set, frozenset, bytearray, str, bytes, int, float)
"""Objects of these types pickle itself takes apart."""

Answers = dict[int, tuple[Any, Any]]
"""What objects of the user's classes have said of how to pickle them, by id: each is asked once."""


@dataclass(frozen=True, slots=True)
class PackedState:
    """Variables, packed.

    Attributes:
        contents: What a file of them has.
        lost: What could not be packed.
    """

    contents: Contents
    lost: tuple[Lost, ...]

    @property
    def nbytes(self) -> int:
        """The size of all of it."""
        _, pickled, buffers, _, parts = self.contents
        sizes = (int(each.nbytes) for each in (*buffers, *parts))
        return sum(sizes, len(pickled))

    def write(self, path: Path) -> StateFile:
        """Writes it to a file.

        Raises:
            OSError: There is no room, say. What was written is left.
        """
        digest = files.write(path, self.contents)
        return StateFile(path.name, path.stat().st_size, digest)


@dataclass(slots=True)
class Steps:
    """How far a packing has come, for another thread to look at.

    Attributes:
        count: How many objects have been asked how to pickle them.
        asked: The object that is being asked, if code of the user's may run then; else None.
        reads: Whether an array is being read, which may have to be waited for.
        name: The name whose value is being packed.
        gone: Objects that need not be asked, with the names that they are in and the reasons.
    """

    count: int = 0
    asked: Any = None
    reads: bool = False
    name: str = ""
    gone: list[tuple[Any, str, str]] = field(default_factory=list)


def pack(
    variables: Mapping[str, Any],
    check: Check = wait,
    steps: Steps | None = None,
    listing: Listing | None = None,
) -> PackedState:
    """Packs variables; whatever they are, it does not fail for one that cannot be packed.

    Runs the user's code: ``__reduce__`` and ``__getstate__`` of their classes, which may compute.
    Arrays are not copied: they must live until the buffers have been read.

    Args:
        variables: Names and values.
        check: Looks at each array before it is read.
        steps: Told how far it has come.
        listing: Lists the arrays over several processes.

    Raises:
        MemoryError: There is no room for the pickles.
    """
    lost: dict[int, Loss] = {}
    answers: Answers = {}
    steps, listing = steps or Steps(), listing or Listing()
    for value, name, reason in steps.gone:
        _lose(lost, value, reason, name)

    def once() -> tuple[dict[str, int], bytes, tuple[np.ndarray[Any, Any], ...]]:
        """Packs all names; notes in ``lost`` what cannot be packed."""
        ends: list[int] = []
        while len(ends) <= len(variables):
            file, out_of_band, ends = io.BytesIO(), OutOfBand(), [0]
            listing.clear()
            pickler = StatePickler(file, out_of_band, check, lost, answers, steps, listing)
            for name, value in variables.items():
                steps.name = name
                is_lost = id(value) in lost and (lost[id(value)].is_whole or _is_plain(value))
                pickler.stand_in = lost[id(value)].stand_in if is_lost else None
                dumped = value if pickler.stand_in is None else pickler.stand_in
                try:
                    pickler.dump((name, dumped))
                except _not_theirs():
                    raise
                except BaseException as error:  # nested too deep, or code of the user's
                    # What the pickler remembers of this name was not written: from the beginning.
                    was_known = id(value) in lost
                    _lose(lost, value, reason_of(error), name).is_whole = was_known
                    break
                ends.append(file.tell())
        sizes = (end - start for start, end in itertools.pairwise(ends))
        names = dict(zip(variables, sizes, strict=True))
        return names, file.getvalue(), tuple(out_of_band.buffers)

    packed = once()
    for _ in range(MAX_PASSES):
        if not lost:
            break
        known = set(lost)
        _name_lost(variables, lost)
        packed = once()
        if lost.keys() == known:
            break
    else:
        # Objects that give something else each time they are asked: their names are lost whole.
        for each in [*lost.values()]:
            _lose(lost, variables[each.name], each.reason, each.name)
        packed = once()
        _name_lost(variables, lost)
    contents = Contents(*packed, listing.named(variables), listing.parts)
    return PackedState(contents, _told(lost))


def _told(lost: Mapping[int, Loss]) -> tuple[Lost, ...]:
    return tuple(dict.fromkeys(each.part for each in lost.values() if each.path))


def _lose(lost: dict[int, Loss], value: Any, reason: str, name: str) -> Loss:
    return lost.setdefault(id(value), Loss(value, reason, name))


def _name_lost(variables: Mapping[str, Any], lost: dict[int, Loss]) -> None:
    """Gives what is lost its path, and the other names of it.

    Of a library's object with a lost part the whole is lost.
    """
    found = paths_to(variables, {id(each.value) for each in lost.values()})
    for key, each in [*lost.items()]:
        where = found.get(key) or Found(each.name, (variables[each.name],))
        whole = where.outermost_opaque
        if whole is None or whole is each.value:
            each.path = where.path
            if key not in found and variables[each.name] is not each.value:
                # Nobody can tell where it is: the name is lost as a whole.
                each.path = ""
                _lose(lost, variables[each.name], because_of(each), each.name)
        else:
            each.path = ""  # it is told with the whole
            _lose(lost, whole, because_of(each), each.name)
    also = others_of(variables, {id(each.value): each.path for each in lost.values() if each.path})
    for key, names in also.items():
        lost[key].also = names


def _is_plain(value: Any) -> bool:
    kind = type(value)
    return any(kind is each for each in _NOBODY_IS_ASKED_OF)  # its metaclass may compare


class StatePickler(CodePickler):
    """Pickles values; of what cannot be pickled a :class:`~jaxnb.arrays.lost.LostValue`.

    Args:
        file: Where to write.
        out_of_band: Takes buffers.
        check: Looks at each array before it is read.
        lost: What is known to be lost, by id; what is found is added, under the name of ``steps``.
        answers: See :data:`Answers`.
        steps: Told how far it has come.
        listing: See :func:`pack`.

    Attributes:
        stand_in: What stands for its whole value, if that is lost.
    """

    def __init__(
        self,
        file: Any,
        out_of_band: OutOfBand,
        check: Check,
        lost: dict[int, Loss],
        answers: Answers,
        steps: Steps,
        listing: Listing,
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=out_of_band)
        self._check, self._lost, self._answers, self._steps = check, lost, answers, steps
        self._listing = listing
        self._own: dict[str, dict[int, str]] = {}
        self.stand_in: LostValue | None = None

    def reducer_override(self, value: Any) -> Any:
        """Tells how to pickle an object; pickle asks for each that is not plain."""
        self._steps.count += 1
        if id(value) not in self._lost:
            try:
                return self._reduced(value)
            except _not_theirs():
                raise
            except BaseException as error:  # a user's __reduce__, or a property of theirs
                found = _lose(self._lost, value, reason_of(error), self._steps.name)
                if isinstance(error, PartLostError):
                    found.shards = error.shards
            finally:
                self._steps.asked, self._steps.reads = None, False
        return self._of_stand_in(self._lost[id(value)].stand_in)

    def tracked(self, class_id: str) -> Any:
        """Returns what stands for the id by which cloudpickle knows a class again."""
        return "" if self._listing.compares else class_id  # each process makes it by chance

    def _of_stand_in(self, lost: LostValue) -> Any:
        # What this process alone has of an array is nothing to others.
        return lost.__reduce__() if self._listing.compares else reduced_lost(lost)

    def _reduced(self, value: Any) -> Any:
        if id(value) in self._answers:
            return self._answers[id(value)][1]
        found = self._asked(value)
        if is_of_user(type(value).__module__) and isinstance(found, tuple) and len(found) < 4:
            self._answers[id(value)] = value, found
        return found

    def _asked(self, value: Any) -> Any:
        if value is self.stand_in and value is not None:
            return self._of_stand_in(value)
        if issubclass(type(value), LostValue):  # it is lost further on too, and is told again
            raise pickle.PicklingError(loss_of(value)[1])
        self._steps.reads = True
        found = self._listing.reduced(value, self._check, self._steps.name)
        self._steps.reads = False
        if found is NotImplemented:
            found = _reduced_own(value, self._own)
        if found is not NotImplemented:
            return found
        # Not isinstance, here and elsewhere: an object's `__class__` may be code of the user's.
        kind = type(value)
        if reason := _why_it_stays(value, kind):
            raise pickle.PicklingError(reason)
        self._steps.asked = value
        found = super().reducer_override(value)
        if found is NotImplemented:
            found = adjacent(value)
        if found is not NotImplemented:
            return checked(value, found)
        if issubclass(kind, type | FunctionType):
            return NotImplemented  # by its name
        found = self._said_by(value)
        return error_reduced(value, found) if issubclass(kind, BaseException) else found

    def _said_by(self, value: Any) -> Any:
        """Returns what an object itself says of how to pickle it, with all of its elements.

        Another thread may change it meanwhile: then it is asked once more.
        """
        reduce = self.dispatch_table.get(type(value))
        for left in reversed(range(MOST_ASKED)):
            found = value.__reduce_ex__(5) if reduce is None else reduce(value)
            try:
                return with_elements(checked(value, found))
            except RuntimeError:  # changed size during iteration
                if not left:
                    raise
        raise AssertionError


def _why_it_stays(value: Any, kind: type) -> str:
    """Returns why an object is of use in its own process only, though pickle would copy it."""
    if issubclass(kind, io.IOBase) and not issubclass(kind, io.BytesIO | io.StringIO):
        return "an open file"
    if issubclass(kind, np.memmap):
        memory = value
        while isinstance(memory, np.ndarray):
            memory = memory.base
        if isinstance(memory, mmap.mmap):  # else it was computed from one
            return "a file mapped into memory; open it again"
    if issubclass(kind, tempfile.TemporaryDirectory | weakref.finalize):
        return "what it cleans up goes with its process"
    return ""


def _not_theirs() -> tuple[type[BaseException], ...]:
    """Returns what is raised while code of the user's runs, and does not come from there."""
    is_main = threading.current_thread() is threading.main_thread()
    return (MemoryError, KeyboardInterrupt) if is_main else (MemoryError,)
