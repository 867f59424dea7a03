"""What a pull says of replicas that differ, and to whom."""

from __future__ import annotations

from jaxnb.arrays import differing
from jaxnb.arrays.blocks import Block
from jaxnb.labels import plural, plural_word, processes_label, ranks_label
from jaxnb.model.arrays import ArrayInfo


def replicas_text(name: str, array: ArrayInfo) -> str:
    """Returns what is to be said of an array whose replicas differ; empty if none do."""
    parts = differing(array)
    if not parts:
        return ""
    where = ", ".join(f"{start}:{stop}" for start, stop in parts[0].index)
    return (
        f"The replicas of `{name}` differ in {plural(len(parts), 'part')}, the first [{where}]: "
        f"{' ≠ '.join(_holders_by_digest(parts[0]))}. JAX takes them to be equal and never "
        "checks. The pull has the first replica of each; `.shards[i].data` is what one device "
        "has."
    )


def _holders_by_digest(part: Block) -> list[str]:
    """Returns who has the same: processes, or devices where those of one process differ."""
    groups = part.by_digest()
    if len(set().union(*groups)) == sum(map(len, groups)):
        return [processes_label(group) for group in groups]
    devices: dict[bytes, list[int]] = {}
    for shard in part.shards:
        if shard.digest:
            devices.setdefault(shard.digest, []).append(shard.device_id)
    return [f"{plural_word(len(ids), 'device')} {ranks_label(ids)}" for ids in devices.values()]
