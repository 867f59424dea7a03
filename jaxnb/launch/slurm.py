"""Agents by Slurm's srun, on the nodes of the allocation that the notebook runs in."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace

from jaxnb.errors import UsageError
from jaxnb.launch.remote import AgentStart, RemoteShell
from jaxnb.options import StartOptions

# A step of its own on all that the job has on one node, beside steps that run there.
OPTIONS = ("--job-name=jaxnb", "--overlap", "--nodes=1", "--ntasks=1", "--mem=0")

BY_HAND = "srun --overlap -N1 -n1 -w"
"""What to type before a node and a command to run it there."""

UNSET = ("SLURM_CPUS_PER_TASK", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_NTASKS_PER_NODE")
"""What the job was asked for, which srun would take for what the step is to have."""


def with_nodes(options: StartOptions, environment: Mapping[str, str] = os.environ) -> StartOptions:
    """Returns options for Slurm with hosts: the nodes of the allocation, unless some are named.

    If the job says how many tasks each has, and ``-n`` nothing, they run as many processes. Outside
    of an allocation they stay as they are: a job will be submitted.

    Raises:
        UsageError: There is no srun, or nodes are named and there is no allocation.
    """
    if options.launcher != "slurm":
        return options
    names = environment.get("SLURM_JOB_NODELIST", "")
    if not (environment.get("SLURM_JOB_ID") and names):  # an editor's terminal may have half of it
        if options.hosts:
            raise UsageError(
                "`--hosts` names nodes of an allocation, and this program runs in none "
                "(SLURM_JOB_ID and SLURM_JOB_NODELIST are not both set). Nothing was started. To "
                "have a job submitted, leave it out; `--nodes 2` asks for two."
            )
        return options
    if int(environment.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        raise UsageError(
            f"This is one of {environment['SLURM_STEP_NUM_TASKS']} tasks that srun has started, "
            "and each of them would start a group. Nothing was started. Start it once, without "
            "srun: `--launcher slurm` runs srun itself."
        )
    if missing := [each for each in ("srun", "scontrol") if shutil.which(each) is None]:
        raise UsageError(
            f"`--launcher slurm` takes Slurm's own programs, and `{missing[0]}` is not on PATH. "
            "Nothing was started."
        )
    words = ["scontrol", "show", "hostnames", names]
    shown = subprocess.run(words, capture_output=True, text=True, check=False)
    if shown.returncode:
        raise UsageError(
            f"scontrol does not know {names}: {shown.stderr.strip()}. Nothing was started."
        )
    nodes = shown.stdout.split()
    says = options.num_processes is None and "SLURM_NTASKS" in environment
    tasks = tasks_of(environment.get("SLURM_TASKS_PER_NODE", "")) if says else []
    counts = dict(zip(nodes, tasks, strict=True)) if len(tasks) == len(nodes) else {}
    asked = [each.strip() for each in options.hosts.split(",")] if options.hosts else nodes
    hosts = [f"{each}:{counts[each]}" if each in counts else each for each in asked]
    return replace(options, hosts=",".join(hosts))


def tasks_of(text: str) -> list[int]:
    """Returns the tasks of each node that ``2(x3),1`` means."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(tasks) for tasks, nodes in found for _ in range(int(nodes or 1))]


def srun_command(start: AgentStart) -> list[str]:
    """Returns the command line that starts an agent on a node of the allocation."""
    unset = [word for name in UNSET for word in ("-u", name)]
    return ["env", *unset, "srun", *OPTIONS, f"--nodelist={start.host}", *start.words]


def _failure(host: str, _: int | None, errors: str) -> tuple[str, str] | None:
    """Returns why srun has failed, and what to type; see ``RemoteShell``."""
    if "Invalid job id" in errors or "Expired or invalid job" in errors:
        return "the allocation has ended", "Start Jupyter within a new one."
    if "node configuration is not available" in errors or "Invalid node name" in errors:
        return (
            "it is no node of the allocation",
            "`scontrol show hostnames $SLURM_JOB_NODELIST` lists these; without `--hosts` all are "
            "taken.",
        )
    if "srun: error: " in errors and "task 0: Exited" not in errors:
        return "srun has failed", f"`{BY_HAND} {host} true` has to work by itself."
    return None


SRUN = RemoteShell(BY_HAND, srun_command, _failure)
