"""Pure: whether what processes hold equal of a dispatch's arguments is equal."""

from __future__ import annotations

from collections.abc import Mapping

from jaxnb.model.dispatches import Dispatch


def unequal_replicas(said: Mapping[int, Dispatch]) -> list[list[int]]:
    """Returns which processes give the same replicas to a dispatch, where they differ; or nothing.

    Args:
        said: Process index to the dispatch as it is about to make it. All must be asked: who holds
            other parts than those that differ has to learn of it too.
    """
    by_holders: dict[tuple[int, ...], dict[int, list[int]]] = {}
    for process, dispatch in said.items():
        for holders, value in dispatch.replicas:
            if len(holders) == 1:  # its own devices hold other bytes each
                return [[process]]
            by_holders.setdefault(holders, {}).setdefault(value, []).append(process)
    differ = (sorted(found.values()) for found in by_holders.values() if len(found) > 1)
    return next(differ, [])
