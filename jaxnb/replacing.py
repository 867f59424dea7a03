"""Replacing processes that have died: new ones join, and get what the others hold equal."""

from __future__ import annotations

import pickle
import signal
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from jaxnb.errors import SessionBrokenError, StartError
from jaxnb.labels import processes_label
from jaxnb.model import ProcessReport, Recovered, Reformed, ReformRequest
from jaxnb.model.recovery import CallHooks, Gift, Give, Possession, Rescued, Survey, Take
from jaxnb.starting import Starter
from jaxnb.transport.client import Exchange, Transport

Ask = Callable[[Mapping[int, Any], str], dict[int, Any]]
"""Sends a request to each process; returns their answers, or raises."""

MAX_ROUNDS = 20
"""So many names may fail to be read by a new process, one after the other."""

DIE_SECONDS = 5.0
"""A process that was killed is gone sooner, unless the kernel holds it (a disk that hangs)."""

_NO_NAME = ("np.random.get_state()", "random.getstate()")
"""Differ between processes as a rule, and whoever wants them equal has seen to it."""


@dataclass(frozen=True, slots=True)
class Handed:
    """What new processes have been given.

    Attributes:
        given: The names.
        refilled: The arrays among them that are spread over processes, as paths.
        missing: Names that they do not have, and why.
    """

    given: tuple[str, ...] = ()
    refilled: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)

    def with_more(self, more: Handed, refused: Mapping[str, str]) -> Handed:
        """Returns what another process was given too.

        Args:
            more: That.
            refused: Names that it could not be given back, and why.
        """
        missing = {**self.missing, **refused, **more.missing}
        return Handed(
            given=tuple(dict.fromkeys((*self.given, *more.given))),
            refilled=tuple(dict.fromkeys((*self.refilled, *more.refilled))),
            missing={name: why for name, why in missing.items() if name not in more.given},
        )


def end_by_force(
    indices: Collection[int],
    send_signal: Callable[[list[int], int], None],
    dead: Callable[[], Collection[int]],
) -> None:
    """Kills processes that do not come back, and waits until they are known to be dead.

    Args:
        indices: The processes.
        send_signal: Sends a signal to processes.
        dead: Returns who has died so far.

    Raises:
        SessionBrokenError: They are not dead after seconds.
    """
    send_signal(sorted(indices), signal.SIGKILL)
    deadline = time.monotonic() + DIE_SECONDS
    while left := set(indices) - set(dead()):
        if time.monotonic() > deadline:
            raise SessionBrokenError(
                f"{processes_label(left)} could not be ended by force. Type `%spmd_restart` for "
                "fresh processes; variables are lost."
            )
        Exchange().get(0.01)


def form_anew(
    starter: Starter,
    transport: Transport,
    num_processes: int,
    dead: Collection[int],
    rescued: Mapping[int, Rescued] | None = None,
) -> tuple[list[ProcessReport], Recovered]:
    """Forms a group anew of its living processes, and of new ones in the place of the dead.

    Args:
        starter: Knows the group.
        transport: The connection.
        num_processes: Size of the group.
        dead: The indices of those that have died.
        rescued: What was read out of some of them before.

    Returns:
        What all processes see, and what became of the variables.

    Raises:
        StartError: It failed; the group is of no use as it is, and its message says what helps.
    """
    try:
        return _form_anew(starter, transport, num_processes, dead, rescued or {})
    except StartError as error:
        then = (
            "Type `%spmd_recover` to try again: processes that live keep their variables. "
            "`%spmd_restart` gives fresh processes."
            if starter.has_joined
            else "Type `%spmd_restart` for fresh processes; variables are lost."
        )
        raise StartError(
            f"{error}\nThe group could not be formed anew. {then}"
        ) from error.__cause__


