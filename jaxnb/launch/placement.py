"""Placement: on which host, and on which devices of it, each process of a group runs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jaxnb.errors import UsageError
from jaxnb.labels import plural
from jaxnb.model.group import HostFacts
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
        counts: How many processes each host runs, in the order of the hosts and of the processes.
    """

    platform: str
    num_processes: int
    devices_per_process: int
    environments: tuple[dict[str, str], ...]
    counts: tuple[int, ...] = ()


def counts_of(placement: Placement) -> tuple[int, ...]:
    """Returns how many processes each host runs; of a group without other hosts, this one."""
    return placement.counts or (placement.num_processes,)


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
    platform = _asked_platform(options, environment)
    if platform == "auto":
        platform = "gpu" if gpus and options.devices_per_process is None else "cpu"
    if platform == "cpu":
        return _place_cpu(options, environment)
    return _place_gpu(options, gpus, environment)


def _asked_platform(options: StartOptions, environment: Mapping[str, str]) -> str:
    """Returns the platform that was asked for, by ``JAX_PLATFORMS`` too; else ``"auto"``."""
    if options.platform != "auto":
        return options.platform
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


def _require_one_gpu_each(options: StartOptions) -> None:
    if options.devices_per_process not in (None, 1):
        raise UsageError(
            "--devices-per-process is for CPU processes; on GPUs there is one process per GPU. "
            "Nothing was started."
        )


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
    _require_one_gpu_each(options)
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


# ---------------------------------------------------------------------- several hosts


@dataclass(frozen=True, slots=True)
class AskedHost:
    """A host that was asked for.

    Attributes:
        name: As ssh takes it.
        count: How many processes it is to run; None if that was left open.
    """

    name: str
    count: int | None = None


_HOST = re.compile(
    r"(?P<name>(?!-)(?:[^\s,:@]+@)?(?:[^\s,:\[\]\0]+|\[[^\s,\]]+\]))(?::(?P<count>\d+))?"
)


def parse_hosts(text: str) -> tuple[AskedHost, ...]:
    """Returns the hosts that ``hostA,user@hostB:4`` names, four processes on the second.

    An IPv6 address stands in brackets.

    Raises:
        UsageError: It cannot be read so, or names a host twice.
    """
    found: list[AskedHost] = []
    for word in text.split(","):
        match = _HOST.fullmatch(word.strip())
        if match is None or match["count"] == "0":
            raise UsageError(
                "--hosts takes names with commas and no spaces between, and after one `:N` for N "
                f"processes on it, as in `--hosts hostA,hostB:4`; not {word.strip()!r}. Nothing "
                "was started."
            )
        name = match["name"].replace("[", "").replace("]", "")
        if any(each.name == name for each in found):
            raise UsageError(
                f"--hosts names {name} twice. Nothing was started. For more processes on it: "
                f"`{name}:2`."
            )
        found.append(AskedHost(name, int(match["count"]) if match["count"] else None))
    return tuple(found)


def place_on_hosts(
    options: StartOptions,
    asked: Sequence[AskedHost],
    facts: Sequence[HostFacts],
    environment: Mapping[str, str] = os.environ,
) -> Placement:
    """Places the processes of a group on hosts, in the order of the hosts.

    A host runs as many as were asked of it. What is left of ``-n`` goes to the other hosts in
    proportion to their processors, or GPUs. Without ``-n`` each of those runs one process per GPU,
    or as many as a group on one host.

    Args:
        options: What was asked for.
        asked: The hosts that were asked for.
        facts: What each has.
        environment: What the processes inherit from the notebook.

    Raises:
        UsageError: A host has too few GPUs, or would run no process, or an option does not fit.
    """
    gpus = {host.name: each.gpus for host, each in zip(asked, facts, strict=True)}
    platform = _asked_platform(options, environment)
    if platform == "auto":
        platform = "gpu" if any(gpus.values()) and options.devices_per_process is None else "cpu"
    if platform == "cpu":
        counts = _counts(options, asked, [(each.cores, None) for each in facts])
        placement = _place_cpu(replace(options, num_processes=sum(counts)), environment)
        return replace(placement, counts=counts)
    _require_one_gpu_each(options)
    without = [name for name, own in gpus.items() if not own]
    if without:
        raise UsageError(
            f"No GPU was found on {' and '.join(without)} (nvidia-smi lists none there). Nothing "
            "was started. Name hosts with GPUs only, or add `--platform cpu` for CPU processes."
        )
    counts = _counts(options, asked, [(len(each.gpus), len(each.gpus)) for each in facts])
    # Only within one host can messages stay on it; between hosts NCCL finds the network itself.
    network = {NCCL_NETWORK: LOOPBACK_DEVICE} if len(asked) == 1 else {}
    own = {} if NCCL_NETWORK in environment else network
    used = [gpu for each, n in zip(facts, counts, strict=True) for gpu in each.gpus[:n]]
    environments = tuple({"CUDA_VISIBLE_DEVICES": gpu, **own} for gpu in used)
    return Placement("gpu", len(used), 1, environments, counts)


def _counts(
    options: StartOptions, asked: Sequence[AskedHost], sizes: Sequence[tuple[int, int | None]]
) -> tuple[int, ...]:
    """Returns how many processes each host runs.

    Args:
        options: What was asked for in all.
        asked: What was asked of each.
        sizes: How large each is, in processors or GPUs, and how many processes it can run at most.
    """
    for host, (_, most) in zip(asked, sizes, strict=True):
        if most is not None and (host.count or 0) > most:
            raise UsageError(
                f"{host.count} processes were asked for on {host.name}, which has "
                f"{plural(most, 'GPU')}, and NCCL refuses two processes of one group on one GPU. "
                f"Nothing was started. Ask for `{host.name}:{most}`, or add `--platform cpu`."
            )
    n = options.num_processes
    if n is None:
        alone = (DEFAULT_NUM_PROCESSES if most is None else most for _, most in sizes)
        return tuple(host.count or count for host, count in zip(asked, alone, strict=True))
    counts = [host.count or 1 for host in asked]
    free = [i for i, host in enumerate(asked) if host.count is None]
    least = sum(counts)
    if least > n or (least < n and not free):
        fewest = f"asks for {'at least ' if free else ''}{least} in all"
        raise UsageError(
            f"-n asks for {plural(n, 'process')}, and --hosts {fewest}. Nothing was started. "
            f"Type `-n {least}`, or other hosts, or other numbers after them."
        )
    for _ in range(n - least):
        fit = [i for i in free if sizes[i][1] is None or counts[i] < sizes[i][0]]
        if not fit:
            raise _too_few_gpus(n, asked, sizes, sum(counts))
        counts[min(fit, key=lambda i: (counts[i] + 1) / sizes[i][0])] += 1
    return tuple(counts)


def _too_few_gpus(
    n: int, asked: Sequence[AskedHost], sizes: Sequence[tuple[int, int | None]], most: int
) -> UsageError:
    there = zip(asked, sizes, strict=True)
    gpus = ", ".join(f"{plural(size, 'GPU')} on {host.name}" for host, (size, _) in there)
    return UsageError(
        f"{n} processes were asked for, and there are fewer GPUs ({gpus}); NCCL refuses two "
        f"processes of one group on one GPU. Nothing was started. Start with `-n {most}`, or with "
        f"`-n {n} --platform cpu`."
    )
