"""Arrays moved with ``session.pull`` and ``session.push``."""

from __future__ import annotations

from typing import Any

import numpy as np

import jaxnb
from benchmarks.movers import (
    SLICE,
    Array,
    GroupMover,
    Way,
    Work,
    equals,
    nothing,
    tree_equals,
)


class Jaxnb(GroupMover):
    """The group that ``jaxnb.start`` makes."""

    def start(self, num_processes: int) -> None:
        """Start a session."""
        self._session: Any = jaxnb.start(num_processes=num_processes, platform="cpu")

    def prepare(self, work: Work) -> None:
        """Every process has its part of ``x``."""
        self.run(f"x = None\nx = make({work.shape}, {work.spec})")

    def pulls(self, work: Work, host: Array) -> dict[str, Way]:
        """``session.pull``, read."""
        return {"jaxnb": Way(lambda: np.asarray(self._session.pull("x")), equals(host), nothing)}

    def pushes(self, work: Work, host: Array) -> dict[str, Way]:
        """``session.push``."""

        def check(_: object) -> None:
            self.require(f"holds(w, {work.spec})")

        return {
            "jaxnb": Way(
                lambda: self._session.push(w=host, spec=work.spec, mesh="mesh"),
                check,
                lambda: self.run("w = None"),
            )
        }

    def slice_pulls(self, host: Array) -> dict[str, Way]:
        """A slice of what ``session.pull`` returns."""

        def move() -> Array:
            return np.asarray(self._session.pull("x")[SLICE])

        return {"jaxnb": Way(move, equals(host[SLICE]), nothing)}

    def tree_pulls(self, tree: dict[str, Array]) -> dict[str, Way]:
        """``session.pull`` of the dictionary: all data at once, and leaf by leaf."""
        self.make_tree()

        def move(lazy: bool) -> dict[str, Array]:
            pulled = self._session.pull("tree", lazy=lazy)
            return {name: np.asarray(leaf) for name, leaf in pulled.items()}

        check = tree_equals(tree)
        return {
            "jaxnb": Way(lambda: move(lazy=False), check, nothing),
            "jaxnb, leaf by leaf": Way(lambda: move(lazy=True), check, nothing),
        }

    def tree_pushes(self, tree: dict[str, Array]) -> dict[str, Way]:
        """``session.push`` of the dictionary, all leaves laid out alike."""

        def check(_: object) -> None:
            self.require("all(holds(leaf, ('x', None)) for leaf in w.values())")

        return {
            "jaxnb": Way(
                lambda: self._session.push(w=tree, spec=("x", None), mesh="mesh"),
                check,
                lambda: self.run("w = None"),
            )
        }

    def stop(self) -> None:
        """Close the session."""
        self._session.close()

    def run(self, code: str) -> None:
        """Run a cell."""
        self._session.run(code)
