"""What is lost on the way to another process, and what stands in its place."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from jaxnb.arrays.lost import MAKE_AGAIN, MAKE_ANEW, LostArray, LostValue, loss_of
from jaxnb.arrays.process_names import holders_of
from jaxnb.labels import paths_label
from jaxnb.recovery.messages import Lost
from jaxnb.recovery.process_arrays import is_array, reads_own


@dataclass(slots=True)
class Loss:
    """An object that cannot be packed; kept, so that its id stays its own.

    Of one that ``is_whole`` not even the type is asked: what asked it before has failed.
    """

    value: Any
    reason: str
    name: str
    path: str = ""
    also: tuple[str, ...] = ()
    shards: tuple[tuple[Any, Any], ...] = ()
    is_whole: bool = False

    @property
    def part(self) -> Lost:
        """What is told of it."""
        is_old = issubclass(type(self.value), LostValue)
        kind = type_text(self.value)
        return Lost(self.path or self.name, kind, (), self.reason, is_old, self.also)

    @property
    def stand_in(self) -> LostValue:
        """What takes its place: each use of it raises."""
        value = self.value
        if issubclass(type(value), LostValue):
            return cast(LostValue, value)
        if is_array(self.value):
            advice = MAKE_ANEW if self.shards else MAKE_AGAIN
            part = self.part
            return LostArray(lost_text(part), self.shards, advice, part.type, self.reason)
        return LostValue(lost_text(self.part), kind=self.part.type, reason=self.reason)


def because_of(each: Loss) -> str:
    """Returns why what has an object in it is lost as a whole."""
    kind = type_text(each.value)
    has = f"has {'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"
    is_said = each.reason == f"cannot be pickled: {kind}"
    return f"{has}, which cannot be pickled" if is_said else f"{has}: {each.reason}"


def type_text(value: Any) -> str:
    """Returns what something is, in a word: ``"generator"``, ``"CheckpointManager"``."""
    kind = type(value)
    if issubclass(kind, LostValue):
        return loss_of(value)[0]
    if is_array(value):
        return f"{value.dtype}{list(value.shape)}"
    return str.__str__(kind.__qualname__)  # it may be of a class of the user's


_OF_PICKLE = re.compile(r"cannot pickle '(?:\w+\.)*(\w+)' object")


def reason_of(error: BaseException) -> str:
    """Returns why something cannot be packed; what pickle itself says needs no type before it."""
    if isinstance(error, RecursionError):
        return "nested too deep"
    if isinstance(error.__cause__, RecursionError):
        return reason_of(error.__cause__)
    if found := _OF_PICKLE.fullmatch(str(error)):
        return f"cannot be pickled: {found[1]}"
    is_of_pickle = isinstance(error, TypeError | pickle.PicklingError) and str(error)
    return str(error) if is_of_pickle else f"{type(error).__name__}: {error}".rstrip(": ")


def lost_text(part: Lost) -> str:
    """Returns what has become of a part, as the beginning of a sentence."""
    also = f", also in {paths_label(part.also)} until bound again" if part.also else ""
    return f"`{part.path}` ({part.type}{also}) was not carried over: {part.reason}"


def others_of(variables: Mapping[str, Any], paths: Mapping[int, str]) -> dict[int, tuple[str, ...]]:
    """Returns which other variables hold what is lost; those of IPython's are of no interest.

    Args:
        variables: All of them.
        paths: Where each thing is told to be, by its id.
    """
    if not paths:
        return {}
    own = {name: value for name, value in variables.items() if _is_own(name)}
    return {
        key: tuple(name for name in names if not re.match(rf"{name}\b", paths[key]))
        for key, names in holders_of(own, paths).items()
    }


def _is_own(name: str) -> bool:
    return name.isidentifier() and not name.startswith("_") and name not in ("In", "Out")


def reduced_lost(lost: LostValue) -> Any:
    """Tells pickle how what is lost is made again, with the parts that this process still has."""
    make, arguments = lost.__reduce__()
    if not isinstance(lost, LostArray):
        return make, arguments
    what, _, *rest = arguments
    return _lost_array, (what, lost.shards, *rest)


def _lost_array(what: str, shards: Any, *rest: str) -> LostArray:
    return LostArray(what, shards if reads_own() else (), *rest)
