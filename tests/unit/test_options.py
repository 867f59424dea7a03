"""What a start may be asked for, and what it says to what it may not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnb.errors import UsageError
from jaxnb.launch import host
from jaxnb.options import LAUNCHERS, PLATFORMS, StartOptions, launcher_of, one_of, suggest


def test_defaults_are_possible() -> None:
    asked = StartOptions()
    assert (asked.num_processes, asked.devices_per_process) == (None, None)
    assert (asked.platform, asked.launcher, asked.collectives) == ("auto", None, "gloo")
    assert not asked.bare


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_known_names_are_taken(platform: str, launcher: str) -> None:
    asked = StartOptions(platform=platform, launcher=launcher)
    assert (asked.platform, launcher_of(asked)) == (platform, launcher)


@pytest.mark.parametrize(
    ("field", "value", "name"),
    [
        ("num_processes", 0, "number of processes (-n)"),
        ("num_processes", -3, "number of processes (-n)"),
        ("devices_per_process", 0, "devices per process (--devices-per-process)"),
        ("devices_per_process", -1, "devices per process (--devices-per-process)"),
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
    ("field", "word", "near"),
    [
        ("platform", "cpus", "cpu"),
        ("platform", "GPU", None),
        ("platform", "gpuu", "gpu"),
        ("launcher", "forks", "fork"),
        ("launcher", "locl", "local"),
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


@pytest.mark.parametrize("timeout", [float("inf"), 1e300])
def test_a_start_may_take_as_long_as_it_likes(timeout: float) -> None:
    assert StartOptions(timeout=timeout).timeout == timeout


def test_options_do_not_change() -> None:
    with pytest.raises(AttributeError):
        StartOptions().platform = "gpu"  # type: ignore[misc]


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


@given(st.sampled_from(LAUNCHERS))
def test_known_words_are_returned(word: str) -> None:
    assert one_of("launcher", word, LAUNCHERS) == word
