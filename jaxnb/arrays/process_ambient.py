"""The mesh that ``jax.set_mesh`` has set for the cells, for threads that do not see it.

JAX keeps it for each thread by itself.
"""

from __future__ import annotations

import threading
from typing import Any

import jax

from jaxnb.wire.process_features import CellHere, Feature

_noted: Any = None


class AmbientMesh(Feature):
    """Notes the mesh of the main thread when a cell has ended."""

    def over(self, _: CellHere) -> None:
        """Its code has ended."""
        global _noted
        _noted = _own()


def mesh() -> Any:
    """Returns the mesh that the cells have; None if there is none.

    In another thread than the main one, that is the one that the last cell has left.
    """
    return _own() if threading.current_thread() is threading.main_thread() else _noted


def _own() -> Any:
    found = jax.sharding.get_mesh()
    return None if found.empty else found
