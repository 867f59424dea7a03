"""Which NVIDIA GPUs this host has, asked without initialising CUDA in this process.

A notebook that has touched CUDA cannot hand it to forked processes, so neither CUDA nor jax
is asked here.
"""

from __future__ import annotations

import os
import shutil
import subprocess


def visible_gpus(environment: dict[str, str] | None = None) -> tuple[str, ...]:
    """Returns the GPUs that processes started now would see.

    ``CUDA_VISIBLE_DEVICES`` is respected; a host without ``nvidia-smi`` has none.

    Returns:
        Their names as ``CUDA_VISIBLE_DEVICES`` takes them: indices or UUIDs.
    """
    environment = dict(os.environ) if environment is None else environment
    present = _present_gpus()
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not present:
        return present
    chosen = []
    for name in (part.strip() for part in visible.split(",")):
        # CUDA stops at the first name that it does not know, "-1" included.
        if name not in present and not name.startswith(("GPU-", "MIG-")):
            break
        chosen.append(name)
    return tuple(chosen)


def _present_gpus() -> tuple[str, ...]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    try:
        listing = subprocess.run(
            [program, "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (subprocess.SubprocessError, OSError):
        # A driver that is installed without a card makes it fail: no GPU either way.
        return ()
    return tuple(line.strip() for line in listing.stdout.splitlines() if line.strip())
