"""The card of memory by purpose: what named pytrees hold of each device's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxnb.arrays.layout import ArrayLayout
from jaxnb.display.bars import byte_ticks, keys_of, stacked_bars
from jaxnb.display.blocks import Column, Facts, Key, Note, Row, Table
from jaxnb.display.card import Card, card_of
from jaxnb.labels import format_bytes, plural
from jaxnb.model.compiled import Memory
from jaxnb.profile.statistics import DeviceStats

MAX_DEVICES = 64
"""So many bars are shown."""

_NOTE = "Other: what is in use beside what these names lead to."
_TEMPORARY = "Temporary: what the call takes beside its arguments and results while it runs."


def bars_card(
    layouts: Mapping[str, ArrayLayout], stats: Sequence[DeviceStats], memory: Memory | None = None
) -> Card:
    """Stacked bars of what names hold on each device, and what else is in use there.

    Args:
        layouts: Name to how its arrays lie.
        stats: What is in use.
        memory: What a call takes, of which the temporaries are added.
    """
    used = {each.device: each.bytes_in_use for each in stats if each.bytes_in_use is not None}
    devices = sorted(used, key=lambda each: (each.process_index, each.id))
    keys = keys_of(layouts)
    named = [layout.bytes_per_device for layout in layouts.values()]
    parts = [[sizes.get(device.id, 0) for device in devices] for sizes in named]
    in_names = [*map(sum, zip(*parts, strict=True))]
    others = (max(0, used[each] - nbytes) for each, nbytes in zip(devices, in_names, strict=True))
    parts.append([*others])
    keys.append(Key("other", "rgba(136,136,136,.5)", "·"))
    if memory is not None:
        parts.append([memory.temporary_bytes] * len(devices))
        keys.append(Key("temporary", "#F0E442", "~"))
    shown = devices[:MAX_DEVICES]
    columns = [Column("held by"), Column("per device", ">"), Column("in all", ">")]
    return card_of(
        Facts(
            [plural(len(devices), "device"), f"{format_bytes(sum(used.values()))} in use"],
            "memory by purpose",
        ),
        stacked_bars(
            [f"device {each.id} · process {each.process_index}" for each in shown],
            keys,
            [part[: len(shown)] for part in parts],
            byte_ticks,
            lambda nbytes: format_bytes(round(nbytes)),
        ),
        Note(f"… {len(devices) - len(shown)} more" if devices[MAX_DEVICES:] else "", "dim"),
        Table(columns, [_row(key, part) for key, part in zip(keys, parts, strict=True)]),
        Note(f"{_NOTE} {_TEMPORARY}" if memory is not None else _NOTE, "dim"),
    )


def _row(key: Key, sizes: Sequence[int]) -> Row:
    ends = dict.fromkeys(map(format_bytes, (min(sizes, default=0), max(sizes, default=0))))
    return [key.name, " to ".join(ends), format_bytes(sum(sizes))]
