"""ipyparallel's launchers of engines, as launchers of agents: for the keeper of a job."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ipyparallel as ipp
from ipyparallel.cluster.launcher import BatchSystemLauncher, MPILauncher, SlurmLauncher
from traitlets import CRegExp, Integer, List, Unicode

from jaxnb.errors import UsageError
from jaxnb.launch.remote import ENDS_WITH_PARENT, HERE, LINGERS
from jaxnb.launch.slurm import UNSET

SLURM_TEMPLATE = f"""#!/bin/sh
#SBATCH --export=ALL
#SBATCH --job-name=jaxnb
#SBATCH --no-requeue
#SBATCH --nodes={{nodes}}
#SBATCH --ntasks={{tasks}}
unset {" ".join(UNSET)}
srun --overlap --nodes={{nodes}} --ntasks={{nodes}} --ntasks-per-node=1 --mem=0 \\
    {{program_and_args}}
"""
"""A job with a task for each process; one agent on each node has all that the job has there."""

SETTINGS = {"partition": "queue", "account": "account", "qos": "qos", "time_limit": "timelimit"}
"""Options of a start, to what ipyparallel's launchers call them."""


ENGINE_SECONDS = 10.0
"""So long an engine may take to answer."""


@dataclass(frozen=True)
class Launching:
    """A launcher, and what it starts.

    Attributes:
        launcher: One of ipyparallel's, or what stands for one.
        agents: How many agents it starts: on Slurm one on each node, unless the user has a template
            of the job; else one for each process.
        is_slurm: Slurm says what becomes of it.
        is_batch: It waits in a queue.
        counts: How many processes each host is to run; empty if that is left open.
    """

    launcher: Any
    agents: int
    is_slurm: bool = False
    is_batch: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)


def make_launcher(
    name: str,
    attach: str,
    words: list[str],
    folder: str,
    num_processes: int,
    nodes: int,
    gpus_per_node: int | None,
    **settings: str,
) -> Launching:
    """Makes a launcher, as the user has configured it for ipyparallel.

    Args:
        name: As ipyparallel knows it.
        attach: The cluster whose engines start agents; empty for a launcher.
        words: The command line of an agent.
        folder: Where the job's script is written.
        num_processes: How many processes the group has.
        nodes: On how many nodes; for Slurm.
        gpus_per_node: How many GPUs the job asks for on each; for Slurm.
        settings: See :data:`SETTINGS`; empty ones are left as the user has configured them.

    Raises:
        UsageError: It has no such setting.
    """
    if attach:
        engines = EnginesLauncher(attach, words)
        return Launching(engines, len(engines.counts), counts=engines.counts)
    cluster = ipp.Cluster(engines=name)
    base = cluster.engine_launcher_class
    is_slurm, is_batch = issubclass(base, SlurmLauncher), issubclass(base, BatchSystemLauncher)
    if issubclass(base, MPILauncher):
        words = [*words, LINGERS]
    ours: dict[str, Any] = {"program": List(words), "program_args": List()}
    if is_slurm:
        lines = SLURM_TEMPLATE.splitlines(keepends=True)
        if gpus_per_node is not None:
            lines.insert(1, f"#SBATCH --gpus-per-node={gpus_per_node}\n")
        ours["default_template"] = Unicode("".join(lines))
        # A site's sbatch may print other numbers.
        ours["job_id_regexp"] = CRegExp(r"(?m)(?:Submitted batch job |^)(\d+)")
        ours["job_id_regexp_group"] = Integer(1)
    launcher = type(base.__name__, (base,), ours)(
        parent=cluster,
        work_dir=folder if is_batch else os.getcwd(),
        profile_dir=cluster.profile_dir,
        cluster_id=cluster.cluster_id,
    )
    for option, value in settings.items():
        if value and not launcher.has_trait(SETTINGS[option]):
            raise UsageError(
                f"`--launcher {name}` has no {option.replace('_', ' ')}. Nothing was started. Set "
                "what it needs in ipyparallel's ipcluster_config.py."
            )
        if value:
            setattr(launcher, SETTINGS[option], value)
    if not is_slurm or launcher.batch_template or launcher.batch_template_file:
        return Launching(launcher, num_processes, is_slurm, is_batch)
    launcher.namespace = {**launcher.namespace, "nodes": nodes, "tasks": num_processes}
    return Launching(launcher, nodes, is_slurm, is_batch)


class EnginesLauncher:
    """Has engines that something else has started start agents: one on each of their hosts.

    An agent ends with the engine that has started it.

    Args:
        cluster: A profile of ipyparallel's, and after a colon the cluster's id if it has one.
        words: The command line of an agent.

    Attributes:
        environment: Variables that agents get.
        counts: How many engines each host has.

    Raises:
        UsageError: There is no such cluster, or it has no engines, or one does not answer.
    """

    def __init__(self, cluster: str, words: list[str]) -> None:
        self.environment: dict[str, str] = {}
        self._words = words
        profile, _, cluster_id = cluster.partition(":")
        try:
            self._client = ipp.Client(profile=profile or None, cluster_id=cluster_id)
        except (OSError, TimeoutError) as error:
            raise UsageError(
                f"`--attach {cluster}`: ipyparallel finds no running cluster of that name "
                f"({error}). Nothing was started. `ipcluster list` shows those that run."
            ) from None
        engines = self._client.ids
        if not engines:
            raise UsageError(
                f"`--attach {cluster}`: no engine of the cluster has registered yet. Nothing was "
                "started. Engines take some seconds to come: type it again."
            )
        asked = self._client[engines].apply_async(socket.gethostname)
        if not asked.wait(ENGINE_SECONDS):
            ids = zip(engines, asked.msg_ids, strict=True)
            silent = ", ".join(str(each) for each, sent in ids if sent in self._client.outstanding)
            raise UsageError(
                f"`--attach {cluster}`: of the engines {silent} no answer came within "
                f"{ENGINE_SECONDS:g} s: they run something, or are stopped. Nothing was started. "
                "Type it again once they are free."
            )
        hosts = asked.get()
        self._engine_of = dict(zip(reversed(hosts), reversed(engines), strict=True))
        self.counts = dict(Counter(hosts))

    def start(self, _: int) -> str:
        """Starts the agents."""
        words = [*self._words, ENDS_WITH_PARENT]
        first = self._client[[*self._engine_of.values()]]
        first.apply_sync(_start_agent, words, HERE, self.environment)
        return str(self._client.session.session)

    def stop(self) -> None:
        """Does nothing: agents end with their connection, and the engines live on."""

    def get_output(self, *, remove: bool = False) -> str:
        """Returns nothing: agents write where their engines do."""
        return ""

    def on_stop(self, _: Any) -> None:
        """Does nothing: nobody tells of its end."""


_started: list[subprocess.Popen[bytes]] = []
"""In an engine, the agents that it has started."""


def _start_agent(words: list[str], here: str, variables: dict[str, str]) -> None:
    """Starts an agent, in an engine."""
    words = [sys.executable if each == here else each for each in words]
    agent = subprocess.Popen(
        words, env={**os.environ, **variables}, stdin=subprocess.DEVNULL, start_new_session=True
    )
    _started.append(agent)
