"""Giving processes that are new in a group what all others hold equal: the notebook's side."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from jaxnb.model.cells import CallRequest
from jaxnb.recovery.messages import Filled, Gift, LostPart, Possession, Taken
from jaxnb.recovery.saving import PACK_SECONDS, Asked

_PROCESS = "jaxnb.recovery.process_filling"

_NO_NAME = ("np.random.get_state()", "random.getstate()")
"""Not reported as missing: they differ between processes unless the user seeds them alike."""

Ask = Callable[[Mapping[int, CallRequest]], dict[int, Any]]


def fill(channel: Asked, living: Collection[int], died: Collection[int]) -> Filled:
    """Gives new processes the values that all others hold equal.

    Shards of arrays that are spread over processes come from whoever has a replica.

    Args:
        channel: To the processes.
        living: The processes that have their variables.
        died: The new ones.

    Returns:
        What they have now, and what they have not, with the reasons.

    Raises:
        JaxnbError: A process gave no answer.
    """
    ask = partial(_ask, channel)
    found = ask({i: CallRequest(f"{_PROCESS}.survey", {}) for i in living})
    missing: dict[str, str] = {}
    for name in dict.fromkeys(name for possessions in found.values() for name in possessions):
        if reason := why_not({i: possessions.get(name) for i, possessions in found.items()}):
            missing[name] = reason
    names = [name for name in found[min(living)] if name not in missing]
    # Until it is: an interrupt may end this.
    early = (
        dict.fromkeys(names, "it was interrupted before the other processes had sent it") | missing
    )
    _note_missing(ask, early, died)
    filled = _give(ask, names, sorted(living), sorted(died))
    if filled.missing:
        _note_missing(ask, filled.missing, died)
    missing = {name: why for name, why in missing.items() if name not in _NO_NAME}
    return Filled(filled.names, {**missing, **filled.missing}, filled.lost)


def differing(channel: Asked) -> list[str] | None:
    """Returns the variables that differ by process; None if one does not tell."""
    asked = {i: CallRequest(f"{_PROCESS}.survey", {}) for i in range(channel.num_processes)}
    found = channel.ask_together(asked, 0, PACK_SECONDS)
    if not all(type(possessions) is dict for possessions in found.values()):
        return None
    digests: dict[str, set[bytes | None]] = {}
    for name in dict.fromkeys(name for possessions in found.values() for name in possessions):
        held = [possessions.get(name) for possessions in found.values()]
        digests[name] = {each and (b"" if each.is_drawn else each.digest) for each in held}
    return [name for name, those in digests.items() if len(those) > 1 and name.isidentifier()]


def _note_missing(ask: Ask, missing: Mapping[str, str], died: Collection[int]) -> None:
    ask({i: CallRequest(f"{_PROCESS}.note_missing", {"missing": missing}) for i in died})


def _ask(channel: Asked, requests: Mapping[int, CallRequest]) -> dict[int, Any]:
    answers = channel.ask_together(requests, 0, PACK_SECONDS)
    channel.require(answers, "variables were given to new processes", "and the others keep theirs.")
    return answers


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
            return f"process {i} cannot give it: {possession.reason}"
    if len({possession.digest for possession in possessions}) > 1:
        broken = [(i, each.lost[0]) for i, each in held.items() if each is not None and each.lost]
        if broken:
            return "process {} has lost a part of it, `{}`".format(*min(broken))
        is_drawn = all(each.is_drawn for each in possessions)
        return "a figure is drawn by each process" if is_drawn else "differs by process"
    if len({possession.origins for possession in possessions}) > 1:
        apart = zip(possessions[0].arrays, *(each.origins for each in possessions), strict=True)
        path = next(path for path, *origins in apart if len(set(origins)) > 1)
        return f"the others hold shards of different arrays in `{path}`, from different steps"
    seen: dict[Any, bytes] = {}
    for possession in possessions:
        for place, digest in possession.replicas.items():
            if seen.setdefault(place, digest) != digest:
                return f"the others' replicas of `{possession.arrays[place[0]]}` differ"
    if len(possessions) == 1 and not possessions[0].is_common:
        return "only one process holds it, so it may not be the same for all"
    return ""


def _give(ask: Ask, names: Sequence[str], living: Sequence[int], died: Sequence[int]) -> Filled:
    if not names:
        return Filled()
    gifts = _gifts(ask, names, living, died)
    if len({gift.digest for gift in gifts}) > 1:
        if len(names) == 1:
            return Filled((), {names[0]: "what is in it differs by process"})
        half = len(names) // 2  # some names of one half share things that others' do not
        first = _give(ask, names[:half], living, died)
        second = _give(ask, names[half:], living, died)
        return Filled(
            (*first.names, *second.names),
            {**first.missing, **second.missing},
            {i: (*first.lost.get(i, ()), *second.lost.get(i, ())) for i in died},
        )
    taken: dict[int, Taken] = ask({i: _take(i, gifts) for i in died})
    lost: dict[int, tuple[LostPart, ...]] = {i: answer.lost for i, answer in taken.items()}
    return Filled(tuple(name for name in names if name.isidentifier()), {}, lost)


def _gifts(
    ask: Ask, names: Sequence[str], living: Sequence[int], died: Sequence[int]
) -> list[Gift]:
    """Returns what the living give; the first one's has the values."""
    asked = {"names": tuple(names), "died": tuple(died)}
    requests = {
        i: CallRequest(f"{_PROCESS}.give", {**asked, "with_values": i == living[0]}) for i in living
    }
    gifts = ask(requests)
    return [gifts[i] for i in living]


def _take(process_index: int, gifts: Sequence[Gift]) -> CallRequest:
    pieces = tuple(
        replace(piece, data=pickle.PickleBuffer(piece.data))
        for gift in gifts
        for piece in gift.pieces
        if piece.process_index == process_index
    )
    buffers = tuple(map(pickle.PickleBuffer, gifts[0].buffers))
    gift = replace(gifts[0], buffers=buffers, pieces=())
    return CallRequest(f"{_PROCESS}.take", {"gift": gift, "pieces": pieces})
