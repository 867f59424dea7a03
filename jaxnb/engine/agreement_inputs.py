"""Strict mode: processes that were about to dispatch with other inputs tell each other which."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from jaxnb.engine import _jax_internals
from jaxnb.model import Dispatch
from jaxnb.model.origins import Argument
from jaxnb.provenance import arguments_text, differing_arguments

WAIT_SECONDS = 2.0
"""Who does not tell by then was interrupted, or has died: then it is told of who did."""


def explained(
    run: str, me: int, dispatch: Dispatch, mine: Sequence[Argument], others: Iterable[int]
) -> str:
    """Returns which arguments of a dispatch differ, as sentences; waits for the others' lists.

    They go over the coordination service: a dispatch is refused once in a cell, and what is said
    before each dispatch stays short.

    Args:
        run: The cell.
        me: This process.
        dispatch: What it was about to make.
        mine: The global arrays that it was to be given here.
        others: Processes that find at the same time that they do not agree on it.

    Returns:
        Empty if the arrays are the same, or nobody tells: then host data differ.
    """
    client = _jax_internals.coordination_client()
    name = f"jaxnb/arguments/{run}/{'-'.join(map(str, dispatch.processes))}/{dispatch.number}"
    plain = json.dumps([asdict(each) for each in mine])
    client.key_value_set(f"{name}/{me}", plain, allow_overwrite=True)
    given = {me: list(mine)}
    for peer in others:
        try:
            said = client.blocking_key_value_get(f"{name}/{peer}", int(WAIT_SECONDS * 1e3))
        except Exception:  # it has not told, or the service has gone
            continue
        given[peer] = [Argument.from_plain(each) for each in json.loads(said)]
    return arguments_text(differing_arguments(given))
