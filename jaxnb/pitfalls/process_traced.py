"""A ``pmap`` within ``jit``: it is over this process's devices alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jaxnb.labels import plural
from jaxnb.model.insight import Pitfall
from jaxnb.pitfalls.process_words import pitfall


class Pmaps:
    """Those of a cell."""

    kind: str = "jit-of-pmap"

    def __init__(self) -> None:
        self._found: dict[int | None, int] = {}

    def add(self, devices: Sequence[Any], asked: Sequence[Any] | None, line: int | None) -> None:
        """Takes one.

        Args:
            devices: What it runs on.
            asked: Its ``devices=``: who names those of this process alone means them.
            line: The cell's line.
        """
        wanted = jax.devices() if asked is None else asked
        if {d.process_index for d in devices} < {d.process_index for d in wanted}:
            self._found.setdefault(line, len(devices))

    def pitfalls(self, code_name: str) -> list[Pitfall]:
        """Returns them in words."""
        return [
            pitfall(
                self.kind,
                code_name,
                line,
                f"A `pmap` within `jit` (or `grad`, `vmap`) runs over {plural(count, 'device')} "
                f"of its own process, not over all {jax.device_count()}: a `psum` in it adds up "
                "these only, and JAX says nothing.",
                "Call the pmapped function without `jit` around it, or use `jax.shard_map` over "
                "a mesh of all devices.",
            )
            for line, count in self._found.items()
        ]
