"""Utilisation and temperature of NVIDIA GPUs, by NVML where ``nvidia-ml-py`` is installed."""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

INSTALL = "Utilisation and temperature need nvidia-ml-py: `pip install nvidia-ml-py`."


@dataclass(frozen=True, slots=True)
class Reading:
    """What NVML says of one GPU; None is what it does not tell.

    Attributes:
        percent: How much of the last moments at least one kernel ran.
        celsius: Its temperature.
        note: Why something is missing.
    """

    percent: float | None
    celsius: int | None
    note: str = ""


def pci_bus_id(ordinal: int) -> str | None:
    """Asks the CUDA driver, which JAX has initialised, for a GPU's place on the bus.

    That is right whatever ``CUDA_VISIBLE_DEVICES`` and ``CUDA_DEVICE_ORDER`` say.

    Args:
        ordinal: CUDA's number of it in this process.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, text = ctypes.c_int(), ctypes.create_string_buffer(32)
    if cuda.cuDeviceGet(ctypes.byref(device), ordinal):
        return None
    if cuda.cuDeviceGetPCIBusId(text, len(text), device):
        return None
    return text.value.decode()


class Gpus:
    """The GPUs of this process, as NVML knows them.

    Nothing is loaded before the first question. What NVML cannot tell is None, with a note.

    Args:
        bus_id: Returns where on the bus CUDA's GPU of a number is; None if it does not tell.
        environment: The process's variables.
    """

    def __init__(
        self,
        bus_id: Callable[[int], str | None] = pci_bus_id,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._bus_id = bus_id
        self._environment = environment
        self._nvml: Any = None
        self._missing: str | None = None
        self._handles: dict[int, Any] = {}

    def reading(self, ordinal: int) -> Reading:
        """Returns how busy and how warm a GPU is.

        Args:
            ordinal: CUDA's number of it in this process: the first visible one is 0.
        """
        if self._missing is None:
            self._missing = self._load()
        if self._missing:
            return Reading(None, None, self._missing)
        nvml = self._nvml
        try:
            handle = self._handles.get(ordinal) or self._handle(ordinal)
        except nvml.NVMLError as error:
            return Reading(None, None, f"NVML does not know this GPU: {error}.")
        if handle is None:
            return Reading(None, None, "The CUDA driver does not say which of NVML's GPUs this is.")
        self._handles[ordinal] = handle
        notes: list[str] = []
        percent = self._asked(lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu), notes)
        celsius = self._asked(
            lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)), notes
        )
        return Reading(percent, celsius, " ".join(dict.fromkeys(notes)))

    def _load(self) -> str:
        """Starts NVML; returns why it cannot be used, or nothing."""
        try:
            self._nvml = importlib.import_module("pynvml")
        except ImportError:
            return INSTALL
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            return f"Utilisation and temperature are missing: NVML says {error}."
        return ""

    def _handle(self, ordinal: int) -> Any:
        visible = [
            name.strip() for name in self._environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
        ]
        name = visible[ordinal] if ordinal < len(visible) else ""
        # Numbers in it are counted in CUDA's own order, which need not be NVML's.
        if name.startswith("MIG-"):
            return self._nvml.nvmlDeviceGetHandleByUUID(name)
        bus_id = self._bus_id(ordinal)
        return bus_id and self._nvml.nvmlDeviceGetHandleByPciBusId(bus_id)

    def _asked(self, ask: Callable[[], Any], notes: list[str]) -> Any:
        try:
            return ask()
        except self._nvml.NVMLError as error:  # a slice of a GPU (MIG) has no figures of its own
            notes.append(f"NVML says {error}.")
            return None
