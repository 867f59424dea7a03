"""Reading what was pickled in another process."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any

from jaxnb.model.arrays import ArrayLeaf


class _Unpickler(pickle.Unpickler):
    def __init__(
        self, skeleton: bytes, buffers: Sequence[Any], array: Callable[[int], Any]
    ) -> None:
        super().__init__(io.BytesIO(skeleton), buffers=buffers)
        self._array = array

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (ArrayLeaf.__module__, ArrayLeaf.__name__):
            return self._array
        return super().find_class(module, name)


def unpickle(skeleton: bytes, buffers: Sequence[Any], array: Callable[[int], Any]) -> Any:
    """Reads a value that a process pickled, or the notebook.

    Args:
        skeleton: The pickle. It came over a channel signed with the cluster's key, from a
            process that this session started, or from the notebook that started this process.
        buffers: What was left out of band.
        array: Returns the array for an index, where the pickle leaves one out.

    Raises:
        Exception: It is made of something that is missing here.
    """
    return _Unpickler(skeleton, buffers, array).load()