def _form_anew(
    starter: Starter,
    transport: Transport,
    num_processes: int,
    dead: Collection[int],
    rescued: Mapping[int, Rescued],
) -> tuple[list[ProcessReport], Recovered]:
    started = time.perf_counter()
    reports, reformed = starter.reform(transport, dead, rescued.keys())
    if not dead:
        errors = call_hooks(starter, transport, reformed)
        return reports, Recovered(tuple(reformed), hook_errors=errors)
    living = [i for i in range(num_processes) if i not in dead]
    starter.progress("giving variables", f"to {processes_label(dead)}")
    ask = partial(starter.ask, transport)
    gone = tuple(sorted(set(dead) - set(rescued)))
    given_back, refused = give_back(ask, rescued, gone)
    handed = hand_over(ask, living, [i for i in dead if i not in rescued])
    for index, names in given_back.items():
        # What it could not keep itself may be equal on all others.
        more = hand_over(ask, living, [index], without=names)
        handed = handed.with_more(more, refused[index])
    errors = call_hooks(starter, transport, reformed)
    recovered = Recovered(
        tuple(reformed),
        tuple(dead),
        hook_errors=errors,
        given=handed.given,
        refilled=handed.refilled,
        missing=handed.missing,
        rescued={i: tuple(filter(str.isidentifier, names)) for i, names in given_back.items()},
        total_seconds=time.perf_counter() - started,
    )
    return reports, recovered


def call_hooks(
    starter: Starter, transport: Transport, reformed: Collection[Reformed]
) -> tuple[str, ...]:
    """Has all processes call what ``jaxnb.on_reform`` was given; returns what was raised."""
    if not any(process.hooks for process in reformed):
        return ()
    everyone = range(starter.num_processes)
    asked = {i: ReformRequest(CallHooks()) for i in everyone}
    answers = starter.ask(transport, asked, "call what jaxnb.on_reform() was given")
    return tuple(text for i in everyone for text in answers[i])


def give_back(
    ask: Ask, rescued: Mapping[int, Rescued], dead: tuple[int, ...] = ()
) -> tuple[dict[int, list[str]], dict[int, dict[str, str]]]:
    """Gives new processes what was read out of those that they replace.

    Args:
        ask: Asks processes.
        rescued: What that was.
        dead: Other processes that have died, whose shards are lost.

    Returns:
        The names that each has now, and those that it has not, with the reasons.
    """
    names: dict[int, list[str]] = {}
    missing: dict[int, dict[str, str]] = {}
    for index, found in rescued.items():
        names[index], missing[index] = [], dict(found.missing)
        for parcel in found.parcels:
            if set(parcel.names) <= {*names[index], *missing[index]}:
                continue
            take = ReformRequest(
                Take(
                    parcel.names,
                    parcel.pickle,
                    tuple(map(pickle.PickleBuffer, parcel.buffers)),
                    tuple(replace(p, data=pickle.PickleBuffer(p.data)) for p in parcel.pieces),
                    parcel.origins,
                    dead,
                )
            )
            refused = ask({index: take}, "take back its variables")[index].refused
            missing[index].update(refused)
            names[index] += [] if refused else parcel.names
    return names, missing


def hand_over(
    ask: Ask,
    survivors: Collection[int],
    replaced: Collection[int],
    without: Collection[str] = (),
) -> Handed:
    """Gives new processes the values that all others hold equal.

    Shards of arrays that are spread over processes come from whoever has a replica. What
    differs, or cannot be pickled, is told.

    Args:
        ask: Asks processes.
        survivors: The processes that were there before.
        replaced: The new ones.
        without: Names that they have already.
    """
    if not survivors or not replaced:
        return Handed()
    found = ask({i: ReformRequest(Survey()) for i in survivors}, "tell its variables")
    missing = {}
    for name in dict.fromkeys(name for possessions in found.values() for name in possessions):
        reason = why_not({i: possessions.get(name) for i, possessions in found.items()})
        if reason:
            missing[name] = reason
    missing = {name: why for name, why in missing.items() if name not in without}
    first = found[min(survivors)]
    names = [name for name in first if name not in missing and name not in without]
    # An ambient mesh would be in the way of the making of arrays.
    names.sort(key=lambda name: name in ("jax.set_mesh(…)", "jaxnb.on_reform(…)"))
    given = _give(ask, names, survivors, replaced, missing)
    pairs = (zip(first[n].arrays, first[n].holders, strict=True) for n in given)
    arrays = [path for each in pairs for path, holders in each if holders & set(replaced)]
    return Handed(
        given=tuple(n for n in given if n.isidentifier() and not first[n].was_lost),
        refilled=tuple(dict.fromkeys(arrays)),
        missing={name: why for name, why in missing.items() if name not in _NO_NAME},
    )


