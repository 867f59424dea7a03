"""What a start may be asked for, and which process gets which device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnb.errors import UsageError
from jaxnb.launch import host
from jaxnb.launch.placement import place
from jaxnb.options import StartOptions, launcher_of, process_indices, suggest
from jaxnb.session.starting import Starter


@pytest.mark.parametrize(
    ("field", "value", "name"),
    [
        ("num_processes", 0, "number of processes (-n)"),
        ("devices_per_process", 0, "devices per process (--devices-per-process)"),
    ],
)
def test_counts_below_one_are_refused(field: str, value: int, name: str) -> None:
    with pytest.raises(UsageError, match="must be at least 1") as raised:
        StartOptions(**{field: value})  # type: ignore[arg-type]
    assert name in str(raised.value)
    assert str(value) in str(raised.value)
    assert "Nothing was started." in str(raised.value)


@pytest.mark.parametrize("value", [1.0, "4", True, [4]])
def test_counts_are_whole_numbers(value: Any) -> None:
    with pytest.raises(UsageError, match="must be a whole number") as raised:
        StartOptions(num_processes=value)
    assert repr(value) in str(raised.value)


@pytest.mark.parametrize(
    ("ranks", "indices"), [(None, [0, 1, 2, 3]), (2, [2]), ((3, 0, 3), [0, 3]), (range(2), [0, 1])]
)
def test_ranks_are_one_or_several_or_all(ranks: Any, indices: list[int]) -> None:
    assert process_indices(ranks, 4) == indices
    for wrong in (4, -1, [], [0, 4]):
        with pytest.raises(UsageError):
            process_indices(wrong, 4)


@pytest.mark.parametrize(
    ("field", "word", "near"),
    [
        ("platform", "cpus", "cpu"),
        ("platform", "GPU", None),
        ("launcher", "forks", "fork"),
        ("collectives", "glo", "gloo"),
        ("platform", "quantum", None),
    ],
)
def test_unknown_names_suggest_the_near_one(field: str, word: str, near: str | None) -> None:
    with pytest.raises(UsageError) as raised:
        launcher_of(StartOptions(**{field: word}))  # type: ignore[arg-type]
    message = str(raised.value)
    assert message.startswith(f"Unknown {field} {word!r}.")
    assert (f"Did you mean {near!r}?" in message) == (near is not None)
    assert "There are: " in message
    assert message.endswith("Nothing was started.")


@pytest.mark.parametrize("timeout", [0, -1.5, float("nan")])
def test_time_out_is_positive(timeout: float) -> None:
    with pytest.raises(UsageError, match="time-out must be positive"):
        StartOptions(timeout=timeout)


@pytest.mark.parametrize("seconds", [0, 4.9, 91, float("nan")])
def test_a_host_is_lost_before_jax_gives_its_processes_up(seconds: float) -> None:
    with pytest.raises(UsageError, match=r"--lost-after\) must be 5 to 90, not .*\. Nothing was"):
        StartOptions(lost_after=seconds)


@pytest.mark.parametrize(
    ("asked", "told"), [({"lost_after": 20}, "--lost-after"), ({"env": ("HOME",)}, "--env HOME")]
)
def test_what_is_for_other_hosts_is_refused_on_one(asked: Any, told: str) -> None:
    with pytest.raises(UsageError, match=f"^`{told}` is for other hosts .*Nothing was started"):
        launcher_of(StartOptions(**asked))
    launcher_of(StartOptions(hosts="hostA,hostB", **asked))
    launcher_of(StartOptions(launcher="slurm", **asked))
    launcher_of(StartOptions(env=("NAME=value",)))


@pytest.mark.parametrize(
    ("system", "launcher"), [("linux", "fork"), ("darwin", "local"), ("win32", "local")]
)
def test_forking_is_the_default_on_linux_only(
    system: str, launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host.sys, "platform", system)
    assert launcher_of(StartOptions()) == launcher


@given(st.text(max_size=20))
def test_suggestions_are_known_words_or_nothing(word: str) -> None:
    known = ("fork", "local", "slurm")
    said = suggest(word, known)
    assert said in ("", *(f" Did you mean {name!r}?" for name in known))


# ---------------------------------------------------------------------- placement


FOUR_GPUS = ("0", "1", "2", "3")
NETWORK_CHOSEN = {"NCCL_SOCKET_IFNAME": "eth0"}


@pytest.mark.parametrize(
    ("asked", "gpus", "platform", "devices", "visible"),
    [
        ({}, (), "cpu", 1, [None] * 4),
        ({}, FOUR_GPUS, "gpu", 1, ["0", "1", "2", "3"]),
        ({"num_processes": 2}, FOUR_GPUS, "gpu", 1, ["0", "1"]),
        ({"platform": "gpu"}, ("GPU-8c2f", "3"), "gpu", 1, ["GPU-8c2f", "3"]),
        ({"devices_per_process": 2}, FOUR_GPUS, "cpu", 2, [None] * 4),
        ({"platform": "cpu", "num_processes": 6}, FOUR_GPUS, "cpu", 1, [None] * 6),
    ],
)
def test_who_gets_what(
    asked: Any, gpus: tuple[str, ...], platform: str, devices: int, visible: list[str | None]
) -> None:
    placed = place(StartOptions(**asked), gpus, NETWORK_CHOSEN)
    assert (placed.platform, placed.num_processes) == (platform, len(visible))
    assert placed.devices_per_process == devices
    expected = tuple({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {} for gpu in visible)
    assert placed.environments == expected


def test_gpu_without_a_gpu_says_what_to_type() -> None:
    with pytest.raises(UsageError, match="No GPU was found") as raised:
        place(StartOptions(platform="gpu"), ())
    assert "Nothing was started." in str(raised.value)
    assert "Add `--platform cpu`" in str(raised.value)


@pytest.mark.parametrize(
    ("names", "platform"), [("", "gpu"), ("cpu", "cpu"), ("cuda,cpu", "gpu"), ("cpu,cuda", "cpu")]
)
def test_jax_platforms_decides_where_no_option_does(names: str, platform: str) -> None:
    assert place(StartOptions(), FOUR_GPUS, {"JAX_PLATFORMS": names}).platform == platform
    assert place(StartOptions(platform="cpu"), (), {"JAX_PLATFORMS": names}).platform == "cpu"


@pytest.mark.parametrize(
    ("names", "told"), [("cuda", "No GPU was found"), ("tpu", "asks for 'tpu'")]
)
def test_what_jax_platforms_asks_for_is_not_replaced(names: str, told: str) -> None:
    with pytest.raises(UsageError, match=told) as raised:
        place(StartOptions(), (), {"JAX_PLATFORMS": names})
    assert f"JAX_PLATFORMS={names} asks for" in str(raised.value)


def test_jaxs_own_sharing_of_programs_is_refused_where_it_fails() -> None:
    shares = {"JAX_SHARE_BINARY_BETWEEN_HOSTS": "True"}
    assert place(StartOptions(), FOUR_GPUS, shares).platform == "gpu"
    with pytest.raises(UsageError, match="Unset JAX_SHARE_BINARY_BETWEEN_HOSTS: jaxnb"):
        place(StartOptions(), (), shares)


@pytest.mark.parametrize("platform", ["auto", "gpu"])
def test_more_processes_than_gpus_are_refused(platform: str) -> None:
    with pytest.raises(UsageError) as raised:
        place(StartOptions(platform=platform, num_processes=5), FOUR_GPUS)
    message = str(raised.value)
    assert message.startswith("5 processes were asked for, but there are 4 GPUs on this host")
    assert "`-n 4`" in message
    assert "`-n 5 --platform cpu`" in message
    with pytest.raises(UsageError, match="there is 1 GPU on this host"):
        place(StartOptions(platform=platform, num_processes=2), ("0",))


def test_one_device_per_process_is_what_gpus_have() -> None:
    assert place(StartOptions(platform="gpu", devices_per_process=1), FOUR_GPUS).num_processes == 4
    with pytest.raises(UsageError, match="is for CPU processes"):
        place(StartOptions(platform="gpu", devices_per_process=2), FOUR_GPUS)


def test_nccl_stays_on_this_host_unless_the_user_says_otherwise() -> None:
    asked = StartOptions(platform="gpu")
    placed = place(asked, FOUR_GPUS, {})
    assert [e["NCCL_SOCKET_IFNAME"] for e in placed.environments] == ["lo"] * 4
    placed = place(asked, FOUR_GPUS, {"NCCL_SOCKET_IFNAME": "eth1"})
    assert not [e for e in placed.environments if "NCCL_SOCKET_IFNAME" in e]
    assert place(StartOptions(platform="cpu"), (), {}).environments == ({},) * 4


def test_processes_are_told_as_they_join() -> None:
    options, group = (
        StartOptions(platform="gpu"),
        SimpleNamespace(
            directory="/run/of-mine", hosts=SimpleNamespace(address_of=lambda _: "127.0.0.1")
        ),
    )
    placement = place(options, FOUR_GPUS, {})
    starter = Starter(group, options, placement, lambda *_: None, (), lambda _: None)  # type: ignore[arg-type]
    joins = starter._joins("unix:/run/of-mine/jax-1")
    assert [each.environment["NCCL_SOCKET_IFNAME"] for each in joins] == ["lo"] * 4
    assert {(each.bind_host, each.socket_folder) for each in joins} == {
        ("127.0.0.1", "/run/of-mine")
    }


@given(
    n=st.none() | st.integers(1, 64),
    devices=st.none() | st.integers(1, 16),
    platform=st.sampled_from(["auto", "cpu", "gpu"]),
    gpus=st.lists(st.integers(0, 15).map(str), unique=True, max_size=8).map(tuple),
)
def test_every_placement_is_whole(
    n: int | None, devices: int | None, platform: str, gpus: tuple[str, ...]
) -> None:
    asked = StartOptions(num_processes=n, devices_per_process=devices, platform=platform)
    try:
        placed = place(asked, gpus)
    except UsageError:
        return
    assert placed.num_processes == len(placed.environments) >= 1
    assert n in (None, placed.num_processes)
    given_out = [e["CUDA_VISIBLE_DEVICES"] for e in placed.environments if e]
    if placed.platform == "gpu":
        assert len(given_out) == placed.num_processes
        assert len(set(given_out)) == len(given_out)
        assert set(given_out) <= set(gpus)
    else:
        assert given_out == []
        assert placed.devices_per_process == (devices or 1)
