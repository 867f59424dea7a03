"""Processes that were about to dispatch with other inputs tell each other which."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from jaxnb.compat import jax_internals
from jaxnb.model.dispatches import Argument, Dispatch

WAIT_SECONDS = 5.0
"""Who does not tell by then was interrupted, or has died: then it is told of who did."""


def exchanged(
    stop: int, me: int, dispatch: Dispatch, mine: Sequence[Argument], others: Mapping[int, Dispatch]
) -> tuple[dict[int, list[Argument]], bool]:
    """Has processes that are about to make one dispatch tell each other what they give to it.

    That goes over the coordination service: to be refused is rare, and what is said before each
    dispatch stays short.

    Args:
        stop: The number of the stop.
        me: This process.
        dispatch: What it was about to make.
        mine: The global arrays that it was to be given here.
        others: Processes that find at the same time that they do not agree on it, with what they
            have said that they were about to make.

    Returns:
        Process index to the arrays, of those that have told; and whether all have, and have the
        same host data.
    """
    client = jax_internals.coordination_client()
    name = f"jaxnb/arguments/{stop}"
    plain = json.dumps([dispatch.inputs, dispatch.host, [asdict(each) for each in mine]])
    client.key_value_set(f"{name}/{me}", plain, allow_overwrite=True)
    given = {me: list(mine)}
    is_same = True
    for peer, its in others.items():
        try:
            said = client.blocking_key_value_get(f"{name}/{peer}", int(WAIT_SECONDS * 1e3))
        except Exception:  # it has not told, or the service has gone
            is_same = False
            continue
        inputs, host, arguments = json.loads(said)
        # What an interrupt has kept from being made may have left other inputs there.
        is_same &= inputs == its.inputs and host == dispatch.host
        given[peer] = [Argument.from_plain(each) for each in arguments]
    return given, is_same
