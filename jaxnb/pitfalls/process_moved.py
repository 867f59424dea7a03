"""Arrays that cross between processes or devices where nothing seems to move."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxnb.labels import format_bytes, plural
from jaxnb.model.insight import Pitfall
from jaxnb.model.scripts import in_notebook
from jaxnb.pitfalls.process_words import pitfall, type_of

GATHERED_BYTES = 1 << 20
"""Less than this, of all that one line puts, is as quick as the message that it takes anyway: step
counters, keys and learning rates are put like that, and rightly so."""

SHOWN_DEVICES = 8


class Moves:
    """Those of a cell."""

    kind: str = "device-put"

    def __init__(self) -> None:
        self._gathered: dict[int | None, tuple[int, int, str]] = {}
        self._orders: dict[int | None, tuple[str, int, str]] = {}

    def add_gathered(self, value: Any, line: int | None) -> None:
        """Takes a host array that ``device_put`` gathers from all processes."""
        array = value if hasattr(value, "nbytes") else np.asarray(value)
        count, nbytes, largest = self._gathered.get(line, (0, 0, ""))
        largest = largest if largest and nbytes >= array.nbytes else type_of(array)
        self._gathered[line] = (count + 1, nbytes + array.nbytes, largest)

    def add_reordered(self, array: Any, sharding: Any, line: int | None) -> None:
        """Takes an array that moves onto the same devices in another order.

        A mesh of other axes is another view, and made on purpose. Two of the same axes and sizes
        look the same, and are not.
        """
        before, after = array.sharding.mesh, sharding.mesh
        if before.axis_names != after.axis_names or before.devices.shape != after.devices.shape:
            return
        orders = [[device.id for device in each.devices.flat] for each in (before, after)]
        if orders[0] != orders[1]:
            self._orders.setdefault(line, (type_of(array), array.nbytes, in_words(orders)))

    def pitfalls(self, code_name: str) -> list[Pitfall]:
        """Returns them in words."""
        return [*self._gathered_ones(code_name), *self._reordered_ones(code_name)]

    def _gathered_ones(self, code_name: str) -> list[Pitfall]:
        n = jax.process_count()
        return [
            pitfall(
                "device-put",
                code_name,
                line,
                f"`device_put` of {_what(count, largest)} ({format_bytes(nbytes)}) onto a sharding "
                f"over {plural(n, 'process')} gathers all processes' copies on every one of them, "
                f"{format_bytes(n * nbytes)} on each, only to check that they are equal.",
                "`jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])` sends "
                f"nothing.{in_notebook(' From the notebook: `%spmd_push`.')}",
            )
            for line, (count, nbytes, largest) in self._gathered.items()
            if nbytes >= GATHERED_BYTES
        ]

    def _reordered_ones(self, code_name: str) -> list[Pitfall]:
        return [
            pitfall(
                "device-order",
                code_name,
                line,
                f"{what} ({format_bytes(nbytes)}) moves between two meshes of the same axes whose "
                f"devices stand in different order ({orders}): its parts cross to other devices, "
                "though its layout stays the same.",
                ONE_MESH,
            )
            for line, (what, nbytes, orders) in self._orders.items()
        ]


ONE_MESH = (
    "Make one mesh and use it everywhere: `jax.make_mesh` may order devices by how they are "
    "connected, `Mesh(np.array(jax.devices()).reshape(…), …)` does not."
)


def in_words(orders: list[list[int]]) -> str:
    """Returns device ids in two orders: ``"0, 1, … and 1, 0, …"``; where they begin to differ."""
    first, second = orders
    start = next(i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a != b)
    start = 0 if len(first) <= SHOWN_DEVICES else start

    def some(order: list[int]) -> str:
        shown = ", ".join(map(str, order[start : start + SHOWN_DEVICES]))
        more = ", …" if len(order) > start + SHOWN_DEVICES else ""
        return f"{'…, ' if start else ''}{shown}{more}"

    return f"{some(first)} and {some(second)}"


def _what(count: int, largest: str) -> str:
    return f"a host array {largest}" if count == 1 else f"{count} host arrays, one {largest},"