def why_not(held: Mapping[int, Possession | None]) -> str:
    """Returns why a value cannot be given to a new process; empty if it can.

    Args:
        held: What each of the others has under the name.
    """
    without = sorted(i for i, possession in held.items() if possession is None)
    possessions = [possession for possession in held.values() if possession is not None]
    if without:
        return f"process {without[0]} does not have it either"
    for possession in possessions:
        if not possession.digest:
            return possession.reason
    if len({possession.digest for possession in possessions}) > 1:
        return "differs by process"
    if len({possession.origins for possession in possessions}) > 1:
        apart = zip(possessions[0].arrays, *(each.origins for each in possessions), strict=True)
        path = next(path for path, *origins in apart if len(set(origins)) > 1)
        return f"the others hold parts of different arrays in `{path}`: not of the same step"
    seen: dict[Any, bytes] = {}
    for possession in possessions:
        for place, digest in possession.replicas.items():
            if seen.setdefault(place, digest) != digest:
                return (
                    f"replicas of `{possession.arrays[place[0]]}` differ: the others were not at "
                    "the same step"
                )
    if len(possessions) == 1 and not possessions[0].is_common:
        return "one process alone holds it: whether it is the same for all cannot be told"
    return ""


def _give(
    ask: Ask,
    names: list[str],
    survivors: Collection[int],
    replaced: Collection[int],
    missing: dict[str, str],
) -> list[str]:
    """Gives names; those that fail are taken out and told in ``missing``."""
    for _ in range(MAX_ROUNDS):
        if not names:
            return []
        gifts = _ask_for(ask, names, survivors, replaced)
        if len({gift.digest for gift in gifts}) > 1:
            if len(names) == 1:
                missing[names[0]] = "what is in it differs by process"
                return []
            half = len(names) // 2  # some names of one half share things that others' do not
            return [
                name
                for part in (names[:half], names[half:])
                for name in _give(ask, part, survivors, replaced, missing)
            ]
        taken = ask({i: _take(i, names, gifts) for i in replaced}, "take its variables")
        refused = {name: why for answer in taken.values() for name, why in answer.refused.items()}
        if not refused:
            return names
        missing.update(refused)
        names = [name for name in names if name not in refused]
    missing.update(dict.fromkeys(names, "too many others could not be read"))
    return []


def _ask_for(
    ask: Ask, names: list[str], survivors: Collection[int], replaced: Collection[int]
) -> list[Gift]:
    """Returns what the survivors give; the first one's has the values."""
    requests = {
        i: ReformRequest(Give(tuple(names), tuple(replaced), with_values=i == min(survivors)))
        for i in sorted(survivors)
    }
    gifts = ask(requests, "give its variables")
    return [gifts[i] for i in sorted(survivors)]


def _take(process_index: int, names: list[str], gifts: list[Gift]) -> ReformRequest:
    pieces = tuple(
        replace(piece, data=pickle.PickleBuffer(piece.data))
        for gift in gifts
        for piece in gift.pieces
        if piece.process_index == process_index
    )
    buffers = tuple(map(pickle.PickleBuffer, gifts[0].buffers))
    taken = Take(tuple(names), gifts[0].pickle, buffers, pieces, gifts[0].origins)
    return ReformRequest(taken)
