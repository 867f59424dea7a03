"""Which of NVML's GPUs is asked, and what is said where NVML tells nothing."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from jaxnb.profile.process_stats import INSTALL, Gpus, Reading


class NVMLError(Exception):
    pass


class FakeNvml(ModuleType):
    """NVML of a host with two GPUs, and a slice of one."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.begun = 0

    def nvmlInit(self) -> None:
        self.begun += 1

    def nvmlDeviceGetHandleByPciBusId(self, bus_id: str) -> str:
        if bus_id not in ("0000:17:00.0", "0000:65:00.0"):
            raise NVMLError("Not Found")
        return bus_id

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        if handle.startswith("MIG-"):
            raise NVMLError("Not Supported")
        return SimpleNamespace(gpu=17 if ":17:" in handle else 65)

    def nvmlDeviceGetTemperature(self, handle: str, which: int) -> int:
        if handle.startswith("MIG-"):
            raise NVMLError("Not Supported")
        return 40


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def bus_of(*buses: str) -> Any:
    return lambda ordinal: buses[ordinal]


def test_gpus_are_told_by_their_place_on_the_bus(nvml: FakeNvml) -> None:
    """CUDA's first GPU need not be NVML's first."""
    gpus = Gpus(bus_of("0000:65:00.0", "0000:17:00.0"), {"CUDA_VISIBLE_DEVICES": "1,0"})
    assert [gpus.reading(i) for i in (0, 1)] == [Reading(65.0, 40), Reading(17.0, 40)]
    assert gpus.reading(0) == Reading(65.0, 40)
    assert nvml.begun == 1


def test_a_slice_has_no_figures_of_its_own(nvml: FakeNvml) -> None:
    gpus = Gpus(bus_of("0000:17:00.0"), {"CUDA_VISIBLE_DEVICES": "MIG-1234"})
    assert gpus.reading(0) == Reading(None, None, "NVML says Not Supported.")


def test_who_is_not_known_is_not_guessed(nvml: FakeNvml) -> None:
    gpus = Gpus(lambda ordinal: None, {})
    assert "does not say which" in gpus.reading(0).note
    gpus = Gpus(bus_of("0000:99:00.0"), {})
    assert gpus.reading(0).note == "NVML says Not Found."


def test_without_nvml_the_note_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Gpus(bus_of("x"), {}).reading(0) == Reading(None, None, INSTALL)
    assert "pip install nvidia-ml-py" in INSTALL


def test_without_a_driver_the_note_says_what_nvml_says(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise NVMLError("Driver Not Loaded")

    monkeypatch.setattr(nvml, "nvmlInit", fail)
    assert "Driver Not Loaded" in Gpus(bus_of("x"), {}).reading(0).note
