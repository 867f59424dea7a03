"""What processes have told of a variant, to what they can do with it together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from jaxnb.compiled import process_measuring
from jaxnb.labels import format_bytes, processes_label
from jaxnb.launch.host import available_bytes
from jaxnb.model.compiled import VariantFailure


def failure(words: Mapping[int, Mapping[str, Any]]) -> VariantFailure | None:
    """Returns why the processes cannot run a variant together; None if they can."""
    failed = {i: word for i, word in words.items() if word["failure"]}
    if failed:
        first = next(iter(failed.values()))
        stage, message = first["failure"]
        if len(failed) < len(words):
            message = f"on {processes_label(failed)} only. {message}".strip()
        return VariantFailure(stage, message, process_measuring.as_error(first["error"]))
    groups: dict[str, list[int]] = {}
    for index, word in words.items():
        groups.setdefault(word["fingerprint"], []).append(index)
    if len(groups) > 1:
        sides = " ≠ ".join(map(processes_label, groups.values()))
        return VariantFailure(
            "agreed",
            f"they compiled different programs, {sides}. It was not run: the results would be "
            "wrong, and JAX would not notice.",
        )
    return None


def local_devices(mesh: Mesh | None) -> list[Any]:
    """Returns the devices of a mesh that are this process's."""
    devices = () if mesh is None else mesh.devices.flat
    return [device for device in devices if device.process_index == jax.process_index()]


def free_bytes(mesh: Mesh | None) -> int | None:
    """Returns what the devices of a mesh that are here can still take; None if unknown."""
    local = local_devices(mesh)
    if not local:
        return None
    if local[0].platform == "cpu":
        return available_bytes()
    free = []
    for device in local:
        known = device.memory_stats() or {}
        if "bytes_limit" in known and "bytes_in_use" in known:
            free.append(known["bytes_limit"] - known["bytes_in_use"])
    return min(free) * len(local) if len(free) == len(local) else None


def too_large(words: Mapping[int, Mapping[str, Any]]) -> VariantFailure | None:
    """Returns why a variant is not run: where its memory is wanted, there is not enough.

    On a CPU the processes of a host share its memory, and Linux would kill one of them instead of
    refusing.
    """
    hosts: dict[str, list[Mapping[str, Any]]] = {}
    for word in words.values():
        if word["free"] is not None:
            hosts.setdefault(word["host"], []).append(word)
    is_cpu = jax.default_backend() == "cpu"
    for host, known in hosts.items():
        pairs = [(word["needs"], word["free"]) for word in known]
        if is_cpu:
            pairs = [(sum(needs for needs, _ in pairs), min(free for _, free in pairs))]
        for needs, free in pairs:
            if needs > free:
                return VariantFailure(
                    "run",
                    f"it needs {format_bytes(needs)} on {host}, where {format_bytes(free)} are "
                    "free.",
                )
    return None
