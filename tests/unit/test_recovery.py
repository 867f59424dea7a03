"""Recovery: what fits another size, what is waited for, and where variables are saved."""

from __future__ import annotations

import errno
import json
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import jaxnb
from jaxnb.errors import JaxnbError, UsageError
from jaxnb.recovery import files, messages, process_recovering
from jaxnb.recovery.carrier import Carrier, Packed
from jaxnb.recovery.fit_to_size import (
    MisfitError,
    SavedArray,
    SavedPart,
    require_all_fit,
    require_fit,
    resized,
    resized_notes,
)
from jaxnb.recovery.process_recovering import DEAD_SECONDS, PENDING_SECONDS, Reader

# ------------------------------------------------------------------- directories of saved variables


Refuse = Callable[[int, BaseException], None]


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Has the file system refuse a rename, or a user interrupt it: the first is number 0."""

    def refuse(number: int, error: BaseException, *also: int) -> None:
        rename, calls = Path.rename, iter(range(100))

        def refused(path: Path, target: Path) -> Path:
            if next(calls) in (number, *also):
                raise error
            return rename(path, target)

        monkeypatch.setattr(Path, "rename", refused)

    return refuse


@pytest.fixture
def partial(tmp_path: Path) -> Path:
    return a_save(tmp_path / ".state-1", "new")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return a_save(tmp_path / "state", "old")


def a_save(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / files.MANIFEST).write_text(text)
    return folder


def test_a_save_takes_the_place_of_another(partial: Path, target: Path) -> None:
    files.put_in_place(partial, target)
    assert [*target.parent.iterdir()] == [target]
    assert (target / files.MANIFEST).read_text() == "new"


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    "error", [OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), KeyboardInterrupt()]
)
def test_one_that_is_not_replaced_is_as_it_was(
    partial: Path, target: Path, refuse: Refuse, number: int, error: BaseException
) -> None:
    refuse(number, error)
    is_interrupt = isinstance(error, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt if is_interrupt else JaxnbError) as caught:
        files.put_in_place(partial, target)
    told = " ".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert f"Nothing was saved: {target} is as it was." in told
    assert [*target.parent.iterdir()] == [target]
    assert (target / files.MANIFEST).read_text() == "old"


def test_one_that_cannot_be_put_back_is_named_with_the_new_one(
    partial: Path, target: Path, refuse: Refuse
) -> None:
    refuse(1, OSError(errno.EACCES, "Permission denied"), 2)
    with pytest.raises(JaxnbError, match="Permission denied") as caught:
        files.put_in_place(partial, target)
    assert not target.exists()
    (old,) = set(target.parent.iterdir()) - {partial}
    assert (old / files.MANIFEST).read_text() == "old"
    assert (partial / files.MANIFEST).read_text() == "new"
    assert str(old) in str(caught.value)
    assert str(partial) in str(caught.value)


def test_a_directory_with_files_of_the_users_is_not_replaced(tmp_path: Path) -> None:
    for name in ("variables.json", "process-00000", "thesis.tex"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(UsageError, match=r"more than saved variables: thesis\.tex\. Nothing was"):
        files.target_of(str(tmp_path), overwrite=True)
    (tmp_path / "thesis.tex").unlink()
    assert files.target_of(str(tmp_path), overwrite=True) == tmp_path


# --------------------------------------------------- arrays of one group in a group of another size


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


@pytest.mark.parametrize(
    ("old", "new", "names", "said"),
    [
        ((4, 2), (4, 2), (), ""),
        ((4, 2), (4, 1), ("mine",), ""),
        ((4, 1), (2, 1), [], ""),
        ((2, 1), (4, 1), None, "Whatever else processes 2-3 hold is what process 0 had."),
        ((4, 1), (3, 1), None, "Whatever else process 3 had is gone."),
        ((4, 1), (2, 1), ["mine", "only"],
         "`mine` and `only` differed by process: those of processes 2-3 are gone."),
        ((2, 1), (3, 1), ["mine"],
         "`mine` differed by process: those of process 2 are what process 0 had."),
    ],
)  # fmt: skip
def test_what_is_said_of_another_size(
    old: tuple[int, int], new: tuple[int, int], names: list[str] | None, said: str
) -> None:
    lie = f"Arrays over several processes lie on {new[0]} × {new[1]} devices now, not on "
    first = [f"{lie}{old[0]} × {old[1]}."] if new != old else []
    assert [*resized_notes(old, new, "is gone", names)] == [*first, *([said] if said else [])]


# ------------------------------------------------------------------ how long an array is waited for


class Clock:
    """Time in which the process computes all the while: with all of a processor."""

    def __init__(self) -> None:
        self.now = 100.0
        self.monotonic = self.process_time = lambda: self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Device:
    def __init__(self, process_index: int) -> None:
        self.platform, self.process_index = "cpu", process_index


def spread(ready: list[bool], boxes: str = "") -> Any:
    """Returns an array over processes 0 and 1, whose computation has ended on some own devices.

    Args:
        ready: On which.
        boxes: What each has, by a letter: all the same by default.
    """
    own = [Device(0) for _ in ready]

    def part(device: Device, is_there: bool) -> Any:
        found = SimpleNamespace(
            is_ready=lambda: is_there, sharding=SimpleNamespace(device_set=[device])
        )
        found.block_until_ready = lambda: found
        return found

    places = dict(zip(own, boxes or "a" * len(own), strict=True))
    sharding = SimpleNamespace(
        device_set=[*own, Device(1)],
        addressable_devices_indices_map=lambda shape: places,
        spec=None,
    )
    parts = [part(*each) for each in zip(own, ready, strict=True)]
    return SimpleNamespace(is_ready=lambda: all(ready), sharding=sharding, shape=(), _arrays=parts)


@pytest.mark.parametrize(
    ("dead", "skips_unfinished", "seconds"),
    [
        ((), False, PENDING_SECONDS),
        ((1,), False, DEAD_SECONDS),
        ((), True, DEAD_SECONDS),  # by the user
    ],
)
def test_what_a_dead_process_took_part_in_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch, dead: tuple[int, ...], skips_unfinished: bool, seconds: float
) -> None:
    clock = Clock()
    monkeypatch.setattr(process_recovering, "time", clock)
    with pytest.raises(pickle.PicklingError, match="its computation had not ended"):
        Reader(frozenset(dead), skips_unfinished)(spread([False]))
    assert clock.now - 100.0 == pytest.approx(seconds, abs=0.1)


@pytest.mark.parametrize(
    ("ready", "boxes", "taken"),
    [
        ([True, False], "aa", [0, 0]),
        ([False, True, True, False], "aabb", [1, 1, 2, 2]),
        ([True, False], "ab", None),
        ([False, False], "aa", None),
    ],
)
def test_a_device_on_which_it_ended_serves_for_those_on_which_it_did_not(
    monkeypatch: pytest.MonkeyPatch, ready: list[bool], boxes: str, taken: list[int] | None
) -> None:
    monkeypatch.setattr(process_recovering, "time", Clock())
    array = spread(ready, boxes)
    if taken is None:
        with pytest.raises(pickle.PicklingError, match="its computation had not ended"):
            Reader(frozenset())(array)
    else:
        assert Reader(frozenset())(array) == [array._arrays[i] for i in taken]


# ---------------------------------------------------------------------- what is told of a failure


@pytest.mark.parametrize("verb", ["pack", "write"])
@pytest.mark.parametrize("failure", ["refused", "interrupted"])
def test_what_fails_is_said_to_be_what_was_done(verb: str, failure: str, tmp_path: Path) -> None:
    interrupted = threading.Event()

    def ask_all(processes: Any, function: str, **_: Any) -> dict[int, Any]:
        if failure == "refused":
            return {0: messages.Refused("no room")}
        interrupted.set()
        return dict.fromkeys(processes)

    sentinels: Any = SimpleNamespace(ask=lambda *_: {0: None}, ask_all=ask_all)
    carrier = Carrier(
        sentinels, [0], lambda _: {}, lambda: (), interrupted, pytest.fail, lambda: None
    )
    packed = Packed({0: messages.Measured({}, 0, ())})
    done = {"pack": "packed", "write": "written"}[verb]
    text = {"refused": f"0 could not {verb} its variables: no room", "interrupted": f"were {done}"}
    with pytest.raises((JaxnbError, KeyboardInterrupt), match=f"{text[failure]}.* has changed"):
        carrier.pack() if verb == "pack" else carrier.write(packed, {0: tmp_path})


# ---------------------------------------------------------------------- hooks


def test_on_recover_outside_a_cell_warns() -> None:
    with pytest.warns(UserWarning, match="again` will never be called.*in a %%spmd cell") as told:

        @jaxnb.on_recover
        def again() -> None:
            raise AssertionError

    assert told[0].filename == __file__
