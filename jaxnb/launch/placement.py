"""Placement: on which devices of this host each process of a group runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxnb.errors import UsageError
from jaxnb.options import DEFAULT_NUM_PROCESSES, StartOptions

NCCL_NETWORK = "NCCL_SOCKET_IFNAME"
"""The variable that names the network devices whose addresses NCCL listens on. Left alone NCCL
takes one that other machines reach, and the first messages of a group are neither signed nor
encrypted. A value that the user has set is kept."""

LOOPBACK_DEVICE = "lo"

_SHARES = "JAX_SHARE_BINARY_BETWEEN_HOSTS"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where every process runs.

    Attributes:
        platform: ``"cpu"`` or ``"gpu"``.
        num_processes: How many.
        devices_per_process: Devices of each.
        environments: For each process the variables that give it its devices.
    """

    platform: str
    num_processes: int
    devices_per_process: int
    environments: tuple[dict[str, str], ...]


_PLATFORMS = {"": "auto", "cpu": "cpu", "gpu": "gpu", "cuda": "gpu", "rocm": "gpu"}
"""What JAX calls a platform, to an option."""


def place(
    options: StartOptions, gpus: Sequence[str], environment: Mapping[str, str] = os.environ
) -> Placement:
    """Places the processes of a group on one host.

    With ``--platform auto``, ``JAX_PLATFORMS`` decides, as in plain JAX.

    Args:
        options: What was asked for.
        gpus: The GPUs of this host that may be used, as ``CUDA_VISIBLE_DEVICES`` names them.
        environment: What the processes inherit.

    Raises:
        UsageError: More GPUs are needed than there are, or an option does not fit.
    """
    platform = options.platform
    if platform == "auto":
        platform = _asked_of_jax(environment)
    if platform == "auto":
        platform = "gpu" if gpus and options.devices_per_process is None else "cpu"
    if platform == "cpu":
        return _place_cpu(options, environment)
    return _place_gpu(options, gpus, environment)


def _asked_of_jax(environment: Mapping[str, str]) -> str:
    """Returns the platform that ``JAX_PLATFORMS`` asks for, by its first name; else ``"auto"``."""
    names = environment.get("JAX_PLATFORMS", "")
    first = names.partition(",")[0].strip()
    if first not in _PLATFORMS:
        raise UsageError(
            f"JAX_PLATFORMS={names} asks for {first!r}; processes are started on GPUs or the CPU. "
            "Nothing was started. Add `--platform cpu`, or unset JAX_PLATFORMS."
        )
    return _PLATFORMS[first]


def _place_cpu(options: StartOptions, environment: Mapping[str, str]) -> Placement:
    if environment.get(_SHARES, "").lower() in ("1", "t", "true", "y", "yes", "on"):
        raise UsageError(
            f"{_SHARES}={environment[_SHARES]}: collectives on the CPU wait for a program that JAX "
            "never sends, until they fail. Nothing was started. Unset "
            f"{_SHARES}: jaxnb has each program compiled once by itself."
        )
    n = options.num_processes or DEFAULT_NUM_PROCESSES
    return Placement("cpu", n, options.devices_per_process or 1, ({},) * n)


def _place_gpu(
    options: StartOptions, gpus: Sequence[str], environment: Mapping[str, str]
) -> Placement:
    if not gpus:
        names = environment.get("JAX_PLATFORMS")
        asked = f"; JAX_PLATFORMS={names} asks for one" if options.platform == "auto" else ""
        raise UsageError(
            "No GPU was found on this host (nvidia-smi lists none, or CUDA_VISIBLE_DEVICES "
            f"hides them){asked}. Nothing was started. Add `--platform cpu` for CPU processes."
        )
    if options.devices_per_process not in (None, 1):
        raise UsageError(
            "--devices-per-process is for CPU processes; on GPUs there is one process per GPU. "
            "Nothing was started."
        )
    n = options.num_processes or len(gpus)
    if n > len(gpus):
        there_are = "there is 1 GPU" if len(gpus) == 1 else f"there are {len(gpus)} GPUs"
        raise UsageError(
            f"{n} processes were asked for, but {there_are} on this host, and "
            "NCCL refuses two processes of one group on one GPU. Nothing was started. Start "
            f"with `-n {len(gpus)}`, or with `-n {n} --platform cpu`."
        )
    network = {} if NCCL_NETWORK in environment else {NCCL_NETWORK: LOOPBACK_DEVICE}
    return Placement(
        "gpu", n, 1, tuple({"CUDA_VISIBLE_DEVICES": gpu, **network} for gpu in gpus[:n])
    )
