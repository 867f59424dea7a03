"""Arrays that cannot be kept when the group reconnects, by the names that the user has for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jaxnb.engine.keeping import Kept, Unkept, is_array
from jaxnb.engine.rebinding import paths_of
from jaxnb.model.recovery import UnkeptArray


def name_unkept(kept: Iterable[tuple[Any, Kept]], names: dict[str, Any]) -> tuple[UnkeptArray, ...]:
    """Gives arrays that cannot be kept their names, which the errors of their use say.

    Args:
        kept: What belongs to the backend, and what each thing is made again from.
        names: The variables of cells.

    Returns:
        These arrays, sorted by name. Single shards are left out that have no name, or one below
        another's: JAX makes such ones of an array that is being read.
    """
    gone = [(old, how) for old, how in kept if isinstance(how, Unkept) and is_array(old)]
    paths = paths_of(names, [old for old, _ in gone]) if gone else {}
    for old, how in gone:
        how.name = paths.get(id(old), "")
    whole = tuple(f"{how.name}." for old, how in gone if how.name and _is_whole(old))
    found = (
        UnkeptArray(how.name, how.what, how.why)
        for old, how in gone
        if _is_whole(old) or (how.name and not how.name.startswith(whole))
    )
    return tuple(sorted(found, key=lambda each: (each.name, each.type)))


def _is_whole(array: Any) -> bool:
    return len(array.sharding.device_set) > 1
