"""Objects to frames and back, and the digest that binds frames to a signature."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnb.model.arrays import Chunk
from jaxnb.model.cells import CallRequest, CheckRequest
from jaxnb.wire.messages import digest, dump, load


@pytest.mark.parametrize(
    "thing", [CheckRequest(), CallRequest("f", {"start": 2}), {"a": [1, None]}, None]
)
def test_what_has_no_buffers_is_one_frame(thing: Any) -> None:
    frames = dump(thing)
    assert len(frames) == 1
    assert load(frames) == thing


def test_a_buffer_is_a_frame_of_its_own_and_is_not_copied() -> None:
    data = np.arange(1000)
    frames = dump(Chunk(pickle.PickleBuffer(data)))
    assert len(frames) == 2
    assert np.shares_memory(np.frombuffer(frames[1], data.dtype), data)
    assert len(frames[0]) < 200
    chunk = load(frames)
    assert np.shares_memory(np.frombuffer(chunk.data, data.dtype), data)


def test_buffers_keep_their_order() -> None:
    parts = [b"one", b"", b"three"]
    things = [Chunk(pickle.PickleBuffer(part)) for part in parts]
    frames = dump(things)
    assert [bytes(frame) for frame in frames[1:]] == parts
    assert [bytes(chunk.data) for chunk in load(frames)] == parts


def test_a_slice_of_a_buffer_travels_alone() -> None:
    data = np.arange(100, dtype=np.uint8)
    request = CallRequest("f", {"data": pickle.PickleBuffer(data.data[10:20])})
    assert bytes(dump(request)[1]) == bytes(range(10, 20))


CHANGES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "altered": lambda frames: [frames[0], b"X" + frames[1][1:], frames[2]],
    "removed": lambda frames: frames[:-1],
    "added": lambda frames: [*frames, b""],
    "reordered": lambda frames: [frames[0], frames[2], frames[1]],
    "cut elsewhere": lambda frames: [frames[0], frames[1] + frames[2][:1], frames[2][1:]],
    "joined": lambda frames: [frames[0], frames[1] + frames[2]],
}


@pytest.mark.parametrize("how", CHANGES)
def test_the_digest_is_of_these_frames_in_this_order(how: str) -> None:
    frames = [b"payload", b"first", b"second"]
    assert digest(*frames) != digest(*CHANGES[how](frames))


@given(st.lists(st.binary(max_size=20), max_size=4), st.lists(st.binary(max_size=20), max_size=4))
def test_equal_digests_mean_equal_frames(one: list[bytes], other: list[bytes]) -> None:
    assert (digest(*one) == digest(*other)) == (one == other)


def test_a_digest_is_of_the_bytes_whatever_holds_them() -> None:
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert digest(data) == digest(data.tobytes()) == digest(memoryview(data))
