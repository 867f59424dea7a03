"""Arrays of one group in a group of another size: which meshes, and what fits."""

from __future__ import annotations

import json

import pytest

from jaxnb.recovery.fit_to_size import (
    MisfitError,
    SavedArray,
    SavedPart,
    overlap,
    require_all_fit,
    require_fit,
    resized,
    resized_notes,
    size_of,
    within,
)

PART = SavedPart(1, ((0, 4), (2, 4)), "float32", 3)


def array(shape: tuple[int, ...], *spec: tuple[str, ...], **other: object) -> SavedArray:
    mesh = {"data": 4, "model": 2}
    facts = {"name": "w", "path": "w", "origin": "", "dtype": "float32", "is_of_all": True}
    facts |= {"parts": (PART,), "needs": (4, 2)}
    return SavedArray(**facts | {"shape": shape, "mesh": mesh, "spec": spec} | other)  # type: ignore[arg-type]


def test_the_first_axis_of_a_mesh_takes_what_changes() -> None:
    assert resized({"d": 8}, 3) == {"d": 3}
    assert resized({"data": 4, "model": 2}, 16) == {"data": 8, "model": 2}
    assert resized({"data": 4, "model": 2}, 2) == {"data": 1, "model": 2}


@pytest.mark.parametrize("num_devices", [1, 3, 0])
def test_other_axes_have_to_divide_the_devices(num_devices: int) -> None:
    with pytest.raises(MisfitError, match=r"^'model' \(2\) does not divide .* axis 'data' cannot"):
        resized({"data": 4, "model": 2}, num_devices)


def test_axes_have_to_divide_dimensions() -> None:
    require_fit(array((16, 3), ("data",), ()), {"data": 8, "model": 2})
    require_fit(array((16,), ("data", "model")), {"data": 8, "model": 2})
    require_fit(array(()), {"data": 8, "model": 2})
    with pytest.raises(MisfitError) as caught:
        require_fit(array((12, 3), ("data",), ()), {"data": 8, "model": 2})
    assert str(caught.value) == (
        "`w` (float32[12, 3] over a mesh of 'data': 4, 'model': 2): axis 'data' would have 8 "
        "devices, which do not divide dimension 0 (12)"
    )
    with pytest.raises(MisfitError, match="axis 'data' × 'model' would have 16 devices"):
        require_fit(array((8,), ("data", "model")), {"data": 8, "model": 2})
    with pytest.raises(MisfitError, match="has not been summed over data yet"):
        require_fit(array((16,), (), unreduced=("data",)), {"data": 4, "model": 2})


def test_arrays_over_some_devices_are_no_matter_of_the_size() -> None:
    some = array((12,), ("data",), is_of_all=False, needs=(2, 1))
    require_all_fit([some], (3, 1))
    with pytest.raises(MisfitError, match=r"^`w` .*: it is on some devices only, which need 2 pr"):
        require_all_fit([some], (1, 8))
    with pytest.raises(MisfitError, match=r"`w`.*'model' \(2\) does not divide 3 devices"):
        require_all_fit([array((12,), ("data",))], (3, 1))


def test_what_is_listed_goes_through_json() -> None:
    listed = array((16, 3), ("data",), (), unreduced=("model",))
    assert SavedArray.from_plain(json.loads(json.dumps(listed.plain))) == listed


def test_parts_of_arrays() -> None:
    assert overlap(((0, 4), (0, 2)), ((2, 6), (1, 3))) == ((2, 4), (1, 2))
    assert overlap(((0, 4),), ((4, 8),)) is None
    assert overlap((), ()) == ()
    assert (size_of(((0, 4), (1, 3))), size_of(())) == (8, 1)
    assert within(((2, 4), (1, 2)), ((2, 6), (1, 3))) == (slice(0, 2), slice(0, 1))


def test_what_is_said_of_another_size() -> None:
    assert resized_notes((4, 2), (4, 2), "is gone") == ()
    assert resized_notes((4, 2), (4, 1), "is gone") == (
        "Arrays over several processes lie on 4 × 1 devices now, not on 4 × 2.",
    )
    assert resized_notes((2, 1), (4, 1), "is gone")[1] == (
        "Whatever else processes 2-3 hold is what process 0 had."
    )
    assert resized_notes((4, 1), (3, 1), "is gone")[1] == "Whatever else process 3 had is gone."


def test_what_differed_by_process_is_named() -> None:
    assert len(resized_notes((4, 1), (2, 1), "is gone", [])) == 1
    assert len(resized_notes((4, 1), (4, 2), "is gone", ["mine"])) == 1
    assert resized_notes((4, 1), (2, 1), "is gone", ["mine", "only"])[1] == (
        "`mine` and `only` differed by process: those of processes 2-3 are gone."
    )
    assert resized_notes((2, 1), (3, 1), "is gone", ["mine"])[1] == (
        "`mine` differed by process: those of process 2 are what process 0 had."
    )
