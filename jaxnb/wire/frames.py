"""Objects to message frames and back: large buffers travel as frames of their own, uncopied."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any


def dump(thing: Any) -> list[Any]:
    """Returns the frames of an object: its pickle, then the buffers that it refers to.

    A :class:`pickle.PickleBuffer` in the object becomes such a buffer.
    """
    buffers: list[pickle.PickleBuffer] = []
    payload = pickle.dumps(thing, protocol=5, buffer_callback=buffers.append)
    return [payload, *(buffer.raw() for buffer in buffers)]


def load(frames: Sequence[Any]) -> Any:
    """Returns the object of frames; buffers in it are views of them.

    The frames were signed with the cluster's key (:mod:`jaxnb.wire.signing`), which the
    caller has checked.
    """
    payload, *buffers = frames
    return pickle.loads(payload, buffers=buffers)
