"""The notebook's side of a rescue: reads the variables of a process that is about to be killed."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from jaxnb.model.origins import Made
from jaxnb.model.recovery import Piece, Rescued, RescuedParcel
from jaxnb.transport import memory
from jaxnb.transport.client import Exchange
from jaxnb.transport.sidechannel import Sentinels

RESCUE_SECONDS = 10.0
"""How long a process may take to pickle what it has: arrays stay where they are."""

PAUSE_SECONDS = 0.02
"""How soon it is asked again whether it has."""


def rescue(sentinels: Sentinels, processes: Collection[int]) -> dict[int, Rescued]:
    """Reads the variables of processes whose main threads do not come back.

    Their sentinels answer all the same, unless a process is stopped or C code in it keeps Python
    from running.

    Args:
        sentinels: Who is asked.
        processes: The processes.

    Returns:
        What each had, for those of which anything could be read.
    """
    deadline = time.monotonic() + RESCUE_SECONDS
    left, found = set(processes), {}
    while left and time.monotonic() < deadline:
        answers = sentinels.rescue(left)
        left &= answers.keys()  # who does not answer will not
        for index, answer in answers.items():
            if answer["is_done"]:
                left.discard(index)
                if (rescued := _read(index, answer)) is not None:
                    found[index] = rescued
        if left:
            Exchange().get(PAUSE_SECONDS)
    return found


def _read(index: int, answer: Mapping[str, Any]) -> Rescued | None:
    """Reads what a process has made readable; None if its memory is out of reach."""
    pid, (nonce_at, nonce) = answer["pid"], answer["nonce"]
    if not memory.is_within_reach(pid, nonce_at, bytes.fromhex(nonce)):
        return None
    known: dict[tuple[int, int], Any] = {}

    def data(address: int, nbytes: int) -> Any:
        if (address, nbytes) not in known:
            target = np.empty(nbytes, dtype=np.uint8)
            memory.read(pid, address, target)
            known[address, nbytes] = target
        return known[address, nbytes]

    try:
        parcels = tuple(
            RescuedParcel(
                names=tuple(parcel["names"]),
                origins=tuple(each and (each[0], Made(*each[1])) for each in parcel["origins"]),
                pickle=data(*parcel["pickle"]).tobytes(),
                buffers=tuple(data(*extent) for extent in parcel["buffers"]),
                pieces=tuple(
                    Piece(k, device, index, data(address, nbytes))
                    for k, device, address, nbytes in parcel["pieces"]
                ),
            )
            for parcel in answer["parcels"]
        )
    except (OSError, MemoryError):
        return None
    return Rescued(parcels, dict(answer["missing"]))
