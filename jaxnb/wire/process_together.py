"""Words that the processes of a cell tell each other outside of any collective."""

from __future__ import annotations

import json
import time
from typing import Any

import jax

from jaxnb.compat import jax_runtime
from jaxnb.errors import JaxnbError
from jaxnb.labels import processes_label
from jaxnb.wire.process_features import CellHere, Feature

LOOK_MS = 200
"""How long one question for a word waits before it is asked again; between, SIGINT is seen."""

_cell: tuple[str, tuple[int, ...]] | None = None
_round = 0
_last_key = ""
_last_number = ""


class Rounds(Feature):
    """Notes which cell runs: what processes tell each other in it has its name."""

    def begin(self, cell: CellHere) -> None:
        """A cell begins."""
        global _cell, _round
        _cell, _round = (cell.request.request_id, cell.request.ranks), 0


def members() -> tuple[int, ...]:
    """Returns the processes that run this code together, by index."""
    if _cell is None:  # a script, which all processes run
        return tuple(range(jax.process_count()))
    return _cell[1] or tuple(range(jax.process_count()))


def exchange(word: dict[str, Any], seconds: float | None = None) -> dict[int, dict[str, Any]]:
    """Tells all processes of the cell a word, and returns the words of all.

    All of them must call this, equally often. It goes over the coordination service and issues
    no collective, so it works while collectives do not.

    Args:
        word: Plain data that JSON can hold.
        seconds: How long to wait for the others; None for as long as it takes.

    Raises:
        JaxnbError: Some had said nothing after ``seconds``.
    """
    global _round, _last_key
    me, everyone = jax.process_index(), members()
    if len(everyone) == 1:
        return {me: word}
    client = jax_runtime.coordination_client()
    _round += 1
    prefix = f"jaxnb/together/{_cell[0] if _cell else 'script'}/{_round}"
    # The service has no key of its own: what comes from it must not be unpickled.
    client.key_value_set(f"{prefix}/{me}", json.dumps(word))
    deadline = None if seconds is None else time.monotonic() + seconds
    words = {me: word}
    for index in everyone:
        if index != me:
            said = told(client, f"{prefix}/{index}", deadline)
            if said is None:
                who = processes_label([index])
                raise JaxnbError(f"{who} did not come back from the call")
            words[index] = json.loads(said)
    # Who has told this word has read all of the one before.
    if _last_key:
        client.key_value_delete(_last_key)
    _last_key = f"{prefix}/{me}"
    return {index: words[index] for index in everyone}


def number_of_first(number: int, *, waits: bool = True) -> int:
    """Returns what the first process of the cell gives; the others wait for it.

    Args:
        number: What this process gives if it is the first.
        waits: False returns at once.
    """
    global _last_number
    me, everyone = jax.process_index(), members()
    if len(everyone) == 1:
        return number
    client = jax_runtime.coordination_client()
    key = f"jaxnb/together/{_cell[0] if _cell else 'script'}/number"
    if me == everyone[0]:
        if _last_number not in ("", key):  # of a cell that has ended
            client.key_value_delete(_last_number)
        _last_number = key
        client.key_value_set(key, str(number), allow_overwrite=True)
    elif waits:
        return int(told(client, key) or 0)
    return number


def told(client: Any, key: str, deadline: float | None = None) -> str | None:
    """Waits until a key of the coordination service is set, and returns its text.

    Args:
        client: The connection to the service.
        key: The key.
        deadline: On ``time.monotonic()``, after which None is returned; None for none.
    """
    while True:
        try:
            return str(client.blocking_key_value_get(key, LOOK_MS))
        except Exception as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
        if deadline is not None and time.monotonic() > deadline:
            return None
