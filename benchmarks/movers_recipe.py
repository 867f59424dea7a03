# mypy: disable-error-code="no-untyped-call"
"""Arrays moved in the group that :mod:`benchmarks.recipe` makes, and by JAX's own means in it."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from ipyparallel import Reference

from benchmarks import recipe
from benchmarks.movers import (
    SLICE,
    Array,
    GroupMover,
    Way,
    Work,
    equals,
    tree_equals,
)


class Recipe(GroupMover):
    """The group that :mod:`benchmarks.recipe` makes, with what one would write for it."""

    def start(self, num_processes: int) -> None:
        """Start engines, and join them."""
        self._cluster, self._client = recipe.start(num_processes)
        self._view = self._client[:]

    def prepare(self, work: Work) -> None:
        """Every process has its part as NumPy too, and ``host``, the whole array."""
        self.run(
            f"x = local = host = None\nx = make({work.shape}, {work.spec})\nlocal = mine(x)\n"
            f"host = counted({work.shape})"
        )

    def pulls(self, work: Work, host: Array) -> dict[str, Way]:
        """``view.pull`` with and without putting the parts together, and ``process_allgather``."""
        axis = work.spec.index("x")

        def parts() -> list[Array]:
            pulled: list[Array] = self._view.pull("local", block=True)
            return pulled

        def gathered(_: object) -> None:
            self.require("np.array_equal(whole, host)")

        return {
            "recipe": Way(lambda: np.concatenate(parts(), axis), equals(host), self._purge, 4),
            "recipe, parts": Way(
                parts, lambda found: equals(host)(np.concatenate(found, axis)), self._purge, 4
            ),
            "process_allgather": Way(
                lambda: self.run("whole = process_allgather(x, tiled=True)"),
                gathered,
                lambda: self.run("whole = None"),
                len(self._view) + 2,
            ),
        }

    def pushes(self, work: Work, host: Array) -> dict[str, Way]:
        """``view.push`` of the whole to all, ``view.scatter`` of the parts, and ``device_put``."""
        axes = f"{work.shape}, {work.spec}"

        def push() -> None:
            self._view.push({"w": host}, block=True)
            self.run(f"y = spread({axes}, lambda index: w[index])")

        def scatter() -> None:
            self._view.scatter("w", host, block=True)
            self.run(
                f"y = jax.make_array_from_process_local_data(sharding({work.spec}), w)\n"
                "jax.block_until_ready(y)"
            )

        put = f"y = jax.block_until_ready(jax.device_put(host, sharding({work.spec})))"

        def check(_: object) -> None:
            self.require(f"holds(y, {work.spec})")

        def drop() -> None:
            self.run("y = w = None")
            self._purge()

        return {
            "recipe, push": Way(push, check, drop, 2 * len(self._view) + 1),
            "recipe, scatter": Way(scatter, check, drop, 3),
            "device_put": Way(lambda: self.run(put), check, drop),
        }

    def slice_pulls(self, host: Array) -> dict[str, Way]:
        """Ask the process that is known to hold the rows."""

        def move() -> Any:
            return self._client[0].apply_sync(operator.getitem, Reference("local"), SLICE)

        return {"recipe": Way(move, equals(host[SLICE]), self._purge)}

    def tree_pulls(self, tree: dict[str, Array]) -> dict[str, Way]:
        """Pull dictionaries of parts, put each leaf together."""
        self.make_tree()
        self.run("local_tree = {name: mine(leaf) for name, leaf in tree.items()}")

        def move() -> dict[str, Array]:
            parts = self._view.pull("local_tree", block=True)
            return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

        return {"recipe": Way(move, tree_equals(tree), self._purge)}

    def tree_pushes(self, tree: dict[str, Array]) -> dict[str, Way]:
        """Push the dictionary to all; each makes its parts."""

        def move() -> None:
            self._view.push({"w": tree}, block=True)
            self.run("y = {n: spread(v.shape, ('x', None), lambda i: v[i]) for n, v in w.items()}")

        def check(_: object) -> None:
            self.require("all(holds(leaf, ('x', None)) for leaf in y.values())")

        def drop() -> None:
            self.run("y = w = None")
            self._purge()

        return {"recipe": Way(move, check, drop)}

    def stop(self) -> None:
        """Stop engines and controller."""
        recipe.stop(self._cluster, self._client)

    def run(self, code: str) -> None:
        """Run code, as ``%%px`` does."""
        self._view.execute(code, block=True)

    def _purge(self) -> None:
        """Have the client and the hub forget results: they keep every array otherwise."""
        self._client.purge_everything()
